//! Senders that follow a standard, and the clouds' message queues.

use http::{StatusCode, header::CONTENT_TYPE, request::Parts};

use super::{DAY, HOUR, handshake};
use crate::{EventId, NoId, Preset};

/// [Standard Webhooks]: the header `webhook-id` and the body, kept 4 days.
///
/// - The header is an idempotency key by definition, and the signature covers it. `svix-id` is the older
///   name of it; a request that has both, and not the same, has no id.
/// - The schedule that the specification shows ends after 75 hours and 35 minutes. The five minutes for
///   which it suggests to remember ids are enough against replays, but not for retries.
/// - Unsure: whether a resend by hand has the same id depends on the sender; so does the body, of which
///   the specification says nothing. Use [`KeyBy::Id`](crate::KeyBy::Id) where it differs.
///
/// [Standard Webhooks]: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
pub fn standard_webhooks() -> Preset {
    Preset::named("standard_webhooks", webhook_id(), 4 * DAY)
}

/// [Svix]: the header `svix-id`, or `webhook-id`, and the body, kept 36 hours.
///
/// - Attempts at once, and after 5 seconds, 5 and 30 minutes, 2, 5, 10 and 10 hours: 27 hours and 35
///   minutes in all. The id is the same, and the signature covers it.
/// - Five days of nothing but failures disable an endpoint.
/// - Unsure: a resend is [reported] to have the original body and id.
///
/// [Svix]: https://docs.svix.com/retries
/// [reported]: https://docs.flexprice.io/developers/webhooks/retries-and-ordering
pub fn svix() -> Preset {
    Preset::named("svix", webhook_id(), 36 * HOUR)
}

/// [Clerk], which sends by way of [Svix](svix): the same, kept 36 hours.
///
/// [Clerk]: https://github.com/clerk/clerk-docs/blob/main/docs/guides/development/webhooks/overview.mdx
pub fn clerk() -> Preset {
    Preset::named("clerk", webhook_id(), 36 * HOUR)
}

/// The one id under two names, of which only one may be signed.
fn webhook_id() -> EventId {
    let event_id = EventId::header("webhook-id").or(EventId::header("svix-id"));
    event_id.only_if(|parts, _| {
        let ids = parts.headers.get_all("webhook-id").iter();
        let mut ids = ids.chain(parts.headers.get_all("svix-id"));
        let first = ids.next();
        ids.all(|id| Some(id) == first)
    })
}

/// [CloudEvents], one a request: `ce-source` and `ce-id` in the headers (binary mode), or `/source` and
/// `/id` in the body (structured mode), kept 26 hours.
///
/// - Equal source and id may be taken for a duplicate. Ids are only unique together with their source.
/// - The mode is told by the content type, as the [binding] says: headers do not count beside an
///   `application/cloudevents` body. Both forms of an event differ in their bytes, so that the id alone
///   makes the key.
/// - A duplicate gets 204, which the [webhook] specification has for success.
/// - Batch mode is no single event: it has no id here. See [batches](super#batches). The `OPTIONS` handshake
///   passes, as all that is not `POST`.
/// - Unsure: for how long a sender retries is its own business; a day is assumed. Auth0's event streams
///   are such a sender.
///
/// [CloudEvents]: https://github.com/cloudevents/spec/blob/main/cloudevents/spec.md
/// [binding]: https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/http-protocol-binding.md
/// [webhook]: https://github.com/cloudevents/spec/blob/main/cloudevents/http-webhook.md
pub fn cloudevents() -> Preset {
    let binary = EventId::header("ce-source").and(EventId::header("ce-id"));
    let binary = binary.only_if(|parts, _| !is_structured(parts));
    let structured = EventId::pointer("/source").and(EventId::pointer("/id"));
    // Beside the headers of binary mode, a body is the event's data.
    let structured =
        structured.only_if(|parts, _| is_structured(parts) || !parts.headers.contains_key("ce-id"));
    Preset::named("cloudevents", binary.or(structured), 26 * HOUR)
        .by_id()
        .duplicate_without_body(StatusCode::NO_CONTENT)
}

/// Whether the body is one or more CloudEvents, and not the data of one.
fn is_structured(parts: &Parts) -> bool {
    const STRUCTURED: &[u8] = b"application/cloudevents";
    let content_type = parts.headers.get(CONTENT_TYPE);
    let start = content_type.and_then(|it| it.as_bytes().get(..STRUCTURED.len()));
    start.is_some_and(|start| start.eq_ignore_ascii_case(STRUCTURED))
}

/// [AWS SNS][SNS] over HTTP: the header `x-amz-sns-message-id` alone, kept 2 hours.
///
/// - Three [retries], 20 seconds apart, by default; never for longer than an hour in all.
/// - Confirmations of subscribing and unsubscribing pass by: the handler has to visit their URL.
/// - SNS takes all from 200 to 4xx for delivered. Refusals are 503, and never 4xx.
/// - The signature covers the `MessageId` in the body, and not the header: a request in which they differ
///   has no id. With raw message delivery there is no `MessageId`, and no signature.
/// - The body is JSON under `text/plain`; the layer does not mind.
/// - Unsure: whether a message that is redriven from a dead-letter queue has the same id, and whether the
///   body is the same in all attempts.
///
/// [SNS]: https://github.com/awsdocs/amazon-sns-developer-guide/blob/main/doc_source/SendMessageToHttp.prepare.md
/// [retries]: https://docs.aws.amazon.com/sns/latest/dg/sns-message-delivery-retries.html
pub fn sns() -> Preset {
    let signed = EventId::pointer("/MessageId");
    let event_id = EventId::header("x-amz-sns-message-id").only_if(move |parts, data| {
        let header = handshake::header(&parts.headers, "x-amz-sns-message-id");
        match signed.read(parts, data) {
            Ok(signed) => header == Some(&*signed),
            // Raw delivery: the body is whatever was published.
            Err(NoId::Absent | NoId::Malformed) => true,
            Err(_) => false,
        }
    });
    Preset::named("sns", event_id, 2 * HOUR)
        .by_id()
        .refuse_without_4xx()
        .bypass(handshake::sns())
}

/// [Google Pub/Sub][Pub/Sub] push: `/message/messageId` and `/subscription` alone, kept 8 days.
///
/// - What is not answered with 102, 200, 201, 202 or 204 is sent again, until the retention of the
///   subscription ends: 7 days by default. Set a longer [retention](crate::WebhookDedupLayer::retention)
///   if yours is.
/// - With a dead-letter policy, `deliveryAttempt` in the body counts.
/// - A duplicate gets 204.
/// - Unsure: seeking back in a subscription is taken to send the same ids. Use
///   [`Dedup::forget`](crate::Dedup::forget), or another namespace, to have them run again.
///
/// [Pub/Sub]: https://cloud.google.com/pubsub/docs/push
pub fn pubsub() -> Preset {
    let event_id = EventId::pointer("/message/messageId").and(EventId::pointer("/subscription"));
    Preset::named("pubsub", event_id, 8 * DAY)
        .by_id()
        .duplicate_without_body(StatusCode::NO_CONTENT)
}
