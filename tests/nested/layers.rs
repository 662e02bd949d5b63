//! Where layers tell events by the same key, the run of the outer one is no other attempt to the inner
//! one; and the outer one records nothing whose end nobody knows yet.

use std::{convert::Infallible, fmt::Debug};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use tower::{Layer, Service, util::MapRequestLayer};
use tower_webhook_dedup::{
    Entry, LeaseStore, Operation, RequestBody, StoreFailure, WebhookDedupLayer,
};

use crate::{
    http_support::{Handler, by_id, c0, e1, in_flight_policies, post, secs, send, send_later},
    stores::{Fault, Faulty},
};

/// Both layers around the handler.
fn nest<A: LeaseStore, B: LeaseStore>(
    outer: &WebhookDedupLayer<A>,
    inner: &WebhookDedupLayer<B>,
    handler: &Handler,
) -> impl Service<
    Request<Full<Bytes>>,
    Response = Response<impl Body<Data = Bytes, Error: Debug> + Send + 'static + use<A, B>>,
    Error = Infallible,
    Future: Send,
>
+ Clone
+ Send
+ 'static
+ use<A, B> {
    let between = MapRequestLayer::new(|request: Request<RequestBody<Full<Bytes>>>| {
        request.map(|body| Full::new(body.bytes().unwrap().clone()))
    });
    outer.layer(between.layer(inner.layer(handler.clone())))
}

#[tokio::test(start_paused = true)]
async fn a_layer_inside_itself_runs_each_event_once() {
    for policy in in_flight_policies() {
        let (store, handler) = (Faulty::new(), Handler::ok());
        let layer = by_id(store.clone()).in_flight(policy);
        let service = nest(&layer, &layer.clone(), &handler);
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
        assert_eq!(handler.runs(), 1, "{policy:?}");
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
        assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
        assert_eq!(handler.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn layers_of_one_namespace_inside_each_other_run_each_event_once() {
    for policy in in_flight_policies() {
        let (store, handler) = (Faulty::new(), Handler::statuses([500, 200]));
        let outer = by_id(store.clone());
        let inner = by_id(store.elsewhere()).in_flight(policy);
        let service = nest(&outer, &inner, &handler);
        assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
        assert_eq!(handler.runs(), 2, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_of_the_outer_layer_runs_its_event_inside() {
    let (store, handler) = (Faulty::new(), Handler::first_then(secs(1), 500, 200));
    let layer = by_id(store.clone());
    let service = nest(&layer, &layer, &handler);
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    assert_eq!(first.await.unwrap().brief(), (500, "run"));
    assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    assert_eq!(handler.runs(), 2);
    assert!(matches!(store.entry(&e1()).await, Some(Entry::Done { .. })));
}

/// The outer layer goes ahead without knowing whether it holds the event. It does.
#[tokio::test(start_paused = true)]
async fn an_unprotected_run_of_the_outer_layer_gets_through() {
    let store = Faulty::with(|call| match (call.operation, call.n) {
        (Operation::Acquire, 1) => Fault::HangAfter,
        _ => Fault::None,
    });
    let handler = Handler::ok();
    let layer = by_id(store.clone()).store_failure(StoreFailure::Forward);
    let service = nest(&layer, &layer, &handler);
    let answer = send(&service, post("e1")).await;
    assert_eq!(answer.brief(), (200, "unprotected"));
    assert_eq!(handler.runs(), 1);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
}

#[tokio::test(start_paused = true)]
async fn what_holds_the_event_in_another_store_is_another_attempt() {
    let (here, shared, handler) = (Faulty::new(), Faulty::new(), Handler::ok());
    let token = shared.hold(&e1(), secs(3600)).await;
    let service = nest(&by_id(here.clone()), &by_id(shared.clone()), &handler);
    // Acknowledged, it would be done here, whatever becomes of it there.
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "run"));
    shared.let_go(&e1(), token).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(handler.runs(), 1);
}

/// Another body makes another event outside, and the same one inside.
#[tokio::test(start_paused = true)]
async fn what_is_in_flight_by_another_key_is_not_done_outside() {
    for policy in in_flight_policies() {
        let (store, handler) = (Faulty::new(), Handler::ok());
        let token = store.hold(&e1(), secs(3600)).await;
        let inner = by_id(store.clone()).in_flight(policy);
        let service = nest(&c0(store.clone()), &inner, &handler);
        assert_eq!(send(&service, post("e1")).await.brief(), (503, "run"));
        assert!(inner.drain_handle().drain(secs(0)).await.is_complete());
        store.let_go(&e1(), token).await;
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
        assert_eq!(handler.runs(), 1, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_tell_whose_run_it_is_acknowledges_nothing() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    for policy in in_flight_policies() {
        store.breaks(Operation::Inspect, Fault::UNREACHABLE);
        let layer = by_id(store.clone()).in_flight(policy);
        let service = nest(&layer, &layer, &handler);
        assert_eq!(send(&service, post("e1")).await.brief(), (503, "run"));
        assert_eq!(handler.runs(), 0);
    }
    store.heal();
    let layer = by_id(store.clone());
    let service = nest(&layer, &layer, &handler);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn where_the_store_cannot_tell_its_policy_decides() {
    let fault = Fault::UNREACHABLE;
    let (store, handler) = (Faulty::broken(Operation::Inspect, fault), Handler::ok());
    let layer = by_id(store.clone()).store_failure(StoreFailure::Forward);
    let service = nest(&layer, &layer, &handler);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(handler.runs(), 1);
}
