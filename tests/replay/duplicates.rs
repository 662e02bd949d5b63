//! Which duplicates get the answer of a run, and of which runs.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{AfterWait, Duplicate, InFlight, Operation, RequestBody};

use crate::{
    MOST, TWIML, answering, assert_plain, assert_replayed,
    http_support::{post, post_body, secs, send, send_later},
    record, replaying,
    stores::{Faulty, MemoryStore, cached},
    twiml,
};

#[tokio::test(start_paused = true)]
async fn a_duplicate_gets_the_answer_of_the_run() {
    let handler = answering(twiml);
    let layer = replaying(MemoryStore::new());
    let service = layer.layer(handler.clone());
    let first = send(&service, post("e1")).await;
    assert_eq!((first.brief(), &*first.body), ((201, "run"), TWIML));
    for _ in 0..3 {
        assert_replayed(&send(&service, post("e1")).await);
    }
    assert_eq!(handler.runs(), 1);
    let record = record(&layer).await;
    let answer = record.answer().unwrap();
    assert_eq!((record.status(), answer.body()), (Some(201), &TWIML.into()));
    assert_eq!(answer.headers().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_stored_unless_it_is_set() {
    for duplicate in [
        Duplicate::Acknowledge,
        Duplicate::Reply(Response::new("[accepted]".into())),
    ] {
        let layer = replaying(MemoryStore::new()).duplicate(duplicate);
        let service = layer.layer(answering(twiml));
        assert_eq!(send(&service, post("e1")).await.status, 201);
        assert!(record(&layer).await.answer().is_none());
        assert_eq!(send(&service, post("e1")).await.status, 200);
        // Set later, it finds nothing.
        let later = layer.duplicate(Duplicate::Replay { max_body: MOST });
        let service = later.layer(answering(twiml));
        assert_plain(&send(&service, post("e1")).await);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_costs_no_store_call() {
    let store = Faulty::new();
    let service = replaying(store.clone()).layer(answering(twiml));
    send(&service, post("e1")).await;
    send(&service, post("e1")).await;
    let calls: Vec<_> = store.calls().iter().map(|call| call.operation).collect();
    let run = [Operation::Acquire, Operation::Complete];
    let duplicate: &[_] = if cached() { &[] } else { &[Operation::Acquire] };
    assert_eq!(calls, [&run, duplicate].concat());
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_that_waited_gets_it_too() {
    let service = service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        sleep(secs(2)).await;
        Ok::<_, Infallible>(twiml(1))
    });
    let layer = replaying(MemoryStore::new()).in_flight(InFlight::Wait {
        max: secs(60),
        then: AfterWait::RetryLater,
    });
    let service = layer.layer(service);
    let first = send_later(&service, post("e1"));
    sleep(secs(1)).await;
    assert_replayed(&send(&service, post("e1")).await);
    assert_eq!(first.await.unwrap().brief(), (201, "run"));
}

#[tokio::test(start_paused = true)]
async fn the_answer_of_a_run_without_a_sender_is_stored() {
    let handler = answering(|run| {
        let mut response = twiml(1);
        if run == 1 {
            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        }
        response
    });
    let inner = handler.clone();
    let inner = service_fn(move |request| {
        let answer = inner.clone().oneshot(request);
        async move {
            sleep(secs(2)).await;
            answer.await
        }
    });
    let layer = replaying(MemoryStore::new());
    let service = layer.layer(inner);
    let first = send_later(&service, post("e1"));
    sleep(secs(1)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    assert_eq!(first.await.unwrap().brief(), (500, "run"));
    assert!(layer.drain_handle().drain(secs(600)).await.is_complete());
    assert_eq!(handler.runs(), 2);
    assert_replayed(&send(&service, post("e1")).await);
}

#[tokio::test(start_paused = true)]
async fn only_the_same_request_gets_it() {
    let layer = replaying(MemoryStore::new()).applies_to(|_| true);
    let service = layer.layer(answering(twiml));
    let request = |method: Method, uri: &str, body: &str| {
        let mut request = post_body(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri.parse().unwrap();
        request
    };
    let body = r#"{"id":"e1","n":1}"#;
    let first = request(Method::POST, "/hooks/x?a=1", body);
    assert_eq!(send(&service, first).await.brief(), (201, "run"));
    for (method, uri, body) in [
        (Method::PUT, "/hooks/x?a=1", body),
        (Method::POST, "/hooks/y?a=1", body),
        (Method::POST, "/hooks/x?a=2", body),
        (Method::POST, "/hooks/x?", body),
        (Method::POST, "/hooks/x", body),
        (Method::POST, "/hooks/x?a=1", r#"{"id":"e1","n":2}"#),
    ] {
        assert_plain(&send(&service, request(method, uri, body)).await);
    }
    let again = request(Method::POST, "/hooks/x?a=1", body);
    assert_replayed(&send(&service, again).await);
    // Another namespace is another event.
    let other = layer.namespace("other").layer(answering(twiml));
    let elsewhere = request(Method::POST, "/hooks/x?a=1", body);
    assert_eq!(send(&other, elsewhere).await.brief(), (201, "run"));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_complete_the_event_is_not_kept() {
    let handler = answering(|run| {
        let mut response = twiml(run);
        if run == 1 {
            *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    });
    let layer = replaying(MemoryStore::new());
    let service = layer.clone().layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (201, "run"));
    assert_eq!(handler.runs(), 2);
    // Nor is one that ends it for want of a better.
    let service = layer.give_up_after(1).layer(answering(|_| {
        let mut response = twiml(1);
        *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        response
    }));
    assert_eq!(send(&service, post("e2")).await.brief(), (200, "gave-up"));
    assert_plain(&send(&service, post("e2")).await);
}
