//! Senders that move money.

use super::{DAY, HOUR};
use crate::{EventId, JsonPointer, MissingId, Preset};

/// [Stripe]: `/id` (`evt_…`) alone, kept 4 days.
///
/// - Retries go on for up to 3 days in live mode, and have the id of the first attempt. A [resend]
///   by hand is of the same event, and possible for 15 days in the dashboard and 30 with the CLI. It
///   does not stop the retries, so it is recorded like any other run.
/// - The body may differ between attempts: `pending_webhooks` counts the endpoints that were not
///   reached yet.
/// - All endpoints of an account get the same id: give each a
///   [namespace](crate::WebhookDedupLayer::namespace), or a path.
/// - Now and then two events with different ids tell of the same change. For those the object's id
///   and the type would be the finer key.
/// - Unsure: how long Stripe waits for an answer; 20 to 30 seconds are reported.
///
/// [Stripe]: https://docs.stripe.com/webhooks
/// [resend]: https://docs.stripe.com/webhooks/process-undelivered-events
pub fn stripe() -> Preset {
    Preset::named("stripe", EventId::pointer("/id"), 4 * DAY).by_id()
}

/// [PayPal]: `/id` (`WH-…`) alone, kept 4 days.
///
/// - Up to 25 retries over 3 days. A resend names the id of the event, and is taken for the same.
/// - Two deliveries 70 milliseconds apart have been [seen].
/// - Unsure: whether the body is the same in all attempts, though it is [reported] to be; and whether
///   `PAYPAL-TRANSMISSION-ID`, which the signature covers, is.
///
/// [PayPal]: https://developer.paypal.com/api/rest/webhooks
/// [seen]: https://github.com/opencollective/opencollective/issues/5644
/// [reported]: https://github.com/paypal/PayPal-PHP-SDK/issues/1286
pub fn paypal() -> Preset {
    Preset::named("paypal", EventId::pointer("/id"), 4 * DAY).by_id()
}

/// [Square]: `/event_id` and the body, kept 26 hours.
///
/// - 11 retries over a little more than 24 hours, by the same id. An endpoint without one success in
///   three weeks is disabled.
/// - The body is reported to be the same in all attempts, and its signature with it. Should yours not
///   be, use [`KeyBy::Id`](crate::KeyBy::Id).
///
/// [Square]: https://developer.squareup.com/docs/webhooks/overview
pub fn square() -> Preset {
    Preset::named("square", EventId::pointer("/event_id"), 26 * HOUR)
}

/// [Paddle Billing][Paddle]: `/event_id` (`evt_…`) alone, kept 4 days.
///
/// - 60 retries over 3 days, 20 of them in the first hour.
/// - A [replay] by hand, possible for 90 days, is a new notification of the same event: the
///   `notification_id` in its body is new, the `event_id` is not. Replays after the retention run again.
/// - Unsure: whether automatic retries have the same body.
///
/// [Paddle]: https://developer.paddle.com/webhooks/about/respond-to-webhooks
/// [replay]: https://developer.paddle.com/api-reference/notifications/replay-notification
pub fn paddle() -> Preset {
    Preset::named("paddle", EventId::pointer("/event_id"), 4 * DAY).by_id()
}

/// [Razorpay]: the header `x-razorpay-event-id` and the body, kept 8 days.
///
/// - Retries go on for 24 hours. A [replay] by hand is sent as the event was first made, by the same
///   id, and is possible for events of up to 7 days, which is why they are kept for longer.
/// - No signature covers the header. The body is in the key, so that nobody can hide an event behind
///   the id of another.
///
/// [Razorpay]: https://github.com/razorpay/markdown-docs/blob/master/webhooks/best-practices.md
/// [replay]: https://razorpay.com/docs/webhooks/replay-events
pub fn razorpay() -> Preset {
    let event_id = EventId::header("x-razorpay-event-id");
    Preset::named("razorpay", event_id, 8 * DAY)
}

/// [Adyen]'s classic webhooks: `eventCode` and `pspReference` of the one item in a request, kept 31
/// days.
///
/// - Three quick retries, then a queue for [up to 30 days]. It is in order: one item that is refused
///   holds up those behind it. So what has no id is forwarded to the handler, unprotected
///   ([`MissingId::Forward`]).
/// - Duplicates may differ in `eventDate` and other fields.
/// - More than one item is no single event, and has no id here. See [batches](super#batches).
/// - Older accounts need `[accepted]` as the answer's body, also to duplicates: set
///   [`duplicate`](crate::WebhookDedupLayer::duplicate).
/// - Not for Adyen's platform webhooks, which have an id of their own.
///
/// [Adyen]: https://docs.adyen.com/development-resources/webhooks/handle-webhook-events
/// [up to 30 days]: https://docs.adyen.com/development-resources/webhooks/troubleshoot
pub fn adyen() -> Preset {
    const ITEM: &str = "/notificationItems/0/NotificationRequestItem";
    let field = |name| EventId::pointer(&format!("{ITEM}/{name}"));
    let event_id = field("eventCode").and(field("pspReference"));
    let second = JsonPointer::checked("/notificationItems/1");
    let event_id = event_id.only_if(move |_, data| second.leads_nowhere(data));
    Preset::named("adyen", event_id, 31 * DAY)
        .by_id()
        .missing_id(MissingId::Forward)
}

/// [Coinbase Commerce]: `/event/id` alone, kept 4 days.
///
/// - Retries go on for 3 days, at least one an hour. `attempt_number` in the body counts them.
/// - The `/id` outside is that of the delivery. Unsure: whether it is stable.
///
/// [Coinbase Commerce]: https://docs.cdp.coinbase.com/commerce/docs/webhooks
pub fn coinbase_commerce() -> Preset {
    let event_id = EventId::pointer("/event/id");
    Preset::named("coinbase_commerce", event_id, 4 * DAY).by_id()
}
