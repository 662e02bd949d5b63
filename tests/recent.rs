//! Bodies that are recognised: nothing is decided by them.
//!
//! What they save is measured in `instructions.rs`.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use fastrand::Rng;
use http::Request;
use http_body_util::Full;
use tower::Layer;
use tower_webhook_dedup::{EventId, KeyBy, MissingId, WebhookDedupLayer};

use front::MemoryStore;

#[path = "support/front.rs"]
mod front;

use http_support::{Handler, Run, post_body, send};

#[path = "support/http.rs"]
mod http_support;

/// Ways to read an id, of which some look at more than the body.
fn ids() -> Vec<EventId> {
    let pointer = || EventId::pointer("/id");
    vec![
        pointer(),
        EventId::header("x-id"),
        EventId::header("x-id").or(pointer()),
        pointer().and(EventId::pointer("/n").optional()),
        pointer().and(EventId::query("q").optional()),
        EventId::form("id"),
        EventId::custom(|parts, _| Some(parts.uri.path().to_owned())),
    ]
}

fn ways_to_key() -> Vec<KeyBy> {
    let pointer = || vec!["/n".parse().unwrap()];
    vec![
        KeyBy::IdAndBody,
        KeyBy::Id,
        KeyBy::IdAndFields(pointer()),
        KeyBy::IdAndBodyExcept(pointer()),
    ]
}

/// Requests of which many have the same body, and differ elsewhere.
fn requests(random: &mut Rng) -> Vec<Request<Full<Bytes>>> {
    let long = format!(r#"{{"id":"a","n":1,"more":"{}"}}"#, "x".repeat(20_000));
    let bodies = [
        r#"{"id":"a","n":1}"#,
        r#"{"id":"a","n":2}"#,
        r#"{"n":1,"id":"a"}"#,
        r#"{"id":"\u0061"}"#,
        "id=a&n=1",
        "not JSON",
        "",
        &long,
    ];
    let request = |random: &mut Rng| {
        let path = random.choice(["/x", "/y", "/x?q=1"]).unwrap();
        let mut request = Request::post(path).header(
            "content-type",
            random
                .choice(["application/json", "application/x-www-form-urlencoded"])
                .unwrap(),
        );
        if let Some(id) = random.choice([None, Some("1"), Some("2")]).unwrap() {
            request = request.header("x-id", id);
        }
        let body = random.choice(bodies).unwrap().to_owned();
        request.body(Full::from(body)).unwrap()
    };
    (0..60).map(|_| request(random)).collect()
}

/// What became of each request, and what its handler was told.
async fn play(
    layer: WebhookDedupLayer<MemoryStore>,
    requests: &[Request<Full<Bytes>>],
) -> Vec<String> {
    let told = Arc::new(Mutex::new(String::new()));
    let tell = told.clone();
    let handler = Handler::new(move |run: Run| {
        let delivery = run.delivery();
        let (id, key, hash) = (delivery.event_id(), delivery.key(), delivery.body_hash());
        *tell.lock().unwrap() = format!("{id} {key} {hash}");
        std::future::ready(200)
    });
    let service = layer.layer(handler);
    let mut became = Vec::new();
    for request in requests {
        let answer = send(&service, request.clone()).await;
        let told = std::mem::take(&mut *told.lock().unwrap());
        became.push(format!("{:?} {told}", answer.brief()));
    }
    became
}

#[tokio::test(start_paused = true)]
async fn whether_bodies_are_recognised_cannot_be_told() {
    let mut random = Rng::with_seed(7);
    for id in ids() {
        for key_by in ways_to_key() {
            for missing in [MissingId::Refuse, MissingId::UseBodyHash] {
                let requests = requests(&mut random);
                let layer = || {
                    WebhookDedupLayer::new(MemoryStore::new(), id.clone())
                        .key_by(key_by.clone())
                        .missing_id(missing)
                };
                let without = play(layer(), &requests).await;
                for count in [1, 3, 64] {
                    let with = play(layer().recent_bodies(count), &requests).await;
                    assert_eq!(
                        with, without,
                        "{id}, {key_by:?}, {missing:?}, {count} bodies"
                    );
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_kept_is_not_the_buffer_it_came_in() {
    let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"));
    let service = layer.recent_bodies(4).layer(Handler::ok());
    send(&service, post_body(r#"{"id":"a"}"#)).await;
    let buffer = Bytes::from(r#"{"id":"a"} and all that the server has read"#.to_owned());
    let duplicate = Request::post("/hooks/x").body(Full::from(buffer.slice(..10)));
    let answer = send(&service, duplicate.unwrap()).await;
    assert_eq!(answer.brief(), (200, "duplicate"));
    assert!(buffer.is_unique(), "somebody holds on to the buffer");
}

#[tokio::test(start_paused = true)]
async fn how_many_bodies_are_kept_is_told_and_not_what_they_say() {
    let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"));
    let layer = layer.recent_bodies(4);
    let service = layer.clone().layer(Handler::ok());
    for _ in 0..2 {
        send(&service, post_body(r#"{"id":"a secret"}"#)).await;
    }
    let told = format!("{layer:?}");
    assert!(told.contains("recent_bodies: Some(at most 4)"), "{told}");
    assert!(!told.contains("a secret"), "{told}");
}
