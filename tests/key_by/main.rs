//! What of a body makes two requests the same event is what the user chose, and nothing else.

mod any_json;
mod chosen;
mod unreadable;
mod values;

#[path = "../support/front.rs"]
mod front;
#[path = "../support/property.rs"]
mod property;
#[path = "../support/runtime.rs"]
mod runtime;

use std::{collections::BTreeMap, convert::Infallible};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{
    BodyHash, Delivery, EventId, Key, KeyBy, NoId, Outcome, Refusal, RequestBody, WebhookDedupLayer,
};

use self::{front::MemoryStore, runtime::block_on};

fn layer(key_by: &KeyBy) -> WebhookDedupLayer<MemoryStore> {
    WebhookDedupLayer::new(MemoryStore::with_capacity(1), EventId::header("x-id"))
        .namespace("t")
        .key_by(key_by.clone())
}

fn delivery(body: &[u8]) -> Request<Full<Bytes>> {
    Request::post("/hook")
        .header("x-id", "e1")
        .body(Full::from(body.to_vec()))
        .unwrap()
}

/// What the handler is told of the event, or why it never got it.
async fn send(
    layer: WebhookDedupLayer<MemoryStore>,
    body: &[u8],
) -> Result<(Key, BodyHash, bool), NoId> {
    let handler = service_fn(|request: Request<RequestBody<Full<Bytes>>>| async move {
        let delivery = request.extensions().get::<Delivery>().unwrap().clone();
        let mut response = Response::new(Full::<Bytes>::default());
        response.extensions_mut().insert(delivery);
        Ok::<_, Infallible>(response)
    });
    let response = layer.layer(handler).oneshot(delivery(body)).await.unwrap();
    match response.extensions().get::<Outcome>().unwrap() {
        Outcome::Refused(Refusal::NoEventId(why)) => {
            assert_eq!(response.status(), 400);
            Err(*why)
        }
        Outcome::Run { .. } => {
            let delivery = response.extensions().get::<Delivery>().unwrap();
            let key = delivery.key().clone();
            Ok((key, delivery.body_hash(), delivery.is_by_body()))
        }
        other => panic!("a fresh event became {other:?}"),
    }
}

/// The key of this body.
fn key(key_by: &KeyBy, body: impl AsRef<[u8]>) -> Result<Key, NoId> {
    let sent = send(layer(key_by), body.as_ref());
    let (key, hash, by_body) = block_on(sent)?;
    assert_eq!(hash, BodyHash::of(body.as_ref()), "the hash is the body's");
    assert!(!by_body);
    Ok(key)
}

#[track_caller]
fn same(key_by: &KeyBy, bodies: &[&str]) {
    let first = key(key_by, bodies[0]).unwrap();
    for body in bodies {
        assert_eq!(key(key_by, body).as_ref(), Ok(&first), "{body}");
    }
}

#[track_caller]
fn all_differ(key_by: &KeyBy, bodies: &[&str]) {
    let mut seen = BTreeMap::new();
    for body in bodies {
        let same = seen.insert(key(key_by, body).unwrap(), *body);
        assert_eq!(same, None, "one event with {body}");
    }
}

#[track_caller]
fn none(key_by: &KeyBy, why: NoId, bodies: &[&str]) {
    for body in bodies {
        assert_eq!(key(key_by, body), Err(why), "{body}");
    }
}

fn fields() -> KeyBy {
    KeyBy::id_and_fields(["/a", "/b/c"])
}

fn except() -> KeyBy {
    KeyBy::id_and_body_except(["/n", "/list/1", "/deep/er/n"])
}

/// The body around a value.
type Around = fn(&str) -> String;

/// For a value that counts as a whole, however it is chosen.
fn ways() -> [(KeyBy, Around); 3] {
    [
        (KeyBy::id_and_fields(["/v"]), |v| format!(r#"{{"v":{v}}}"#)),
        (KeyBy::id_and_fields([""]), |v| format!("[{v}]")),
        (KeyBy::id_and_body_except(["/n"]), |v| {
            format!(r#"{{"n":1,"x":[{v}]}}"#)
        }),
    ]
}
