//! Promise 5: trouble in the store becomes an answer, never a hang.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_webhook_dedup::{
    DedupEvent, Entry, Error, Key, OnDisconnect, Operation, Outcome, Refusal, RequestBody,
    ResponseBody, StoreErrorKind, StoreFailure, Unprotected,
};

use http_support::{
    Answer, Events, Handler, Run, e1, is, millis, post, refusing, secs, send, send_later,
};
use stores::{Fault, Faulty};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

/// The store timeout of `C0`, and the slack on it.
const AT_MOST: Duration = millis(300 + 100);

const KINDS: [StoreErrorKind; 6] = [
    StoreErrorKind::Unreachable,
    StoreErrorKind::TimedOut,
    StoreErrorKind::ReadOnly,
    StoreErrorKind::OutOfMemory,
    StoreErrorKind::Denied,
    StoreErrorKind::BadReply,
];

fn store_error(answer: &Answer) -> Error {
    match answer.outcome() {
        Outcome::Refused(Refusal::StoreFailed { error, .. })
        | Outcome::Unprotected(Unprotected::StoreFailed(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// R28, R47
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_refused_within_its_timeout() {
    let handler = Handler::ok();
    let store = Faulty::with(|_| Fault::Hang);
    let service = refusing(store.clone()).layer(handler.clone());
    for _ in 0..2 {
        let asked = Instant::now();
        let answer = send(&service, post("e1")).await;
        assert!(asked.elapsed() <= AT_MOST, "{:?}", asked.elapsed());
        assert_eq!(answer.brief(), (503, "refused"));
        assert_eq!(answer.header("retry-after"), Some("1"));
        let error = store_error(&answer);
        assert_eq!(error.kind(), StoreErrorKind::TimedOut);
        assert_eq!(error.operation(), Operation::Acquire);
    }
    assert_eq!(handler.runs(), 0);
    // And for the very events that were refused meanwhile.
    store.heal();
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
}

/// R47
#[tokio::test(start_paused = true)]
async fn five_hundred_requests_of_a_store_that_hangs_are_answered_within_its_timeout() {
    let store = Faulty::with(|_| Fault::Late(secs(3)));
    let service = refusing(store.clone()).layer(Handler::ok());
    let asked = Instant::now();
    let mut answers = JoinSet::new();
    for n in 0..500 {
        answers.spawn(send(&service, post(&format!("e{n}"))));
    }
    let answers = answers.join_all().await;
    assert!(asked.elapsed() <= AT_MOST, "{:?}", asked.elapsed());
    assert!(answers.iter().all(|it| it.brief() == (503, "refused")));
    // None of their late keys outlives a lease.
    store.heal();
    sleep(secs(3 + 2)).await;
    for n in 0..500 {
        let entry = store.entry(&Key::new("t", format!("e{n}"))).await;
        assert!(entry.is_none());
    }
}

/// The engine's own deadline: what is not reached by the store's timeout.
#[tokio::test(start_paused = true)]
async fn a_handlers_answer_waits_for_a_hanging_store_no_longer_than_its_timeout() {
    for (status, operation) in [
        (200, Operation::Complete),
        (500, Operation::Release),
        (200, Operation::Renew),
    ] {
        for fault in [Fault::Hang, Fault::HangAfter] {
            let store = Faulty::broken(operation, fault);
            let handler = Handler::first_then(secs(1), status, status);
            let service = refusing(store).layer(handler);
            let asked = Instant::now();
            let answer = send(&service, post("e1")).await;
            assert_eq!(answer.brief(), (status, "run"));
            assert!(asked.elapsed() <= secs(1) + AT_MOST);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn looking_at_an_event_fails_within_the_timeout_of_its_store() {
    let dedup = refusing(Faulty::with(|_| Fault::Hang)).dedup();
    let asked = Instant::now();
    let error = dedup.inspect(&e1()).await.unwrap_err();
    assert_eq!(error.operation(), Operation::Inspect);
    let error = dedup.forget(&e1(), true).await.unwrap_err();
    assert_eq!(error.operation(), Operation::Forget);
    assert_eq!(error.kind(), StoreErrorKind::TimedOut);
    assert!(asked.elapsed() <= AT_MOST * 2);
}

#[tokio::test(start_paused = true)]
async fn the_policy_meets_each_kind_of_trouble_by_name() {
    for kind in KINDS {
        let (store, events) = (
            Faulty::broken(Operation::Acquire, Fault::Before(kind)),
            Events::default(),
        );
        let handler = Handler::ok();
        let service = refusing(store.clone())
            .on_event(events.hook())
            .layer(handler.clone());
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (503, "refused"));
        assert_eq!(store_error(&answer).kind(), kind);
        // Which store, and how it failed, is not the sender's business.
        assert!(!answer.body.contains("store") && !answer.body.contains("planned"));
        let reported = events.all().into_iter().any(|(_, event)| {
            matches!(event, DedupEvent::StoreFailed { key, error }
                if key == e1() && error.kind() == kind)
        });
        assert!(reported);
        assert_eq!(handler.runs(), 0);

        // Nothing can have landed, so nothing is released.
        sleep(secs(5)).await;
        assert_eq!(store.count(Operation::Release), 0);
    }
}

/// R28
#[tokio::test(start_paused = true)]
async fn forwarded_past_a_failing_store_a_request_runs_each_time() {
    for fault in [
        Fault::Hang,
        Fault::HangAfter,
        Fault::UNREACHABLE,
        Fault::After(StoreErrorKind::Unreachable),
    ] {
        let store = Faulty::with(move |_| fault);
        let handler = Handler::new(|run: Run| async move {
            assert!(!run.delivery().is_protected());
            assert_eq!(run.delivery().event_id(), "e1");
            let lost = timeout(secs(1), run.delivery().lease_lost()).await;
            assert!(lost.is_err(), "there is no lease to lose");
            200
        });
        let service = refusing(store.clone())
            .store_failure(StoreFailure::Forward)
            .layer(handler.clone());
        let asked = Instant::now();
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (200, "unprotected"), "{fault:?}");
        assert_eq!(answer.body, "from the handler");
        assert_eq!(store_error(&answer).operation(), Operation::Acquire);
        assert!(asked.elapsed() <= secs(1) + AT_MOST * 2);
        assert_eq!(store.count(Operation::Renew), 0);
        if matches!(fault, Fault::Before(_)) {
            send(&service, post("e1")).await;
            assert_eq!(handler.runs(), 2);
        }
    }
}

/// An acquire that landed, but whose reply was lost, must not block the event for a lease.
#[tokio::test(start_paused = true)]
async fn an_acquire_without_a_reply_is_released_in_the_background() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Acquire if call.n == 1 => Fault::After(StoreErrorKind::Unreachable),
        _ => Fault::None,
    });
    let service = refusing(store.clone())
        .lease(secs(3600))
        .layer(Handler::ok());
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "refused"));
    sleep(millis(10)).await;
    assert!(store.entry(&e1()).await.is_none());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

/// While it fails, too: tried until the lease is over.
#[tokio::test(start_paused = true)]
async fn background_releases_outlast_trouble_and_end_with_the_lease() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Acquire => Fault::HangAfter,
        _ => Fault::UNREACHABLE,
    });
    let layer = refusing(store.clone()).lease(secs(60));
    let service = layer.layer(Handler::ok());
    send(&service, post("e1")).await;
    sleep(secs(30)).await;
    store.heal();
    sleep(secs(2)).await;
    assert!(store.entry(&e1()).await.is_none());

    store.plan(|call| match call.operation {
        Operation::Acquire => Fault::HangAfter,
        _ => Fault::UNREACHABLE,
    });
    send(&service, post("e2")).await;
    // A drain waits for them only briefly: the lease runs out by itself.
    let asked = Instant::now();
    assert!(layer.drain_handle().drain(secs(61)).await.is_complete());
    assert!(asked.elapsed() < secs(4));
}

