//! No run begins under a lease that has run out.

use std::{
    convert::Infallible,
    future::{pending, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
};

use futures_util::FutureExt;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, ServiceExt};
use tower_webhook_dedup::{Dedup, Key, LeaseStore, Operation, Ran, RunError};

use crate::{
    engine::acquired,
    holder,
    http_support::{Events, Handler, e1, is, millis, post, refusing, secs, send},
    stores::{Fault, Faulty, MemoryStore},
};

/// A process that stands still between an acquire and its reply finds its lease run out: others may
/// have come, run and gone.
#[tokio::test(start_paused = true)]
async fn no_run_begins_under_a_lease_that_ran_out_before_its_reply_was_heard() {
    let store = Faulty::broken(Operation::Acquire, Fault::DelayAfter(millis(10)));
    let (late, next) = (Handler::ok(), Handler::ok());
    let first = refusing(store.clone()).lease(secs(2)).layer(late.clone());
    let second = refusing(store.elsewhere()).layer(next.clone());
    let mut answer = pin!(first.oneshot(post("e1")));
    assert!(answer.as_mut().now_or_never().is_none());
    assert!(holder(&store).await.is_some(), "it has landed");
    // Nothing of the first process is polled meanwhile.
    advance(secs(2)).await;
    assert_eq!(send(&second, post("e1")).await.brief(), (200, "run"));
    let response = answer.await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!((late.runs(), next.runs()), (0, 1));
}

/// Whether nothing in the background of this process is polled: as when it stands still.
fn stands_still<St: LeaseStore>(dedup: &Dedup<St>) -> Arc<AtomicBool> {
    let still = Arc::new(AtomicBool::new(false));
    let told = still.clone();
    dedup.wrap_tasks(move |mut task| {
        let still = told.clone();
        Box::pin(poll_fn(move |cx| {
            if still.load(Ordering::SeqCst) {
                // Until it goes on, it looks again whenever something else does.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            task.as_mut().poll(cx)
        }))
    });
    still
}

#[tokio::test(start_paused = true)]
async fn a_run_that_begins_late_is_renewed_for_as_long_as_it_may_take() {
    let (store, events) = (Faulty::new(), Events::default());
    let dedup = Dedup::new(store.clone())
        .lease(secs(6))
        .run_limit(secs(11))
        .on_event(events.hook());
    let still = stands_still(&dedup);
    still.store(true, Ordering::SeqCst);
    let key = e1();
    let mut run = pin!(dedup.run(&key, || async {
        sleep(millis(10_900)).await;
        Ok::<_, Infallible>(())
    }));
    assert!((&mut run).now_or_never().is_none());
    advance(millis(5_900)).await;
    still.store(false, Ordering::SeqCst);
    let ran = run.await;
    assert!(matches!(ran, Ok(Ran::Completed(()))), "{ran:?}");
    assert_eq!(events.count(is!(LeaseLost)), 0);
}

/// The same where the heartbeat is asleep until another lease is due, and nobody waits for it.
#[tokio::test(start_paused = true)]
async fn no_run_begins_late_where_the_heartbeat_need_not_be_woken() {
    let store = Faulty::with(|call| match (call.operation, call.n) {
        (Operation::Acquire, 2) => Fault::DelayAfter(millis(10)),
        _ => Fault::None,
    });
    let (slow, other) = (Dedup::new(store.clone()), Dedup::new(store.elsewhere()));
    let still = stands_still(&slow);
    let _lease = acquired(&slow, &Key::new("t", "e0")).await;
    sleep(millis(1)).await;
    still.store(true, Ordering::SeqCst);
    let (slow, key, runs) = (slow.lease(secs(3600)), e1(), AtomicUsize::new(0));
    let run = || async {
        runs.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Infallible>(())
    };
    let mut late = pin!(slow.run(&key, run));
    assert!((&mut late).now_or_never().is_none());
    advance(secs(3600)).await;
    let ran = other.run(&key, run).await;
    assert!(matches!(ran, Ok(Ran::Completed(()))), "{ran:?}");
    let ran = late.await;
    assert!(matches!(ran, Err(RunError::Store(_))), "{ran:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn no_run_begins_under_a_lease_that_ran_out_before_the_handler_was_called() {
    let store = MemoryStore::new();
    let dedup = |store: &MemoryStore| Dedup::new(store.clone()).lease(secs(2));
    let (slow, other) = (dedup(&store), dedup(&store));
    slow.wrap_tasks(|_| Box::pin(pending()));
    let (key, runs) = (e1(), AtomicUsize::new(0));
    let run = || async {
        runs.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Infallible>(())
    };

    let mut late = pin!(slow.run(&key, run));
    assert!((&mut late).now_or_never().is_none());
    assert!(store.inspect(&key, Instant::now()).await.unwrap().is_some());
    advance(secs(2)).await;
    assert!(matches!(other.run(&key, run).await, Ok(Ran::Completed(()))));
    assert!(matches!(late.await, Ok(Ran::InFlight { .. })));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}
