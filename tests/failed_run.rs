//! Promise 3: a failed run never looks done, and the event stays runnable.

use std::{
    error::Error,
    fmt,
    future::{Future, pending, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Full, StreamBody, combinators::UnsyncBoxBody};
use tokio::{sync::Notify, time::sleep};
use tower::{Layer, ServiceExt, service_fn, timeout::TimeoutLayer};
use tower_http::catch_panic::CatchPanicLayer;
use tower_webhook_dedup::{
    Dedup, DedupEvent, Delivery, Entry, EventId, InFlight, Key, LeaseStore, Limits, OnDisconnect,
    Operation, RequestBody, WebhookDedupLayer,
};

use http_support::{
    Events, Handler, Run, by_id, e1, is, millis, poll_until, post, secs, send, send_later,
};
use runtime::paused_runtime;
use stores::{Fault, Faulty, MemoryStore};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/runtime.rs"]
mod runtime;
#[path = "support/stores.rs"]
mod stores;

/// `C0` with a lease so long that only a release explains that an event runs again.
fn long_lease<St: LeaseStore>(store: St) -> WebhookDedupLayer<St> {
    by_id(store).lease(secs(3600))
}

/// R3
#[tokio::test(start_paused = true)]
async fn an_event_is_done_only_after_its_handler_succeeded() {
    let store = Faulty::new();
    let handler = Handler::statuses([500, 200]);
    let service = long_lease(store.clone()).layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
    let Some(Entry::Failed {
        attempts, status, ..
    }) = store.entry(&e1()).await
    else {
        panic!("not failed");
    };
    assert_eq!((attempts, status), (1, Some(500)));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(handler.runs(), 2);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(handler.runs(), 2);
}

/// R3: a process that dies while the handler runs leaves no record.
#[tokio::test(start_paused = true)]
async fn a_running_event_is_not_recorded_as_done() {
    let store = Faulty::new();
    let handler = Handler::new(|_| pending());
    let service = long_lease(store.clone()).layer(handler.clone());
    send_later(&service, post("e1"));
    handler.began(1).await;
    assert!(matches!(
        store.entry(&e1()).await,
        Some(Entry::Running { .. })
    ));
}

/// R15
#[tokio::test(start_paused = true)]
async fn only_2xx_completes_an_event() {
    for status in [301, 304, 400, 401, 404, 409, 422, 429, 500, 502, 503] {
        let handler = Handler::statuses([status, 200]);
        let service = long_lease(MemoryStore::new()).layer(handler.clone());
        assert_eq!(send(&service, post("e1")).await.brief(), (status, "run"));
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
        assert_eq!(handler.runs(), 2);
    }
    for status in [200, 201, 202, 204] {
        let service = long_lease(MemoryStore::new()).layer(Handler::statuses([status]));
        assert_eq!(send(&service, post("e1")).await.brief(), (status, "run"));
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    }
}

/// R15
#[tokio::test(start_paused = true)]
async fn which_answers_complete_an_event_is_the_users_choice() {
    let handler = Handler::statuses([200, 410]);
    let service = long_lease(MemoryStore::new())
        .completed_when(|parts| parts.status == 410)
        .layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (410, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
}

/// Fails each time, and keeps which attempts it was told of.
fn failing() -> (Handler, Arc<Mutex<Vec<u32>>>) {
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let told = attempts.clone();
    let handler = Handler::new(move |run: Run| {
        told.lock().unwrap().push(run.delivery().attempt());
        std::future::ready(500)
    });
    (handler, attempts)
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_which_attempt_it_is() {
    let (handler, attempts) = failing();
    let service = long_lease(MemoryStore::new()).layer(handler);
    for _ in 0..3 {
        send(&service, post("e1")).await;
    }
    assert_eq!(*attempts.lock().unwrap(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn failed_attempts_are_counted_for_a_day() {
    let day = secs(24 * 3600);
    let (handler, attempts) = failing();
    let layer = long_lease(MemoryStore::new()).retention(4 * day);
    let service = layer.layer(handler);
    for pause in [day - secs(1), day + secs(1), secs(0)] {
        send(&service, post("e1")).await;
        sleep(pause).await;
    }
    assert_eq!(*attempts.lock().unwrap(), [1, 2, 1]);
}

/// Panics first, and then does as it should.
fn panicking() -> Handler {
    Handler::new(|run: Run| async move {
        sleep(millis(10)).await;
        assert!(run.n > 1, "a handler that panics");
        200
    })
}

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

#[derive(Debug, PartialEq)]
struct Refused(&'static str);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for Refused {}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_handler_comes_out_unchanged_and_releases_the_event() {
    let store = Faulty::new();
    let fails = Arc::new(AtomicBool::new(true));
    let inner = service_fn(move |_: Request<RequestBody<Full<Bytes>>>| {
        let fails = fails.swap(false, Ordering::SeqCst);
        async move {
            if fails {
                return Err(Refused("mine"));
            }
            Ok(Response::new(Full::<Bytes>::default()))
        }
    });
    let service = long_lease(store.clone()).layer(inner);
    let error = service.clone().oneshot(post("e1")).await.unwrap_err();
    assert_eq!(error, Refused("mine"));
    let Some(Entry::Failed { status: None, .. }) = store.entry(&e1()).await else {
        panic!("not failed");
    };
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
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

/// R4 under `Finish`, the default.
#[tokio::test(start_paused = true)]
async fn a_run_whose_sender_hangs_up_goes_on_and_is_recorded() {
    let (store, events) = (Faulty::new(), Events::default());
    let told = Arc::new(Mutex::new(Vec::new()));
    let handler = Handler::new({
        let told = told.clone();
        move |run: Run| {
            let told = told.clone();
            async move {
                let before = run.delivery().is_detached();
                sleep(secs(5)).await;
                told.lock()
                    .unwrap()
                    .push((before, run.delivery().is_detached()));
                200
            }
        }
    });
    let layer = by_id(store.clone()).on_event(events.hook());
    let service = layer.layer(handler.clone());
    poll_until(send(&service, post("e1")), async {
        handler.began(1).await;
        sleep(millis(100)).await;
    })
    .await;
    // Still in flight: longer than the lease, so renewed.
    sleep(secs(4)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    let drained = layer.drain_handle().drain(secs(20)).await;
    assert!(drained.is_complete());
    assert!(matches!(store.entry(&e1()).await, Some(Entry::Done { .. })));
    assert_eq!((handler.runs(), handler.ended()), (1, 1));
    assert_eq!(*told.lock().unwrap(), [(false, true)]);
    assert_eq!(events.count(is!(Detached)), 1);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
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

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_repeated_until_it_is_done() {
    let (store, handler) = (Faulty::new(), Handler::statuses([500, 200]));
    store.plan(|call| match call.operation {
        Operation::Release if call.n < 6 => Fault::UNREACHABLE,
        _ => Fault::None,
    });
    let service = long_lease(store.clone()).layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
    sleep(secs(4)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

/// Beyond the cap a handler is cancelled with its sender.
async fn detached_up_to_one(limits: Limits) {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::new(|_| async {
        sleep(secs(5)).await;
        200
    });
    let layer = long_lease(store.clone())
        .limits(limits)
        .on_event(events.hook());
    let service = layer.layer(handler.clone());
    for n in 1..=2 {
        let sent = send_later(&service, post(&format!("e{n}")));
        handler.began(n).await;
        sent.abort();
        sleep(millis(1)).await;
    }
    assert_eq!(events.count(is!(DetachRefused)), 1);
    assert!(store.entry(&Key::new("t", "e2")).await.is_none());
    let drained = layer.drain_handle().drain(secs(1)).await;
    assert_eq!(drained.detached(), [e1()]);
    assert!(!drained.is_complete() && drained.lost().is_empty());
    assert!(layer.drain_handle().drain(secs(20)).await.is_complete());
    assert_eq!((handler.runs(), handler.ended()), (2, 1));
    // Its place is free again.
    let sent = send_later(&service, post("e3"));
    handler.began(3).await;
    sent.abort();
    handler.has_ended(2).await;
}

/// R4
#[tokio::test(start_paused = true)]
async fn runs_go_on_without_senders_up_to_a_number() {
    detached_up_to_one(Limits::default().detached_runs(1)).await;
}

/// R4
#[tokio::test(start_paused = true)]
async fn runs_go_on_without_senders_up_to_the_bytes_that_may_be_held() {
    detached_up_to_one(Limits::default().bytes(2_000)).await;
}

struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_never_returns_is_dropped_at_the_run_limit() {
    let (store, events) = (Faulty::new(), Events::default());
    let dropped = Arc::new(AtomicBool::new(false));
    let handler = Handler::new({
        let dropped = dropped.clone();
        move |run: Run| {
            let flag = Flag(dropped.clone());
            async move {
                let _flag = flag;
                if run.n == 1 {
                    pending::<()>().await;
                }
                200
            }
        }
    });
    let service = by_id(store.clone())
        .run_limit(secs(30))
        .on_event(events.hook())
        .layer(handler.clone());
    let begun = tokio::time::Instant::now();
    let first = send_later(&service, post("e1"));
    sleep(secs(29)).await;
    assert!(!dropped.load(Ordering::SeqCst));
    assert!(matches!(
        store.entry(&e1()).await,
        Some(Entry::Running { .. })
    ));
    let first = first.await.unwrap();
    assert_eq!(first.brief(), (504, "run"));
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(events.count(is!(RunLimit)), 1);
    let Some(Entry::Failed { status: None, .. }) = store.entry(&e1()).await else {
        panic!("not released");
    };
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

/// Also without a sender.
#[tokio::test(start_paused = true)]
async fn a_detached_run_ends_at_the_run_limit() {
    let store = Faulty::new();
    let handler = Handler::new(|_| pending());
    let layer = by_id(store.clone()).run_limit(secs(30));
    let service = layer.layer(handler.clone());
    poll_until(send(&service, post("e1")), handler.began(1)).await;
    assert!(layer.drain_handle().drain(secs(31)).await.is_complete());
    assert!(matches!(
        store.entry(&e1()).await,
        Some(Entry::Failed { .. })
    ));
}

/// A panic of a detached run is nobody's to see, and releases all the same.
#[tokio::test(start_paused = true)]
async fn a_panic_of_a_detached_run_releases_the_event() {
    let (store, handler) = (Faulty::new(), panicking());
    let layer = long_lease(store.clone());
    let service = layer.layer(handler.clone());
    poll_until(send(&service, post("e1")), handler.began(1)).await;
    sleep(millis(500)).await;
    assert!(store.entry(&e1()).await.is_none());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

/// A request that is in its handler, on a runtime that has ended since.
fn orphan(store: &Faulty, events: &Events) -> impl Future + Send + use<> {
    let handler = Handler::new(|_| pending());
    let service = by_id(store.clone())
        .on_event(events.hook())
        .layer(handler.clone());
    let mut answer = Box::pin(service.oneshot(post("e1")));
    paused_runtime().block_on(poll_until(&mut answer, handler.began(1)));
    answer
}

/// R70
#[test]
fn a_run_that_is_dropped_outside_a_runtime_leaves_its_lease_to_run_out() {
    let (store, events) = (Faulty::new(), Events::default());
    let answer = orphan(&store, &events);
    std::thread::spawn(move || drop(answer)).join().unwrap();
    paused_runtime().block_on(async {
        // Another runtime's paused clock: the lease is two seconds long.
        sleep(secs(3)).await;
        let service = by_id(store.elsewhere()).layer(Handler::ok());
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    });
}

/// R70
#[test]
fn a_run_that_is_dropped_by_a_panic_outside_a_runtime_does_not_abort_the_process() {
    let answer = orphan(&Faulty::new(), &Events::default());
    let panicked = std::thread::spawn(move || {
        let _answer = answer;
        panic!("with a request in hand");
    });
    assert!(panicked.join().is_err());
}

/// R70
#[test]
fn a_run_that_is_dropped_by_a_panic_inside_a_runtime_goes_on() {
    paused_runtime().block_on(async {
        let (store, handler) = (Faulty::new(), Handler::first_then(secs(5), 200, 200));
        let service = by_id(store.clone()).layer(handler.clone());
        let mut answer = Box::pin(service.clone().oneshot(post("e1")));
        poll_until(&mut answer, handler.began(1)).await;
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _answer = answer;
            panic!("with a request in hand");
        }));
        assert!(panicked.is_err());
        handler.has_ended(1).await;
        sleep(millis(1)).await;
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    });
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

/// The handler of a request that came without an id is not told of a delivery.
#[tokio::test(start_paused = true)]
async fn what_is_said_of_a_delivery_is_true() {
    let handler = Handler::new(|run: Run| async move {
        let delivery: Delivery = run.delivery();
        assert_eq!(delivery.event_id(), "e1");
        assert_eq!(delivery.key(), &e1());
        assert!(delivery.is_protected() && !delivery.is_by_body() && !delivery.is_detached());
        200
    });
    let service = long_lease(MemoryStore::new()).layer(handler);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}
