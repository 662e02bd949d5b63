//! Senders that talk: messages, calls, meetings, streams.

use std::time::Duration;

use http::StatusCode;

use super::{HOUR, REPLAYED, handshake};
use crate::{AfterWait, EventId, InFlight, MissingId, Preset, StoreFailure};

/// The [Slack Events API][Slack]: `/event_id` alone, kept 26 hours.
///
/// - Three retries, at once, after a minute and after five; with delayed events turned on, hourly for
///   24 hours more. Slack waits 3 seconds, so the first duplicate often comes while the handler runs.
/// - `url_verification` passes by: the handler answers its `challenge`.
/// - An app whose answers fail for more than 95 % of an hour is cut off.
/// - Unsure: that the id is the same in each retry is seen, but never promised; whether the body is,
///   is not said.
/// - Not for slash commands and interactive messages: those are forms without an id, and people see
///   the answers.
///
/// [Slack]: https://docs.slack.dev/apis/events-api
pub fn slack() -> Preset {
    Preset::named("slack", EventId::pointer("/event_id"), 26 * HOUR)
        .by_id()
        .bypass(handshake::slack())
}

/// [Twilio] messages and calls: the header `I-Twilio-Idempotency-Token` alone, kept an hour.
///
/// - Twilio retries within 15 seconds, and by default only where the connection failed: an event that
///   is refused is lost. So when the store fails, or there is no token, the handler gets the request
///   unprotected.
/// - The answer is TwiML and counts. A duplicate of a running event waits, up to 10 seconds, and one of
///   a completed event gets the answer that the first one got, of up to 64 KiB, if its body is the same
///   ([`Duplicate::Replay`](crate::Duplicate::Replay)). What waits in vain is acknowledged, by JSON.
/// - `MessageSid` and `CallSid` are no event ids: a message has several statuses.
/// - Unsure: the header is known from receivers, not from Twilio's documentation, and no signature
///   covers it. The retry to a fallback URL may have more fields.
/// - Twilio can send `GET`, which the layer lets pass by default.
///
/// [Twilio]: https://www.twilio.com/docs/usage/webhooks/webhooks-connection-overrides
pub fn twilio() -> Preset {
    let event_id = EventId::header("i-twilio-idempotency-token");
    Preset::named("twilio", event_id, HOUR)
        .by_id()
        .missing_id(MissingId::Forward)
        .in_flight(wait(Duration::from_secs(10)))
        .duplicate(REPLAYED)
        .store_failure(StoreFailure::Forward)
}

/// [Telegram] bots: `/update_id` alone, kept 26 hours.
///
/// - Updates are kept by Telegram for at most 24 hours, and sent again "a reasonable number" of times.
/// - The number counts for one bot: two bots need two paths, or
///   [namespaces](crate::WebhookDedupLayer::namespace).
/// - A duplicate gets 200 without a body, since Telegram may execute what is in it as a call. Never
///   replay an answer here: the call would be made again.
/// - Unsure: whether the body is the same in all attempts. No signature covers it, only a secret token
///   in a header.
///
/// [Telegram]: https://core.telegram.org/bots/api#setwebhook
pub fn telegram() -> Preset {
    Preset::named("telegram", EventId::pointer("/update_id"), 26 * HOUR)
        .by_id()
        .duplicate_without_body(StatusCode::OK)
}

