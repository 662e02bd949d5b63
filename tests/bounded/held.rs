//! What is held of requests counts against one number of bytes.

use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_webhook_dedup::{AfterWait, EventId, InFlight, Key, KeyBy, Limits, WebhookDedupLayer};

use crate::{
    http_support::{Handler, by_id, e1, millis, post, post_body, secs, send, send_later},
    stores::Faulty,
};

/// Standbys, waiters and detached runs share one purse.
#[tokio::test(start_paused = true)]
async fn what_is_held_for_any_reason_counts_against_the_same_bytes() {
    let big = |id: &str| {
        let body = format!(r#"{{"id":"{id}","x":"{}"}}"#, "x".repeat(10_000));
        post_body(&body)
    };
    let store = Faulty::new();
    let handler = Handler::new(|_| async {
        sleep(secs(20)).await;
        200
    });
    let waiting = InFlight::Wait {
        max: secs(5),
        then: AfterWait::RetryLater,
    };
    let layer = by_id(store.clone()).limits(Limits::default().bytes(25_000));
    let service = layer.clone().layer(handler.clone());
    let waiters = layer.clone().in_flight(waiting).layer(handler.clone());

    let detached = send_later(&service, big("run"));
    handler.began(1).await;
    detached.abort();
    sleep(millis(1)).await;
    for id in ["wait", "stand"] {
        store.hold(&Key::new("t", id), secs(3600)).await;
    }
    let waiter = send_later(&waiters, big("wait"));
    sleep(millis(1)).await;
    let answer = send(&service, big("stand")).await;
    assert_eq!(answer.brief(), (503, "in-flight"));
    let asked = Instant::now();
    assert_eq!(send(&waiters, big("wait")).await.status, 503);
    assert!(asked.elapsed().is_zero(), "no place to wait");

    // And is given back.
    assert_eq!(waiter.await.unwrap().status, 503);
    handler.has_ended(1).await;
    sleep(millis(1)).await;
    for n in 0..2 {
        let id = format!("again{n}");
        store.hold(&Key::new("t", &id), secs(3600)).await;
        assert_eq!(send(&service, big(&id)).await.brief(), (200, "standby"));
    }
}

/// What is kept of a request is not its body alone.
#[tokio::test(start_paused = true)]
async fn a_long_target_and_long_headers_count_against_the_bytes() {
    let store = Faulty::new();
    store.hold(&e1(), secs(3600)).await;
    let service = by_id(store)
        .limits(Limits::default().bytes(10_000))
        .layer(Handler::ok());
    let long = "x".repeat(10_000);
    let mut target = post("e1");
    *target.uri_mut() = format!("/hooks/x?{long}").parse().unwrap();
    let mut headers = post("e1");
    headers.headers_mut().insert("x", long.parse().unwrap());
    for request in [target, headers] {
        assert_eq!(send(&service, request).await.brief(), (503, "in-flight"));
    }
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
}

/// It is kept next to the request, where it is no part of the body.
#[tokio::test(start_paused = true)]
async fn a_long_id_counts_against_the_bytes() {
    let long = "x".repeat(10_000);
    for (bytes, answer) in [(10_000, (503, "in-flight")), (12_000, (200, "standby"))] {
        let store = Faulty::new();
        store.hold(&Key::new("t", &long), secs(3600)).await;
        let id = long.clone();
        let service = WebhookDedupLayer::new(store, EventId::custom(move |_, _| Some(id.clone())))
            .namespace("t")
            .key_by(KeyBy::Id)
            .limits(Limits::default().bytes(bytes))
            .layer(Handler::ok());
        assert_eq!(send(&service, post("e1")).await.brief(), answer);
    }
}

/// More than a `HeaderMap` lets anybody make room for at once.
#[tokio::test(start_paused = true)]
async fn a_request_with_very_many_headers_is_stood_by_for() {
    let store = Faulty::new();
    store.hold(&e1(), secs(2)).await;
    let handler = Handler::ok();
    let service = by_id(store).layer(handler.clone());
    let mut request = post("e1");
    for _ in 0..25_000 {
        request.headers_mut().append("x", "y".parse().unwrap());
    }
    let headers = request.headers().clone();
    assert_eq!(send(&service, request).await.brief(), (200, "standby"));
    handler.has_ended(1).await;
    assert!(handler.seen()[0].headers == headers);
}
