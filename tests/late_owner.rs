//! Promise 4: a late owner does no harm, and learns that it is late.

use std::{
    collections::HashSet,
    convert::Infallible,
    future::{pending, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{
    sync::watch,
    time::{Instant, advance, sleep},
};
use tower::{Layer, ServiceExt};
use tower_webhook_dedup::{
    Begun, Dedup, Entry, Key, LeaseStore, OnDisconnect, Operation, Ran, Record, Release, RunError,
    StoreFailure, Token,
};

use http_support::{Events, Handler, Run, e1, is, millis, post, refusing, secs, send, send_later};
use runtime::paused_runtime;
use stores::{Fault, Faulty, MemoryStore};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/runtime.rs"]
mod runtime;
#[path = "support/stores.rs"]
mod stores;

async fn holder(store: &Faulty) -> Option<Token> {
    match store.entry(&e1()).await {
        Some(Entry::Running { token, .. }) => Some(token),
        _ => None,
    }
}

/// R9: the first owner's lease runs out, a second one takes over, and the first ends late.
async fn a_late_end(status: u16) {
    let (store, events) = (
        Faulty::broken(Operation::Renew, Fault::UNREACHABLE),
        Events::default(),
    );
    let late = Handler::first_then(secs(4), status, 0);
    let next = Handler::first_then(secs(4), 200, 0);
    let first = refusing(store.clone())
        .on_event(events.hook())
        .layer(late.clone());
    let second = refusing(store.elsewhere()).layer(next.clone());

    let first_answer = send_later(&first, post("e1"));
    late.began(1).await;
    let first_token = holder(&store).await.unwrap();
    sleep(millis(2_500)).await;
    let second_answer = send_later(&second, post("e1"));
    next.began(1).await;
    let second_token = holder(&store).await.unwrap();
    assert_ne!(first_token, second_token);

    let first_answer = first_answer.await.unwrap();
    assert_eq!(first_answer.brief(), (status, "run"));
    assert_eq!(
        events.count(is!(LeaseLost)),
        1,
        "at the deadline, and not again"
    );
    assert_eq!(holder(&store).await, Some(second_token));
    for service in [&first, &second] {
        assert_eq!(send(service, post("e1")).await.brief(), (503, "in-flight"));
    }
    assert_eq!(second_answer.await.unwrap().brief(), (200, "run"));
    match store.entry(&e1()).await {
        Some(Entry::Done { token, .. }) => assert_eq!(token, second_token),
        other => panic!("{other:?}"),
    }
    assert_eq!((late.runs(), next.runs()), (1, 1));
}

/// R9
#[tokio::test(start_paused = true)]
async fn a_late_release_leaves_the_next_owners_lease_alone() {
    a_late_end(500).await;
}

/// R9
#[tokio::test(start_paused = true)]
async fn a_late_completion_leaves_the_next_owners_lease_alone() {
    a_late_end(200).await;
}

/// R9: a late completion after the next owner completed, or failed.
#[tokio::test(start_paused = true)]
async fn a_late_completion_counts_only_if_nobody_else_completed() {
    for status in [200, 500] {
        let store = Faulty::broken(Operation::Renew, Fault::UNREACHABLE);
        let late = Handler::first_then(secs(5), 200, 0);
        let first = refusing(store.clone()).layer(late.clone());
        let second = refusing(store.elsewhere()).layer(Handler::statuses([status]));
        let answer = send_later(&first, post("e1"));
        late.began(1).await;
        let token = holder(&store).await.unwrap();
        sleep(secs(3)).await;
        assert_eq!(send(&second, post("e1")).await.brief(), (status, "run"));
        assert_eq!(answer.await.unwrap().brief(), (200, "run"));
        match store.entry(&e1()).await {
            Some(Entry::Done { token: by, .. }) => assert_eq!(by == token, status == 500),
            other => panic!("{other:?}"),
        }
    }
}

/// A handler that stops when its lease is lost, and when that was.
fn watchful() -> (Handler, watch::Receiver<Option<Duration>>) {
    let (lost, told) = watch::channel(None);
    let handler = Handler::new(move |run: Run| {
        let (delivery, lost) = (run.delivery(), lost.clone());
        async move {
            let begun = Instant::now();
            delivery.lease_lost().await;
            lost.send_replace(Some(begun.elapsed()));
            500
        }
    });
    (handler, told)
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_when_the_deadline_of_its_lease_passes() {
    for fault in [Fault::UNREACHABLE, Fault::Hang] {
        let events = Events::default();
        let (handler, told) = watchful();
        let store = Faulty::broken(Operation::Renew, fault);
        let service = refusing(store.clone())
            .on_event(events.hook())
            .layer(handler);
        assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
        let told = told.borrow().unwrap();
        assert!(told >= secs(2) && told <= millis(2_300), "{told:?}");
        assert!(events.count(is!(LeaseLost)) >= 1);
        assert!(store.count(Operation::Renew) > 1);
    }
}

/// The deadline counts from before the acquire was sent, not from its reply.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_lease_counts_from_before_it_was_asked_for() {
    let (handler, told) = watchful();
    let store = Faulty::with(|call| match call.operation {
        Operation::Acquire => Fault::Delay(millis(290)),
        Operation::Renew => Fault::UNREACHABLE,
        _ => Fault::None,
    });
    let service = refusing(store).layer(handler);
    send(&service, post("e1")).await;
    let told = told.borrow().unwrap();
    assert!(told <= millis(1_720), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_when_a_renewal_finds_another_owner() {
    let (handler, told) = watchful();
    let (store, events) = (Faulty::new(), Events::default());
    let service = refusing(store.clone())
        .lease(secs(30))
        .on_event(events.hook())
        .layer(handler.clone());
    let answer = send_later(&service, post("e1"));
    handler.began(1).await;
    let by = Instant::now();
    store.inner.forget(&e1(), true, by).await.unwrap();
    let other = store.hold(&e1(), secs(3600)).await;
    assert_eq!(answer.await.unwrap().brief(), (500, "run"));
    let told = told.borrow().unwrap();
    assert!(told >= secs(10) && told < secs(11), "{told:?}");
    assert_eq!(holder(&store).await, Some(other));
    assert!(events.count(is!(LeaseLost)) >= 1);
}

/// One heartbeat renews both, and is asleep until the long one is due.
#[tokio::test(start_paused = true)]
async fn a_short_lease_beside_a_long_one_is_renewed_in_time() {
    let dedup = Dedup::new(MemoryStore::new());
    let (long, short) = (dedup.clone().lease(secs(3600)), dedup.lease(secs(3)));
    let mut leases = Vec::new();
    for dedup in [long, short] {
        let key = Key::new("t", leases.len().to_string());
        let Ok(Begun::Acquired(lease)) = dedup.begin(&key).await else {
            panic!("not acquired");
        };
        leases.push(lease);
        sleep(secs(10)).await;
    }
    assert!(leases.iter().all(|lease| !lease.is_lost()));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_fine_is_never_lost() {
    let lost = Arc::new(AtomicBool::new(false));
    let handler = Handler::new({
        let lost = lost.clone();
        move |run: Run| {
            let (delivery, lost) = (run.delivery(), lost.clone());
            async move {
                tokio::select! {
                    () = delivery.lease_lost() => lost.store(true, Ordering::SeqCst),
                    () = sleep(secs(200)) => {}
                }
                200
            }
        }
    });
    let (store, events) = (Faulty::new(), Events::default());
    let service = refusing(store.clone())
        .on_event(events.hook())
        .layer(handler);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert!(!lost.load(Ordering::SeqCst));
    assert_eq!(events.count(is!(LeaseLost)), 0);
    // At a third of the lease of two seconds.
    let renewals = store.count(Operation::Renew);
    assert!((290..=310).contains(&renewals), "{renewals}");
}

/// R36: exactly one renewal fails; then all for a second.
#[tokio::test(start_paused = true)]
async fn failing_renewals_are_not_fatal_before_the_deadline() {
    let (store, events) = (Faulty::new(), Events::default());
    let begun = Instant::now();
    store.plan(move |call| {
        let second = call.at - begun >= millis(1_500) && call.at - begun < millis(2_500);
        match call.operation {
            Operation::Renew if call.n == 1 || second => Fault::UNREACHABLE,
            _ => Fault::None,
        }
    });
    let handler = Handler::first_then(secs(5), 200, 0);
    let service = refusing(store.clone())
        .on_event(events.hook())
        .layer(handler.clone());
    let answer = send_later(&service, post("e1"));
    handler.began(1).await;
    for _ in 0..9 {
        sleep(millis(500)).await;
        assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    }
    assert_eq!(answer.await.unwrap().brief(), (200, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(handler.runs(), 1);
    assert_eq!(events.count(is!(LeaseLost)), 0);
    assert!(events.count(is!(StoreFailed)) >= 3);
    // Tried again sooner than at the next third.
    let renewals = store.of(Operation::Renew);
    assert!(renewals[1].at - renewals[0].at < millis(300));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_forgot_everything_gets_the_lease_back_with_the_same_token() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::first_then(secs(10), 200, 0);
    let service = refusing(store.clone())
        .on_event(events.hook())
        .layer(handler.clone());
    let answer = send_later(&service, post("e1"));
    handler.began(1).await;
    let token = holder(&store).await.unwrap();
    let by = Instant::now();
    assert!(store.inner.forget(&e1(), true, by).await.unwrap());
    sleep(secs(1)).await;
    assert_eq!(holder(&store).await, Some(token));
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    assert_eq!(answer.await.unwrap().brief(), (200, "run"));
    assert_eq!(events.count(is!(LeaseLost)), 0);
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_finds_its_own_run_completed_is_no_loss() {
    let store = Faulty::broken(Operation::Renew, Fault::Delay(millis(200)));
    let (events, handler) = (
        Events::default(),
        Handler::first_then(millis(10_100), 200, 200),
    );
    let service = refusing(store.clone())
        .lease(secs(30))
        .on_event(events.hook())
        .layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(store.count(Operation::Renew), 1);
    sleep(secs(1)).await;
    assert_eq!(events.count(is!(LeaseLost)), 0);
}

/// A renewal that was on its way as the run was cut off must not take the event again for good.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_lands_after_the_release_is_released_again() {
    for late in [millis(60), millis(200), millis(800)] {
        let store = Faulty::broken(Operation::Renew, Fault::Late(late));
        let handler = Handler::new(|_| pending());
        let service = refusing(store.clone())
            .lease(secs(30))
            .on_disconnect(OnDisconnect::Cancel)
            .layer(handler.clone());
        let answer = send_later(&service, post("e1"));
        store.called(Operation::Renew, 1).await;
        sleep(millis(50)).await;
        answer.abort();
        sleep(late - millis(50) + millis(5)).await;
        assert!(
            holder(&store).await.is_some(),
            "it landed after the release"
        );
        sleep(secs(2)).await;
        assert!(holder(&store).await.is_none(), "{late:?}");
    }
}

/// A renewal without an answer can still land when one that was sent after it was answered, and the
/// run is over.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_lands_after_later_ones_and_the_release_is_released_again() {
    let store = Faulty::with(|call| match (call.operation, call.n) {
        (Operation::Renew, 1) => Fault::Late(secs(4)),
        _ => Fault::None,
    });
    let service = refusing(store.clone())
        .lease(secs(30))
        .on_disconnect(OnDisconnect::Cancel)
        .layer(Handler::new(|_| pending()));
    let answer = send_later(&service, post("e1"));
    store.called(Operation::Renew, 1).await;
    sleep(millis(3_500)).await;
    assert_eq!(store.count(Operation::Renew), 2);
    answer.abort();
    sleep(millis(100)).await;
    assert!(holder(&store).await.is_none(), "it is released");
    sleep(millis(500)).await;
    assert!(holder(&store).await.is_some(), "the renewal has landed");
    sleep(secs(2)).await;
    assert!(holder(&store).await.is_none());
}

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
    let Ok(Begun::Acquired(_lease)) = slow.begin(&Key::new("t", "e0")).await else {
        panic!("not acquired");
    };
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

/// An acquire that timed out, and lands when its request has long been answered.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_lands_after_it_timed_out_is_released() {
    // Before the first release, between it and the second.
    for late in [millis(200), millis(310), millis(900), millis(1_200)] {
        let (store, handler) = (Faulty::new(), Handler::ok());
        store.plan(move |call| match call.operation {
            Operation::Acquire if call.n == 1 => Fault::Late(late),
            _ => Fault::None,
        });
        let service = refusing(store.clone())
            .lease(secs(3600))
            .layer(handler.clone());
        assert_eq!(send(&service, post("e1")).await.brief(), (503, "refused"));
        sleep(millis(1_100)).await;
        assert!(store.entry(&e1()).await.is_none(), "{late:?}");
        let token = store.of(Operation::Acquire)[0].token;
        let releases = store.of(Operation::Release);
        assert_eq!(releases.len(), 2);
        assert!(releases.iter().all(|release| release.token == token));
        assert_eq!((releases[1].at - releases[0].at).as_secs(), 1);
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    }
}

/// Under `Forward` the run went ahead; its end ends the token.
#[tokio::test(start_paused = true)]
async fn a_run_forwarded_after_a_timed_out_acquire_completes_its_event() {
    for fault in [Fault::HangAfter, Fault::Late(secs(1)), Fault::Hang] {
        let (store, handler) = (Faulty::new(), Handler::first_then(secs(3), 200, 200));
        store.plan(move |call| match call.operation {
            Operation::Acquire if call.n == 1 => fault,
            _ => Fault::None,
        });
        let service = refusing(store.clone())
            .lease(secs(60))
            .store_failure(StoreFailure::Forward)
            .layer(handler.clone());
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (200, "unprotected"));
        let token = store.of(Operation::Acquire)[0].token.unwrap();
        match store.entry(&e1()).await {
            Some(Entry::Done { token: by, .. }) => assert_eq!(by, token),
            other => panic!("{other:?}"),
        }
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
        assert_eq!(handler.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_forwarded_after_a_timed_out_acquire_releases_its_event_when_it_fails() {
    for fault in [Fault::HangAfter, Fault::Late(secs(1)), Fault::Hang] {
        let (store, handler) = (Faulty::new(), Handler::first_then(secs(3), 500, 200));
        store.plan(move |call| match call.operation {
            Operation::Acquire if call.n == 1 => fault,
            _ => Fault::None,
        });
        let service = refusing(store.clone())
            .lease(secs(3600))
            .store_failure(StoreFailure::Forward)
            .layer(handler.clone());
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (500, "unprotected"));
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_lands_after_its_forwarded_run_failed_is_released() {
    let (store, handler) = (Faulty::new(), Handler::first_then(millis(200), 500, 200));
    store.plan(|call| match call.operation {
        Operation::Acquire if call.n == 1 => Fault::Late(millis(900)),
        _ => Fault::None,
    });
    let service = refusing(store.clone())
        .lease(secs(3600))
        .store_failure(StoreFailure::Forward)
        .layer(handler.clone());
    let answer = send(&service, post("e1")).await;
    assert_eq!(answer.brief(), (500, "unprotected"));
    assert_eq!(store.count(Operation::Release), 1);
    sleep(secs(5)).await;
    assert_eq!(store.count(Operation::Release), 3);
    assert!(store.entry(&e1()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn what_was_released_and_cannot_be_taken_again_is_released_once() {
    let store = Faulty::new();
    let dedup = Dedup::new(store.clone());
    for n in 1..=2 {
        let Ok(Begun::Acquired(lease)) = dedup.begin(&e1()).await else {
            panic!("not acquired");
        };
        match n {
            1 => drop(lease),
            _ => lease.release(Release::Failed { status: None }).await,
        }
        sleep(secs(5)).await;
        assert_eq!(store.count(Operation::Release), n);
    }
    // A run that was cut off does not count, one that failed does.
    match dedup.begin(&e1()).await {
        Ok(Begun::Acquired(lease)) => assert_eq!((lease.attempt(), lease.key()), (2, &e1())),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_holds_a_lease_can_wait_for_its_loss() {
    let store = Faulty::broken(Operation::Renew, Fault::UNREACHABLE);
    let dedup = Dedup::new(store.clone()).lease(secs(2));
    let begun = Instant::now();
    let Ok(Begun::Acquired(lease)) = dedup.begin(&e1()).await else {
        panic!("not acquired");
    };
    assert!(!lease.is_lost());
    lease.lost().await;
    assert_eq!((begun.elapsed().as_secs(), lease.is_lost()), (2, true));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_never_landed_does_not_release_anybodys_lease() {
    let store = Faulty::new();
    let handler = Handler::ok();
    store.breaks(Operation::Acquire, Fault::Hang);
    let token = store.hold(&e1(), secs(60)).await;
    let service = refusing(store.clone()).layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "refused"));
    sleep(secs(5)).await;
    assert!(store.count(Operation::Release) >= 2);
    assert_eq!(holder(&store).await, Some(token));
}

/// R8 and R9 for those who hold leases themselves.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_taken_away_neither_completes_nor_releases() {
    let store = Faulty::new();
    let dedup = refusing(store.clone()).dedup();
    for complete in [true, false] {
        let Begun::Acquired(lease) = dedup.begin(&e1()).await.unwrap() else {
            panic!("not acquired");
        };
        assert!(dedup.forget(&e1(), true).await.unwrap());
        let other = store.hold(&e1(), secs(60)).await;
        if complete {
            assert!(!lease.complete(Record::new(None, None)).await);
        } else {
            lease.release(Release::Abandoned).await;
        }
        assert_eq!(holder(&store).await, Some(other));
        let by = Instant::now();
        store.inner.forget(&e1(), true, by).await.unwrap();
    }
}

/// On real threads and a real clock: what blocks its thread never yields to a heartbeat on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_its_thread_keeps_its_lease() {
    let (store, events) = (Faulty::new(), Events::default());
    let unblocked = Arc::new(AtomicBool::new(false));
    let blocked = unblocked.clone();
    let handler = Handler::new(move |run: Run| {
        let blocked = blocked.clone();
        async move {
            assert_eq!(run.n, 1);
            while !blocked.load(Ordering::SeqCst) {
                std::thread::sleep(millis(5));
            }
            200
        }
    });
    let service = refusing(store.clone())
        .lease(secs(2))
        .store_timeout(millis(500))
        .on_event(events.hook())
        .layer(handler.clone());
    let answer = send_later(&service, post("e1"));
    handler.began(1).await;
    // For longer than the lease.
    for renewals in 1..=4 {
        store.called(Operation::Renew, renewals).await;
        assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    }
    unblocked.store(true, Ordering::SeqCst);
    assert_eq!(answer.await.unwrap().brief(), (200, "run"));
    assert_eq!(events.count(is!(LeaseLost)), 0);
}

/// A lease ends with its runtime, and the next one finds a heartbeat on its own.
#[test]
fn the_heartbeat_survives_its_runtime() {
    let store = Faulty::new();
    let layer = refusing(store.clone());
    let endless = layer.layer(Handler::new(|_| pending()));
    paused_runtime().block_on(async {
        send_later(&endless, post("e0"));
        sleep(secs(5)).await;
        assert!(store.count(Operation::Renew) > 3);
    });
    paused_runtime().block_on(async {
        let handler = Handler::first_then(secs(10), 200, 0);
        let service = layer.layer(handler.clone());
        let answer = send_later(&service, post("e1"));
        handler.began(1).await;
        sleep(secs(9)).await;
        assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
        assert_eq!(answer.await.unwrap().brief(), (200, "run"));
    });
}

#[test]
fn no_two_attempts_have_the_same_token_whatever_threads_make_them() {
    const THREADS: usize = 8;
    const TOKENS: usize = 5_000;
    // The half without the time, which hides what else repeats.
    let half = |token: Token| (u128::from_ne_bytes(*token.as_bytes()) >> 64) as u64;
    let draw = move || -> Vec<_> { (0..TOKENS).map(|_| half(Token::random())).collect() };
    let threads: Vec<_> = (0..THREADS).map(|_| std::thread::spawn(draw)).collect();
    let drawn = threads.into_iter().flat_map(|it| it.join().unwrap());
    let different: HashSet<_> = drawn.collect();
    assert_eq!(different.len(), THREADS * TOKENS);
}
