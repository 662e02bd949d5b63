//! Requests of real providers go through the layer byte for byte, and their ids are read.

use std::{collections::HashMap, convert::Infallible};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{
    BodyHash, Delivery, EventId, KeyBy, MissingId, RequestBody, WebhookDedupLayer,
};

use front::MemoryStore;

#[path = "support/front.rs"]
mod front;

use support::{Fixture, fixture, fixtures};

#[path = "support/fixtures.rs"]
mod support;

/// Where the manifest says that the id is; `None` where it says that there is none, or many.
fn event_id(fixture: &Fixture) -> Option<EventId> {
    let source = &fixture.source;
    let (kind, place) = source.split_once(':').unwrap_or((source, ""));
    match (kind, place) {
        ("body", pointer) => Some(EventId::pointer(pointer)),
        ("header", name) => Some(EventId::header(name)),
        ("composite", "eventCode+pspReference") => {
            let item = "/notificationItems/0/NotificationRequestItem";
            let field = |name| EventId::pointer(&format!("{item}/{name}"));
            Some(field("eventCode").and(field("pspReference")))
        }
        ("composite", "body:/source+/id") => {
            Some(EventId::pointer("/source").and(EventId::pointer("/id")))
        }
        ("composite", "header:ce-source+ce-id") => {
            Some(EventId::header("ce-source").and(EventId::header("ce-id")))
        }
        ("composite", "/message/messageId+/subscription") => {
            Some(EventId::pointer("/message/messageId").and(EventId::pointer("/subscription")))
        }
        ("composite", "event+event_ts+payload.object.uuid") => Some(
            EventId::pointer("/event")
                .and(EventId::pointer("/event_ts"))
                .and(EventId::pointer("/payload/object/uuid")),
        ),
        ("array", _) | ("none", "") => None,
        other => panic!("{}: {other:?}", fixture.name),
    }
}

/// What the handler got.
#[derive(Clone)]
struct Got {
    headers: HeaderMap,
    body: Bytes,
    delivery: Option<Delivery>,
}

/// The answer's outcome, and what the handler got, if it ran.
async fn send<B>(
    layer: &WebhookDedupLayer<MemoryStore>,
    request: Request<B>,
) -> (String, StatusCode, Option<Got>)
where
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let handler = service_fn(|request: Request<RequestBody<B>>| async move {
        let (mut parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let got = Got {
            headers: parts.headers,
            body,
            delivery: parts.extensions.remove(),
        };
        let mut response = Response::new(Full::<Bytes>::default());
        response.extensions_mut().insert(got);
        Ok::<_, Infallible>(response)
    });
    let response = layer.layer(handler).oneshot(request).await.unwrap();
    let outcome = response.headers()["webhook-dedup"].to_str().unwrap();
    let got = response.extensions().get::<Got>().cloned();
    (outcome.to_owned(), response.status(), got)
}

/// The body in small frames.
fn in_frames(body: &Bytes) -> UnsyncBoxBody<Bytes, Infallible> {
    let frames: Vec<_> = body
        .chunks(7)
        .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))))
        .collect();
    StreamBody::new(stream::iter(frames)).boxed_unsync()
}

fn layer(event_id: EventId) -> WebhookDedupLayer<MemoryStore> {
    WebhookDedupLayer::new(MemoryStore::new(), event_id)
}