/// R19
#[tokio::test(start_paused = true)]
async fn a_completion_that_cannot_be_written_is_kept_and_written_later() {
    let (store, events) = (
        Faulty::broken(Operation::Complete, Fault::FULL),
        Events::default(),
    );
    let handler = Handler::first_then(millis(300), 200, 500);
    let layer_here = refusing(store.clone()).on_event(events.hook());
    let here = layer_here.layer(handler.clone());
    let elsewhere = refusing(store.elsewhere()).layer(handler.clone());

    let asked = Instant::now();
    assert_eq!(send(&here, post("e1")).await.brief(), (200, "run"));
    assert!(asked.elapsed() <= millis(300) + AT_MOST);
    for _ in 0..30 {
        sleep(secs(1)).await;
        let acquires = store.count(Operation::Acquire);
        let answer = send(&here, post("e1")).await;
        assert_eq!(answer.brief(), (200, "duplicate"));
        assert_eq!(store.count(Operation::Acquire), acquires, "known here");
        // The lease is two seconds long, and goes on being renewed.
        let answer = send(&elsewhere, post("e1")).await;
        assert_eq!(answer.brief(), (503, "in-flight"));
    }
    store.heal();
    sleep(secs(6)).await;
    assert_eq!(
        send(&elsewhere, post("e1")).await.brief(),
        (200, "duplicate")
    );
    assert_eq!(send(&here, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(handler.runs(), 1);
    assert_eq!(store.count(Operation::Release), 0);
    assert_eq!(
        (
            events.count(is!(CompletionPending)),
            events.count(is!(Completed))
        ),
        (1, 1)
    );
    assert!(layer_here.drain_handle().drain(secs(1)).await.is_complete());
}

/// R19: the reply was lost, and the record is there.
#[tokio::test(start_paused = true)]
async fn a_completion_whose_reply_was_lost_is_written_once() {
    let (store, events) = (Faulty::new(), Events::default());
    store.plan(|call| match call.operation {
        Operation::Complete if call.n < 3 => Fault::After(StoreErrorKind::Unreachable),
        _ => Fault::None,
    });
    let layer = refusing(store.clone()).on_event(events.hook());
    let service = layer.layer(Handler::ok());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert!(layer.drain_handle().drain(secs(20)).await.is_complete());
    assert!(matches!(store.entry(&e1()).await, Some(Entry::Done { .. })));
    assert_eq!(events.count(is!(LeaseLost)), 0);
}

/// R19: another process ran the event meanwhile; its record stands.
#[tokio::test(start_paused = true)]
async fn a_pending_completion_gives_way_to_another_owner() {
    let (store, events) = (Faulty::new(), Events::default());
    store.plan(|call| match call.operation {
        Operation::Complete | Operation::Renew => Fault::UNREACHABLE,
        _ => Fault::None,
    });
    let layer_here = refusing(store.clone()).on_event(events.hook());
    let here = layer_here.layer(Handler::ok());
    send(&here, post("e1")).await;
    sleep(secs(3)).await;
    let elsewhere = refusing(store.elsewhere()).layer(Handler::statuses([202]));
    assert_eq!(send(&elsewhere, post("e1")).await.brief(), (202, "run"));
    store.heal();
    sleep(secs(10)).await;
    let Some(Entry::Done { record, .. }) = store.entry(&e1()).await else {
        panic!("not done");
    };
    assert_eq!(record.status(), Some(202));
    assert_eq!(events.count(is!(LeaseLost)), 1);
    assert!(layer_here.drain_handle().drain(secs(1)).await.is_complete());
}

/// R19: if it never lands, that is reported.
#[tokio::test(start_paused = true)]
async fn a_completion_that_is_never_written_is_dropped_with_a_report_after_ten_minutes() {
    let (store, events) = (
        Faulty::broken(Operation::Complete, Fault::FULL),
        Events::default(),
    );
    let layer = refusing(store.clone()).on_event(events.hook());
    let service = layer.layer(Handler::ok());
    send(&service, post("e1")).await;
    sleep(secs(595)).await;
    assert_eq!(events.count(is!(CompletionDropped)), 0);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    sleep(secs(15)).await;
    assert_eq!(events.count(is!(CompletionDropped)), 1);
    assert_eq!(store.count(Operation::Release), 0);
    assert!(layer.drain_handle().drain(millis(1)).await.is_complete());
}

/// R19
#[tokio::test(start_paused = true)]
async fn beyond_4096_pending_completions_the_oldest_is_dropped_with_a_report() {
    let (store, events) = (
        Faulty::broken(Operation::Complete, Fault::FULL),
        Events::default(),
    );
    let handler = Handler::ok();
    let service = refusing(store.clone())
        .on_event(events.hook())
        .layer(handler.clone());
    for n in 0..4_098 {
        send(&service, post(&format!("e{n}"))).await;
        if n < 3 {
            sleep(millis(1)).await;
        }
    }
    let gone: Vec<_> = events
        .all()
        .into_iter()
        .filter_map(|(_, event)| match event {
            DedupEvent::CompletionDropped { key } => Some(key),
            _ => None,
        })
        .collect();
    assert_eq!(gone, ["e0", "e1"].map(|id| Key::new("t", id)));
    assert_eq!(handler.runs(), 4_098);
}

/// R19
#[tokio::test(start_paused = true)]
async fn an_event_whose_future_is_dropped_while_completing_is_never_released() {
    for policy in [OnDisconnect::Finish, OnDisconnect::Cancel] {
        let store = Faulty::broken(Operation::Complete, Fault::Hang);
        let layer = refusing(store.clone()).on_disconnect(policy);
        let service = layer.layer(Handler::ok());
        let answer = send_later(&service, post("e1"));
        store.called(Operation::Complete, 1).await;
        answer.abort();
        sleep(secs(60)).await;
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
        store.heal();
        assert!(layer.drain_handle().drain(secs(20)).await.is_complete());
        assert!(matches!(store.entry(&e1()).await, Some(Entry::Done { .. })));
        assert_eq!(store.count(Operation::Release), 0);
    }
}

/// R63 meets R19.
#[tokio::test(start_paused = true)]
async fn a_pending_completion_can_be_forgotten() {
    let store = Faulty::broken(Operation::Complete, Fault::FULL);
    let layer = refusing(store.clone());
    let handler = Handler::ok();
    let service = layer.layer(handler.clone());
    send(&service, post("e1")).await;
    assert!(layer.dedup().forget(&e1(), true).await.unwrap());
    store.heal();
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(handler.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_is_a_store_that_failed() {
    for operation in [Operation::Acquire, Operation::Complete, Operation::Release] {
        let status = if operation == Operation::Release {
            500
        } else {
            200
        };
        let store = Faulty::with(move |call| {
            if call.operation == operation && call.n == 1 {
                Fault::Panic
            } else {
                Fault::None
            }
        });
        let handler = Handler::statuses([status, 200]);
        let layer = refusing(store.clone()).lease(secs(3600));
        let service = layer.layer(handler.clone());
        let first = match operation {
            Operation::Acquire => (503, "refused"),
            _ => (status, "run"),
        };
        assert_eq!(send(&service, post("e1")).await.brief(), first);
        sleep(secs(2)).await;
        let brief = match operation {
            Operation::Complete => (200, "duplicate"),
            _ => (200, "run"),
        };
        assert_eq!(send(&service, post("e1")).await.brief(), brief);
        assert!(layer.drain_handle().drain(secs(20)).await.is_complete());
        assert!(matches!(store.entry(&e1()).await, Some(Entry::Done { .. })));
    }
}

/// A background task that dies of a panic is started again by the next in need of it.
#[tokio::test(start_paused = true)]
async fn a_panic_in_the_background_does_not_end_background_work() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Complete if call.n == 2 => Fault::Panic,
        Operation::Complete if call.n < 6 => Fault::UNREACHABLE,
        _ => Fault::None,
    });
    let layer = refusing(store.clone());
    let service = layer.layer(Handler::ok());
    send(&service, post("e1")).await;
    sleep(secs(10)).await;
    send(&service, post("e2")).await;
    sleep(secs(30)).await;
    for id in ["e1", "e2"] {
        let entry = store.entry(&Key::new("t", id)).await;
        assert!(matches!(entry, Some(Entry::Done { .. })), "{id}");
    }
}

/// Something like a transaction per request: what handlers wrote counts only if it commits.
type Ledger = Arc<Mutex<Vec<&'static str>>>;

/// Writes what the handlers below wrote, unless it runs into its own timeout first, or the
/// commit fails.
async fn in_transaction<S, B, R>(
    service: S,
    request: Request<B>,
    ledger: Ledger,
    commits: bool,
) -> Response<R>
where
    S: Service<Request<B>, Response = Response<R>, Error = Infallible>,
    R: Default,
{
    let begun = ledger.lock().unwrap().len();
    let answer = timeout(secs(10), service.oneshot(request)).await;
    match answer {
        Ok(Ok(answer)) if commits => answer,
        _ => {
            ledger.lock().unwrap().truncate(begun);
            let mut rolled_back = Response::new(R::default());
            *rolled_back.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            rolled_back
        }
    }
}

fn writing(ledger: &Ledger, time: Duration) -> Handler {
    let ledger = ledger.clone();
    Handler::new(move |_| {
        let ledger = ledger.clone();
        async move {
            ledger.lock().unwrap().push("paid");
            sleep(time).await;
            200
        }
    })
}

/// The docs' warning, shown: a layer outside that undoes a run which this layer has recorded.
#[tokio::test(start_paused = true)]
async fn a_transaction_outside_the_layer_loses_the_event_when_it_rolls_back() {
    // Its commit fails; or its timeout cuts the handler off, which goes on, and is recorded.
    for (time, commits) in [(millis(1), false), (secs(15), true)] {
        let ledger = Ledger::default();
        let handler = writing(&ledger, time);
        let service = refusing(Faulty::new()).layer(handler.clone());
        let outside = |commits| {
            let ledger = ledger.clone();
            let unit = service
                .clone()
                .map_response(|answer: Response<ResponseBody<Full<Bytes>>>| answer.map(drop));
            in_transaction(unit, post("e1"), ledger, commits)
        };
        assert_eq!(outside(commits).await.status(), 500);
        handler.has_ended(1).await;
        sleep(millis(1)).await;
        let again = outside(true).await;
        assert_eq!(again.headers()["webhook-dedup"], "duplicate");
        assert!(ledger.lock().unwrap().is_empty(), "nothing was paid, ever");
    }
}

/// And the right order.
#[tokio::test(start_paused = true)]
async fn a_transaction_inside_the_layer_runs_again_when_it_rolls_back() {
    let ledger = Ledger::default();
    let handler = writing(&ledger, millis(1));
    let inside = service_fn({
        let (ledger, handler) = (ledger.clone(), handler.clone());
        move |request: Request<RequestBody<Full<Bytes>>>| {
            let commits = handler.runs() > 0;
            let answer = in_transaction(handler.clone(), request, ledger.clone(), commits);
            async move { Ok::<_, Infallible>(answer.await) }
        }
    });
    let service = refusing(Faulty::new()).layer(inside);
    assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
    assert!(ledger.lock().unwrap().is_empty());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(*ledger.lock().unwrap(), ["paid"]);
}

/// Store calls are dropped at their deadline, not left behind.
#[tokio::test(start_paused = true)]
async fn a_process_whose_store_hangs_drains_all_the_same() {
    let store = Faulty::new();
    let layer = refusing(store.clone());
    let service = layer.layer(Handler::statuses([500]));
    store.plan(|call| match call.operation {
        Operation::Acquire => Fault::None,
        _ => Fault::Hang,
    });
    send(&service, post("e1")).await;
    let begun = Instant::now();
    assert!(layer.drain_handle().drain(secs(20)).await.is_complete());
    assert!(begun.elapsed() <= secs(3));
}
