//! R4: a sender that hangs up, at each step of its request.

use std::{future::pending, sync::Arc};

use bytes::Bytes;
use http::Request;
use http_body_util::{StreamBody, combinators::UnsyncBoxBody};
use tokio::{sync::Notify, time::sleep};
use tower::{Layer, ServiceExt, service_fn, timeout::TimeoutLayer};
use tower_webhook_dedup::{Dedup, Entry, InFlight, OnDisconnect, Operation, RequestBody};

use crate::{
    Refused,
    http_support::{Events, Handler, e1, is, millis, poll_until, post, secs, send},
    long_lease,
    stores::{Fault, Faulty, MemoryStore},
};

/// R4: before there is a whole request, nothing has begun.
#[tokio::test(start_paused = true)]
async fn a_sender_that_hangs_up_while_sending_leaves_nothing_behind() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    let inner = service_fn({
        let handler = handler.clone();
        move |request: Request<RequestBody<UnsyncBoxBody<Bytes, std::io::Error>>>| {
            assert!(request.body().bytes().is_some());
            handler
                .clone()
                .oneshot(request.map(|_| unreachable!("it never comes so far")))
        }
    });
    let service = long_lease(store.clone()).layer(inner);
    let half = futures_util::stream::iter([Ok(http_body::Frame::data(Bytes::from("{\"id")))]);
    let half = futures_util::StreamExt::chain(half, futures_util::stream::pending());
    let body = UnsyncBoxBody::new(StreamBody::new(half));
    let request = Request::post("/hooks/x").body(body).unwrap();
    let sending = tokio::spawn(service.oneshot(request));
    sleep(secs(1)).await;
    sending.abort();
    sleep(secs(60)).await;
    assert!(store.calls().is_empty());
    assert_eq!(handler.runs(), 0);
}

/// R4: whether or not the command has landed by then, or lands later.
#[tokio::test(start_paused = true)]
async fn a_sender_that_hangs_up_while_its_event_is_acquired_releases_it() {
    for fault in [
        Fault::Hang,
        Fault::HangAfter,
        Fault::Late(millis(100)),
        Fault::Late(millis(900)),
    ] {
        let (store, handler) = (Faulty::new(), Handler::ok());
        store.plan(move |call| match call.operation {
            Operation::Acquire if call.n == 1 => fault,
            _ => Fault::None,
        });
        let service = long_lease(store.clone())
            .in_flight(InFlight::RetryLater)
            .layer(handler.clone());
        poll_until(
            send(&service, post("e1")),
            store.called(Operation::Acquire, 1),
        )
        .await;
        sleep(millis(1_500)).await;
        assert!(store.entry(&e1()).await.is_none(), "{fault:?}");
        assert_eq!(handler.runs(), 0);
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    }
}

/// R4: a timeout outside the layer is a sender that hangs up.
#[tokio::test(start_paused = true)]
async fn a_run_cut_off_by_a_timeout_outside_goes_on_and_fails_as_it_would() {
    let store = Faulty::new();
    let handler = Handler::first_then(secs(5), 500, 200);
    let layer = long_lease(store.clone());
    let service = TimeoutLayer::new(secs(1)).layer(layer.layer(handler.clone()));
    let error = service.clone().oneshot(post("e1")).await.unwrap_err();
    assert!(error.is::<tower::timeout::error::Elapsed>());
    handler.has_ended(1).await;
    sleep(millis(1)).await;
    assert!(matches!(
        store.entry(&e1()).await,
        Some(Entry::Failed { .. })
    ));
    let answer = service.oneshot(post("e1")).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(handler.runs(), 2);
}

/// R4 under `Cancel`.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_cancelled_with_its_sender_releases_the_event() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::first_then(secs(5), 200, 200);
    let service = long_lease(store.clone())
        .on_disconnect(OnDisconnect::Cancel)
        .on_event(events.hook())
        .layer(handler.clone());
    poll_until(send(&service, post("e1")), handler.began(1)).await;
    sleep(millis(100)).await;
    assert!(store.entry(&e1()).await.is_none());
    assert_eq!(events.count(is!(Abandoned)), 1);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    sleep(secs(60)).await;
    assert_eq!((handler.runs(), handler.ended()), (2, 1));
}

/// R4: what succeeded is never released as if it had failed.
#[tokio::test(start_paused = true)]
async fn a_sender_that_hangs_up_while_its_event_is_completed_has_it_completed() {
    for policy in [OnDisconnect::Finish, OnDisconnect::Cancel] {
        for fault in [Fault::Hang, Fault::HangAfter] {
            let (store, handler) = (Faulty::new(), Handler::ok());
            store.plan(move |call| match call.operation {
                Operation::Complete if call.n == 1 => fault,
                _ => Fault::None,
            });
            let layer = long_lease(store.clone()).on_disconnect(policy);
            let service = layer.layer(handler.clone());
            poll_until(
                send(&service, post("e1")),
                store.called(Operation::Complete, 1),
            )
            .await;
            assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
            assert!(layer.drain_handle().drain(secs(20)).await.is_complete());
            assert!(matches!(store.entry(&e1()).await, Some(Entry::Done { .. })));
            assert_eq!(store.count(Operation::Release), 0);
            assert_eq!(handler.runs(), 1);
        }
    }
}

/// R4
#[tokio::test(start_paused = true)]
async fn a_sender_that_hangs_up_while_its_event_is_released_has_it_released() {
    for fault in [Fault::Hang, Fault::HangAfter] {
        let (store, handler) = (Faulty::new(), Handler::statuses([500, 200]));
        store.plan(move |call| match call.operation {
            Operation::Release if call.n == 1 => fault,
            _ => Fault::None,
        });
        let service = long_lease(store.clone()).layer(handler.clone());
        poll_until(
            send(&service, post("e1")),
            store.called(Operation::Release, 1),
        )
        .await;
        sleep(millis(100)).await;
        let Some(Entry::Failed { attempts: 1, .. }) = store.entry(&e1()).await else {
            panic!("{:?}", store.entry(&e1()).await);
        };
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
        // The background repeats itself, and changes nothing by it.
        sleep(secs(10)).await;
        assert!(matches!(store.entry(&e1()).await, Some(Entry::Done { .. })));
    }
}

/// Without HTTP, too.
#[tokio::test(start_paused = true)]
async fn work_that_is_cut_off_is_released() {
    let dedup = Dedup::new(MemoryStore::new());
    let begun = Arc::new(Notify::new());
    let working = tokio::spawn({
        let (dedup, begun) = (dedup.clone(), begun.clone());
        async move {
            let work = || async {
                begun.notify_one();
                pending::<Result<(), Refused>>().await
            };
            dedup.run(&e1(), work).await
        }
    });
    begun.notified().await;
    working.abort();
    sleep(millis(1)).await;
    assert!(dedup.inspect(&e1()).await.unwrap().is_none());
}