// R27, R41
#[tokio::test(start_paused = true)]
async fn handlers_get_every_body_and_header_as_they_were_sent() {
    for fixture in fixtures() {
        let name = &fixture.name;
        assert_eq!(BodyHash::of(&fixture.body).to_string(), fixture.sha256);
        let id = || event_id(&fixture).unwrap_or(EventId::pointer("/id"));
        let layer = || layer(id()).missing_id(MissingId::Forward);
        let whole = fixture.request();
        let (_, _, whole) = send(&layer(), whole).await;
        let pieces = fixture.request_with(in_frames(&fixture.body));
        let (_, _, pieces) = send(&layer(), pieces).await;
        for got in [whole, pieces] {
            let got = got.unwrap();
            assert_eq!(got.body, fixture.body, "{name}");
            assert_eq!(got.headers, fixture.headers, "{name}");
            if let Some(delivery) = got.delivery {
                assert_eq!(delivery.body_hash().to_string(), fixture.sha256, "{name}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ids_are_read_where_the_manifest_says() {
    let mut read = 0;
    for fixture in fixtures() {
        let Some(id) = event_id(&fixture) else {
            continue;
        };
        for key_by in [KeyBy::IdAndBody, KeyBy::Id] {
            let layer = layer(id.clone()).key_by(key_by.clone());
            let request = fixture.request();
            let (outcome, _, got) = send(&layer, request).await;
            assert_eq!(outcome, "run", "{}", fixture.name);
            let delivery = got.unwrap().delivery.unwrap();
            assert_eq!(delivery.event_id(), fixture.id(), "{}", fixture.name);
        }
        read += 1;
    }
    assert!(read >= 51);
}

// R6, R29, R40
#[tokio::test(start_paused = true)]
async fn batches_and_requests_without_an_id_are_refused_or_forwarded_each_time() {
    let mut seen = 0;
    for fixture in fixtures() {
        if event_id(&fixture).is_some() {
            continue;
        }
        for pointer in ["/id", "/event_id", "/data/id", "/entry/id"] {
            let request = || fixture.request();
            let name = &fixture.name;
            // A ping is an interaction like others, and has the id of one.
            if (name.as_str(), pointer) == ("discord_ping", "/id") {
                continue;
            }
            let store = MemoryStore::new();
            let refusing = WebhookDedupLayer::new(store.clone(), EventId::pointer(pointer));
            let (outcome, status, got) = send(&refusing, request()).await;
            assert_eq!(
                (outcome.as_str(), status.as_u16()),
                ("refused", 400),
                "{name}"
            );
            assert!(got.is_none(), "{name}");
            let forwarding = refusing.missing_id(MissingId::Forward);
            for _ in 0..2 {
                let (outcome, _, got) = send(&forwarding, request()).await;
                assert_eq!(outcome, "unprotected", "{name}");
                assert!(got.unwrap().delivery.is_none(), "{name}");
            }
            assert!(store.is_empty(), "{name}");
        }
        seen += 1;
    }
    assert!(seen >= 19);
}

// R24
#[tokio::test(start_paused = true)]
async fn retries_are_duplicates_by_id_and_by_body_where_that_is_the_same() {
    let all = fixtures();
    let by_name: HashMap<_, _> = all.iter().map(|f| (f.name.as_str(), f)).collect();
    let (mut pairs, mut same_bodies) = (0, 0);
    for retry in &all {
        // Rows that name an element of a batch have no id as a whole.
        let Some(first) = by_name.get(retry.same_as.as_str()) else {
            assert!(retry.same_as == "-" || retry.source.starts_with("array:"));
            continue;
        };
        // Two modes of one event have their ids in two places.
        let (Some(id), Some(other)) = (event_id(first), event_id(retry)) else {
            continue;
        };
        let id = id.or(other);
        let name = &retry.name;
        let same_body = retry.body == first.body;
        for key_by in [KeyBy::Id, KeyBy::IdAndBody] {
            let layer = layer(id.clone()).key_by(key_by.clone());
            let (outcome, _, _) = send(&layer, first.request()).await;
            assert_eq!(outcome, "run", "{name}");
            let (outcome, status, got) = send(&layer, retry.request()).await;
            if key_by == KeyBy::Id || same_body {
                assert_eq!(outcome, "duplicate", "{name}");
                assert_eq!(status, StatusCode::OK, "{name}");
                assert!(got.is_none(), "{name}");
            } else {
                // Another body is another event, as documented.
                assert_eq!(outcome, "run", "{name}");
            }
        }
        pairs += 1;
        same_bodies += usize::from(same_body);
    }
    assert!(pairs >= 14 && same_bodies >= 6);
}

#[tokio::test(start_paused = true)]
async fn distinct_events_that_look_alike_both_run() {
    let distinct: Vec<_> = fixtures()
        .into_iter()
        .filter(|fixture| fixture.note.starts_with("DISTINCT event"))
        .collect();
    assert!(distinct.len() >= 6);
    // All through one layer for each way to find the id: none may swallow another.
    for event_id in [
        EventId::header("I-Twilio-Idempotency-Token"),
        EventId::pointer("/id"),
    ] {
        for key_by in [KeyBy::Id, KeyBy::IdAndBody] {
            let layer = layer(event_id.clone())
                .key_by(key_by.clone())
                .missing_id(MissingId::Forward);
            for fixture in &distinct {
                let request = fixture.request();
                let (outcome, _, got) = send(&layer, request).await;
                assert_ne!(outcome, "duplicate", "{}", fixture.name);
                assert!(got.is_some(), "{}", fixture.name);
            }
        }
    }
}

// R16
#[tokio::test(start_paused = true)]
async fn a_body_in_place_of_an_id_swallows_distinct_events_of_some_providers() {
    // Why it is not the default: its documentation names these.
    for (first, second) in [
        ("mollie", "mollie_second_transition"),
        ("plaid", "plaid_next_day"),
    ] {
        let layer = layer(EventId::pointer("/id")).missing_id(MissingId::UseBodyHash);
        let (first, second) = (fixture(first), fixture(second));
        let (outcome, ..) = send(&layer, first.request()).await;
        assert_eq!(outcome, "run");
        let (outcome, ..) = send(&layer, second.request()).await;
        assert_eq!(outcome, "duplicate");
    }
}

// R40
#[tokio::test(start_paused = true)]
async fn handshakes_reach_the_handler() {
    let mut seen = 0;
    for fixture in fixtures() {
        if !fixture.is_handshake() {
            continue;
        }
        let id = event_id(&fixture).unwrap_or(EventId::pointer("/id"));
        let layer = layer(id).missing_id(MissingId::Forward);
        let request = fixture.request();
        let (_, _, got) = send(&layer, request).await;
        assert_eq!(got.unwrap().body, fixture.body, "{}", fixture.name);
        seen += 1;
    }
    assert!(seen >= 10);
}
