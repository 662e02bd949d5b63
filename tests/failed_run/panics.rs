//! A panic, of the handler or of what the user set, goes on and holds no event.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};
use tower_http::catch_panic::CatchPanicLayer;
use tower_webhook_dedup::{DedupEvent, Entry, EventId, RequestBody, WebhookDedupLayer};

use crate::{
    Refused,
    http_support::{Events, Handler, e1, is, millis, post, secs, send, send_later},
    long_lease, panicking,
    stores::{Faulty, MemoryStore},
};

/// R14
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_handler_goes_on_and_releases_the_event() {
    let (handler, events) = (panicking(), Events::default());
    let service = long_lease(MemoryStore::new())
        .on_event(events.hook())
        .layer(handler.clone());
    let panicked = send_later(&service, post("e1")).await.unwrap_err();
    let message = *panicked.into_panic().downcast::<&str>().unwrap();
    assert_eq!(message, "a handler that panics");
    sleep(millis(500)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(handler.runs(), 2);
    assert_eq!(events.count(is!(Abandoned)), 1);
}

/// R14 (a)
#[tokio::test(start_paused = true)]
async fn a_panic_that_is_caught_outside_releases_the_event() {
    let handler = panicking();
    let layer = long_lease(MemoryStore::new());
    let service = CatchPanicLayer::new().layer(layer.layer(handler.clone()));
    assert_eq!(send(&service, post("e1")).await.status, 500);
    sleep(millis(500)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(handler.runs(), 2);
}

/// R14 (b)
#[tokio::test(start_paused = true)]
async fn a_panic_that_is_caught_inside_is_a_failed_run() {
    let handler = panicking();
    let store = Faulty::new();
    let service = long_lease(store.clone()).layer(CatchPanicLayer::new().layer(handler.clone()));
    assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
    assert!(matches!(
        store.entry(&e1()).await,
        Some(Entry::Failed { .. })
    ));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(handler.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_judging_an_answer_releases_the_event() {
    let (store, once) = (Faulty::new(), AtomicBool::new(true));
    let service = long_lease(store.clone())
        .completed_when(move |parts| {
            assert!(!once.swap(false, Ordering::SeqCst), "a rule that panics");
            parts.status.is_success()
        })
        .layer(Handler::ok());
    let panicked = send_later(&service, post("e1")).await;
    assert!(panicked.unwrap_err().is_panic());
    sleep(millis(500)).await;
    assert!(store.entry(&e1()).await.is_none());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_identifying_an_event_touches_nothing() {
    let id = EventId::custom(|_, _| panic!("an id that panics"));
    let store = Faulty::new();
    let by_id = WebhookDedupLayer::new(store.clone(), id).layer(Handler::ok());
    let by_namespace = long_lease(store.clone())
        .namespace_with(|_| panic!("a namespace that panics"))
        .layer(Handler::ok());
    for service in [by_id, by_namespace] {
        let panicked = send_later(&service, post("e1")).await;
        assert!(panicked.unwrap_err().is_panic());
    }
    sleep(secs(1)).await;
    assert!(store.calls().is_empty());
}

/// A metric that cannot be counted is no reason to fail, or to hold, an event.
#[tokio::test(start_paused = true)]
async fn a_panic_while_reporting_any_event_changes_nothing() {
    for status in [200, 500] {
        let reported = Arc::new(AtomicUsize::new(0));
        let count = reported.clone();
        let service = long_lease(MemoryStore::new())
            .on_event(move |event| {
                count.fetch_add(1, Ordering::SeqCst);
                panic!("a hook that panics on {event:?}");
            })
            .layer(Handler::statuses([status, 200]));
        assert_eq!(send(&service, post("e1")).await.brief(), (status, "run"));
        let outcome = if status == 200 { "duplicate" } else { "run" };
        assert_eq!(send(&service, post("e1")).await.brief(), (200, outcome));
        assert!(reported.load(Ordering::SeqCst) > 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_reporting_a_panic_does_not_abort_the_process() {
    let service = long_lease(MemoryStore::new())
        .on_event(|event| {
            let cut_off = matches!(event, DedupEvent::Abandoned { .. });
            assert!(!cut_off, "a hook that panics");
        })
        .layer(panicking());
    let panicked = send_later(&service, post("e1")).await.unwrap_err();
    let message = *panicked.into_panic().downcast::<&str>().unwrap();
    assert_eq!(message, "a handler that panics");
    sleep(millis(500)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

/// A future that panicked has been dropped with the panic: no task polls it again.
#[tokio::test(start_paused = true)]
async fn a_future_that_panicked_is_not_moved_into_a_task() {
    let (store, events) = (Faulty::new(), Events::default());
    let service = long_lease(store).on_event(events.hook()).layer(service_fn(
        |_: Request<RequestBody<Full<Bytes>>>| async {
            assert!(secs(1) > secs(2), "a handler that panics");
            Ok::<_, Refused>(Response::new(Full::<Bytes>::default()))
        },
    ));
    let mut answer = Box::pin(service.oneshot(post("e1")));
    let panicked = poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx)));
        match polled {
            Ok(_) => Poll::Pending,
            Err(_) => Poll::Ready(()),
        }
    });
    panicked.await;
    drop(answer);
    sleep(secs(1)).await;
    assert_eq!(events.count(is!(Detached)), 0);
}