/// [Discord interactions][Discord]: `/id` alone, kept an hour.
///
/// - Discord does not retry, and waits 3 seconds for the [answer], which counts. A duplicate of a
///   running interaction waits, up to 2 seconds, and one of a completed interaction gets the answer that
///   the first one got, of up to 64 KiB ([`Duplicate::Replay`](crate::Duplicate::Replay)). When
///   the store fails, the handler gets the request unprotected.
/// - `PING` passes by. Probes with a wrong signature have to get 401: verify outside.
/// - Not for Discord's [webhook events], which have no id.
///
/// [Discord]: https://github.com/discord/discord-api-docs/blob/main/developers/interactions/overview.mdx
/// [answer]: https://github.com/discord/discord-api-docs/blob/main/developers/interactions/receiving-and-responding.mdx
/// [webhook events]: https://github.com/discord/discord-api-docs/blob/main/developers/events/webhook-events.mdx
pub fn discord_interactions() -> Preset {
    Preset::named("discord_interactions", EventId::pointer("/id"), HOUR)
        .by_id()
        .in_flight(wait(Duration::from_secs(2)))
        .duplicate(REPLAYED)
        .store_failure(StoreFailure::Forward)
        .bypass(handshake::discord())
}

/// [Zoom]: no id, so that the whole request stands for it, kept 3 hours.
///
/// - [Three retries], after 5, 20 and 60 more minutes.
/// - Bodies have a time in them, `event_ts` in milliseconds: two different events with the same bytes
///   are unlikely, but not ruled out. That is [`MissingId::UseBodyHash`].
/// - `endpoint.url_validation` passes by, which comes [every 72 hours][validation].
/// - Unsure: whether the body is the same in all attempts. If not, retries run again.
///
/// [Zoom]: https://developers.zoom.us/docs/api/webhooks
/// [Three retries]: https://developers.zoom.us/blog/webhook-delays
/// [validation]: https://developers.zoom.us/docs/api/webhooks/#validate-your-webhook-endpoint
pub fn zoom() -> Preset {
    Preset::named("zoom", EventId::nowhere(), 3 * HOUR)
        .missing_id(MissingId::UseBodyHash)
        .bypass(handshake::zoom())
}

/// [Intercom]: `/id` (`notif_…`) alone, kept 26 hours.
///
/// - The body counts: `delivery_attempts`, `delivery_status` and `delivered_at` are in it.
/// - 429 makes Intercom pause; more than 1 000 errors in 15 minutes, too; 7 days of errors suspend.
/// - Unsure: for how long failed notifications are sent again. A day is assumed, as with most senders.
///
/// [Intercom]: https://developers.intercom.com/docs/webhooks/webhook-notifications
pub fn intercom() -> Preset {
    Preset::named("intercom", EventId::pointer("/id"), 26 * HOUR).by_id()
}

/// [Twitch EventSub][Twitch]: the header `Twitch-Eventsub-Message-Id` alone, kept 26 hours.
///
/// - The id is the same in each retry, and the signature covers it. Twitch wants duplicates [answered]
///   with 2xx; too many failures revoke the subscription.
/// - `webhook_callback_verification` passes by, although it has an id like any other message.
///   `revocation` is an event.
/// - Unsure: for how long it is sent again. A day is assumed.
///
/// [Twitch]: https://dev.twitch.tv/docs/eventsub
/// [answered]: https://dev.twitch.tv/docs/eventsub/handling-webhook-events
pub fn twitch() -> Preset {
    let event_id = EventId::header("twitch-eventsub-message-id");
    Preset::named("twitch", event_id, 26 * HOUR)
        .by_id()
        .bypass(handshake::twitch())
}

/// [Mailgun]: `/event-data/id` alone, kept 12 hours.
///
/// - Retries after 5, 10 and 15 minutes, 1, 2 and 4 hours, so about 8 in all, on anything but 200 and
///   406, which refuses for good. This layer never answers 406.
/// - The signature covers a time and a token only, not the body.
/// - Unsure: whether id and body are the same in all attempts.
///
/// [Mailgun]: https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/webhook-retries
pub fn mailgun() -> Preset {
    let event_id = EventId::pointer("/event-data/id");
    Preset::named("mailgun", event_id, 12 * HOUR).by_id()
}

/// For senders that need the answer of the first attempt, and wait for so long.
const fn wait(max: Duration) -> InFlight {
    let then = AfterWait::Acknowledge;
    InFlight::Wait { max, then }
}
