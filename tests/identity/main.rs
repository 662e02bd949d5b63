//! The event id of a request is exactly what its sender wrote, or none.

mod any_json;
mod documents;
mod elsewhere;
mod joined;
mod pointers;
mod values;

#[path = "../support/front.rs"]
mod front;
#[path = "../support/property.rs"]
mod property;
#[path = "../support/runtime.rs"]
mod runtime;

use std::{collections::BTreeSet, convert::Infallible};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{
    Delivery, EventId, JsonPointer, NoId, Outcome, Refusal, RequestBody, Unprotected,
    WebhookDedupLayer,
};

use self::{front::MemoryStore, runtime::block_on};

const FORM: &str = "application/x-www-form-urlencoded";

type Hook = Request<Full<Bytes>>;

/// What the layer made of one request.
#[derive(Debug)]
struct Seen {
    id: Result<String, NoId>,
    outcome: String,
    /// What the handler got, if it ran.
    body: Option<Bytes>,
}

async fn send(layer: &WebhookDedupLayer<MemoryStore>, request: Hook) -> Seen {
    let handler = service_fn(|request: Request<RequestBody<Full<Bytes>>>| async move {
        let (mut parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let mut response = Response::new(Full::new(body));
        if let Some(delivery) = parts.extensions.remove::<Delivery>() {
            response.extensions_mut().insert(delivery);
        }
        response.extensions_mut().insert(Ran);
        Ok::<_, Infallible>(response)
    });
    let response = layer.layer(handler).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let id = match parts.extensions.get::<Outcome>().unwrap() {
        Outcome::Refused(Refusal::NoEventId(why))
        | Outcome::Unprotected(Unprotected::NoEventId(why)) => Err(*why),
        Outcome::Run { .. } => {
            let delivery = parts.extensions.get::<Delivery>().unwrap();
            Ok(delivery.event_id().to_owned())
        }
        other => Err(panic_on(other)),
    };
    let ran = parts.extensions.get::<Ran>().is_some();
    let outcome = parts.headers["webhook-dedup"].to_str().unwrap().to_owned();
    let body = body.collect().await.unwrap().to_bytes();
    Seen {
        id,
        outcome,
        body: ran.then_some(body),
    }
}

#[derive(Clone)]
struct Ran;

#[track_caller]
fn panic_on(outcome: &Outcome) -> NoId {
    panic!("a fresh event became {outcome:?}")
}

/// The id that a layer of its own reads from the request; what it refuses has no id.
fn read(event_id: EventId, request: Hook) -> Result<String, NoId> {
    let store = MemoryStore::with_capacity(1);
    let layer = WebhookDedupLayer::new(store.clone(), event_id);
    let seen = block_on(send(&layer, request));
    let stored = usize::from(seen.id.is_ok());
    assert_eq!(store.len(), stored, "a request without an id has no key");
    assert_eq!(seen.body.is_some(), seen.id.is_ok());
    seen.id
}

fn post(body: impl Into<Bytes>) -> Hook {
    Request::post("/hook").body(Full::new(body.into())).unwrap()
}

/// The id at a JSON pointer of a body.
fn at(pointer: &str, body: impl Into<Bytes>) -> Result<String, NoId> {
    read(EventId::pointer(pointer), post(body))
}

fn form(body: &str) -> Hook {
    let mut request = post(body.to_owned());
    request
        .headers_mut()
        .insert("content-type", FORM.parse().unwrap());
    request
}

fn query(query: &str) -> Hook {
    let uri = format!("/hook?{query}");
    Request::post(uri).body(Full::default()).unwrap()
}

fn ok(id: &str) -> Result<String, NoId> {
    Ok(id.to_owned())
}

#[test]
fn where_an_id_is_read_and_why_there_is_none_can_be_logged() {
    let everywhere = EventId::pointer("/a~1b")
        .or(EventId::header("x-id"))
        .or(EventId::form("id"))
        .and(EventId::query("id").optional())
        .and(EventId::custom(|_, _| None));
    let shown = format!("{everywhere:?}");
    let sources = [
        "pointer(/a~1b)",
        "header(x-id)",
        "form(id)",
        "optional(query(id))",
        "custom",
    ];
    let mut from = 0;
    for source in sources {
        let found = shown[from..].find(source);
        from += found.unwrap_or_else(|| panic!("{source} is not in {shown}"));
    }
    let pointer: JsonPointer = "/a~1b".parse().unwrap();
    assert_eq!(format!("{pointer:?}"), "JsonPointer(/a~1b)");

    let reasons = [
        NoId::Absent,
        NoId::Blank,
        NoId::Ambiguous,
        NoId::WrongType,
        NoId::Malformed,
    ];
    let texts: BTreeSet<_> = reasons.iter().map(NoId::to_string).collect();
    assert_eq!(texts.len(), reasons.len());
    assert!(!texts.contains(""));
}
