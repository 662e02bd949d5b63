//! An event that cannot be acquired is refused or forwarded, and not blocked by it.

use tokio::time::{Instant, sleep, timeout};
use tower::Layer;
use tower_webhook_dedup::{DedupEvent, Operation, StoreErrorKind, StoreFailure};

use crate::{
    AT_MOST,
    http_support::{Events, Handler, Run, e1, millis, post, refusing, secs, send},
    store_error,
    stores::{Fault, Faulty},
};

const KINDS: [StoreErrorKind; 6] = [
    StoreErrorKind::Unreachable,
    StoreErrorKind::TimedOut,
    StoreErrorKind::ReadOnly,
    StoreErrorKind::OutOfMemory,
    StoreErrorKind::Denied,
    StoreErrorKind::BadReply,
];

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
