//! Telling a handshake, or a probe, from an event.
//!
//! By its body, which the signature covers, and by its header where there is one: a header alone
//! could be added to any event, which would then run each time it is sent.

use bytes::Bytes;
use http::{HeaderName, header::HeaderMap, request::Parts};

use crate::{EventId, JsonPointer, NoId};

/// What a body has at a JSON pointer.
enum Has {
    /// This text or number.
    Value(&'static str),
    /// Some text or number.
    Any,
    /// Nothing, or `null`.
    Nothing,
}

/// `url_verification`: the answer is its `challenge`.
pub(super) fn slack() -> impl Fn(&Parts, &Bytes) -> bool {
    body([
        ("/type", Has::Value("url_verification")),
        ("/challenge", Has::Any),
        ("/event_id", Has::Nothing),
    ])
}

/// `endpoint.url_validation`, again every 72 hours: the answer is its token, encrypted.
pub(super) fn zoom() -> impl Fn(&Parts, &Bytes) -> bool {
    body([
        ("/event", Has::Value("endpoint.url_validation")),
        ("/payload/plainToken", Has::Any),
        ("/payload/object", Has::Nothing),
    ])
}

/// `PING`, an interaction of type 1: the answer is `{"type":1}`.
pub(super) fn discord() -> impl Fn(&Parts, &Bytes) -> bool {
    body([("/type", Has::Value("1")), ("/data", Has::Nothing)])
}

/// A `verification_token`, for a person to copy.
pub(super) fn notion() -> impl Fn(&Parts, &Bytes) -> bool {
    body([
        ("/verification_token", Has::Any),
        ("/id", Has::Nothing),
        ("/type", Has::Nothing),
    ])
}

/// `webhook_callback_verification`: the answer is its `challenge`.
pub(super) fn twitch() -> impl Fn(&Parts, &Bytes) -> bool {
    let challenge = body([("/challenge", Has::Any), ("/event", Has::Nothing)]);
    move |parts, data| {
        let kind = header(&parts.headers, "twitch-eventsub-message-type");
        kind == Some("webhook_callback_verification") && challenge(parts, data)
    }
}

/// `ping`, when a hook was made. Its body may be a form, as the hook's content type has it. That
/// header is as unsigned as the other: the text of an event must not be taken for a form.
pub(super) fn github() -> impl Fn(&Parts, &Bytes) -> bool {
    let zen = body([("/zen", Has::Any), ("/hook_id", Has::Any)]);
    let payload = EventId::form("payload");
    move |parts, data| {
        header(&parts.headers, "x-github-event") == Some("ping")
            && match payload.read(parts, data) {
                Ok(json) if data.starts_with(b"payload=") => {
                    zen(parts, &Bytes::copy_from_slice(json.as_bytes()))
                }
                _ => zen(parts, data),
            }
    }
}

/// Confirmations of subscribing and unsubscribing, which the receiver answers by visiting an URL.
pub(super) fn sns() -> impl Fn(&Parts, &Bytes) -> bool {
    const CONFIRMATIONS: [&str; 2] = ["SubscriptionConfirmation", "UnsubscribeConfirmation"];
    let in_body = EventId::pointer("/Type");
    move |parts, data| {
        header(&parts.headers, "x-amz-sns-message-type").is_some_and(|kind| {
            CONFIRMATIONS.contains(&kind)
                && in_body
                    .read(parts, data)
                    .is_ok_and(|in_body| in_body == kind)
        })
    }
}

/// Whether this is the handshake of an Azure Event Grid subscription, to be answered with
/// `{"validationResponse": …}` and its code: the header `aeg-event-type: SubscriptionValidation`, and
/// a body of the one event that says so, too.
///
/// There is [no preset](super#batches) for Event Grid, but this is for
/// [`bypass`](crate::WebhookDedupLayer::bypass) or for a handler of batches.
///
/// Source: [Event Grid], endpoint validation.
///
/// ```
/// # use tower_webhook_dedup::{EventId, MemoryStore, WebhookDedupLayer, providers};
/// // A subscription that delivers one event a request.
/// let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/0/id"))
///     .bypass(providers::is_event_grid_validation);
/// ```
///
/// [Event Grid]: https://github.com/MicrosoftDocs/azure-docs/blob/main/articles/event-grid/webhook-event-delivery.md
#[must_use]
pub fn is_event_grid_validation(parts: &Parts, data: &Bytes) -> bool {
    const EVENT: &str = "Microsoft.EventGrid.SubscriptionValidationEvent";
    let second = JsonPointer::checked("/1");
    header(&parts.headers, "aeg-event-type") == Some("SubscriptionValidation")
        && body([
            ("/0/eventType", Has::Value(EVENT)),
            ("/0/data/validationCode", Has::Any),
        ])(parts, data)
        && second.leads_nowhere(data)
}

/// Whether a JSON body has all of this.
fn body<const N: usize>(clues: [(&'static str, Has); N]) -> impl Fn(&Parts, &Bytes) -> bool {
    let clues = clues.map(|(pointer, has)| (EventId::pointer(pointer), has));
    move |parts, data| {
        clues
            .iter()
            .all(|(at, has)| match (has, at.read(parts, data)) {
                (Has::Value(wanted), Ok(found)) => found == *wanted,
                (Has::Any, Ok(_)) => true,
                (Has::Nothing, found) => found == Err(NoId::Absent),
                (Has::Value(_) | Has::Any, Err(_)) => false,
            })
    }
}

/// The text of a header that is there once.
pub(super) fn header<'a>(headers: &'a HeaderMap, name: &'static str) -> Option<&'a str> {
    let mut values = headers.get_all(HeaderName::from_static(name)).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}
