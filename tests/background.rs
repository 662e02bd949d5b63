//! What goes on behind the answers: releases, and what is reported.

use std::{
    error::Error,
    fmt,
    future::{pending, ready},
};

use tokio::time::{Instant, sleep};
use tower::{Layer, Service};
use tower_webhook_dedup::{Dedup, Operation, StoreFailure};

use engine::{acquired, e, patient, paused_runtime, tasks};
use http_support::{Events, Handler, c0, is, millis, poll_until, post, secs, send};
use stores::{Fault, Faulty};

#[path = "support/engine.rs"]
mod engine;
#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

/// An acquire that may still land is released twice, a second apart.
#[tokio::test(start_paused = true)]
async fn a_release_does_not_wait_for_one_that_is_sent_again_later() {
    let store = Faulty::new();
    let dedup = Dedup::new(store.clone());
    let lease = acquired(&dedup, &e(1)).await;
    store.breaks(Operation::Acquire, Fault::Hang);
    dedup.begin(&e(2)).await.unwrap_err();
    store.called(Operation::Release, 1).await;
    let dropped = Instant::now();
    drop(lease);
    store.called(Operation::Release, 2).await;
    assert!(
        dropped.elapsed() < millis(10),
        "after {:?}",
        dropped.elapsed()
    );
    store.called(Operation::Release, 3).await;
    assert!(store.entry(&e(1)).await.is_none());
}

#[test]
fn a_release_that_outlives_its_runtime_is_sent_in_the_next() {
    let (one, other) = (paused_runtime(), paused_runtime());
    let store = Faulty::broken(Operation::Release, Fault::Hang);
    let dedup = Dedup::new(store.clone());
    one.block_on(async {
        drop(acquired(&dedup, &e(1)).await);
        sleep(millis(400)).await;
    });
    drop(one);
    store.heal();
    other.block_on(async {
        drop(acquired(&dedup, &e(2)).await);
        sleep(secs(10)).await;
        for n in 1..=2 {
            assert!(store.entry(&e(n)).await.is_none(), "{n}");
        }
    });
}

/// For two seconds.
#[tokio::test(start_paused = true)]
async fn a_drain_goes_on_releasing_for_a_while() {
    for (healed, free) in [(secs(1), true), (secs(4), false)] {
        let store = Faulty::broken(Operation::Release, Fault::UNREACHABLE);
        let dedup = Dedup::new(store.clone());
        drop(acquired(&dedup, &e(1)).await);
        store.called(Operation::Release, 2).await;
        let drain = dedup.drain_handle();
        let draining = tokio::spawn(async move { drain.drain(secs(10)).await });
        sleep(healed).await;
        store.heal();
        assert!(draining.await.unwrap().is_complete());
        assert_eq!(store.entry(&e(1)).await.is_none(), free, "{healed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn leases_that_are_dropped_start_no_task_each() {
    let dedup = Dedup::new(Faulty::new());
    let tasks = tasks(&dedup);
    let mut leases = Vec::new();
    for n in 0..50 {
        leases.push(acquired(&dedup, &e(n)).await);
    }
    drop(leases);
    sleep(secs(5)).await;
    assert_eq!(tasks(), 2, "one renews, and one releases");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_hangs_holds_up_no_other() {
    let store = Faulty::new();
    let slow = patient(&store);
    let fast = slow.clone().store_timeout(millis(300));
    let leases = [acquired(&slow, &e(1)).await, acquired(&fast, &e(2)).await];
    let token = leases[0].token();
    store.plan(move |call| match call.operation {
        Operation::Release if call.token == Some(token) => Fault::Hang,
        _ => Fault::None,
    });
    for (n, lease) in leases.into_iter().enumerate() {
        drop(lease);
        sleep(millis(10)).await;
        assert_eq!(store.count(Operation::Release), n + 1);
    }
    assert!(store.entry(&e(2)).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_unprotected_run_past_its_limit_is_reported() {
    for fault in [Fault::FULL, Fault::Hang] {
        let events = Events::default();
        let service = c0(Faulty::broken(Operation::Acquire, fault))
            .store_failure(StoreFailure::Forward)
            .run_limit(secs(1))
            .on_event(events.hook())
            .layer(Handler::new(|_| pending()));
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (504, "unprotected"));
        assert_eq!(events.count(is!(RunLimit)), 1, "{fault:?}");
    }
}

/// There it cannot go on, so it is not said to.
#[test]
fn a_run_that_is_dropped_outside_a_runtime_is_not_reported_as_going_on() {
    let (runtime, events) = (paused_runtime(), Events::default());
    let handler = Handler::new(|_| pending());
    let mut service = c0(Faulty::new())
        .on_event(events.hook())
        .layer(handler.clone());
    let mut answer = Box::pin(service.call(post("e1")));
    runtime.block_on(poll_until(&mut answer, handler.began(1)));
    drop(runtime);
    drop(answer);
    assert_eq!(
        (events.count(is!(Detached)), events.count(is!(Abandoned))),
        (0, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn what_goes_on_and_what_goes_wrong_can_be_logged() {
    let store = Faulty::new();
    let dedup = Dedup::new(store.clone());
    let shown = format!("{dedup:?}");
    assert!(shown.contains("lease: 30s"), "{shown}");
    let drain = dedup.drain_handle();
    assert!(format!("{drain:?}").starts_with("DrainHandle"));
    let begun = dedup.begin(&e(1)).await.unwrap();
    let shown = format!("{begun:?}");
    let token = store.of(Operation::Acquire)[0].token.unwrap();
    for part in ["Acquired(Lease", e(1).as_ref(), &token.to_string()] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }

    // The whole chain tells what happened, and each link something else.
    store.plan(|_| Fault::UNREACHABLE);
    let ran = dedup.run(&e(2), || ready(Err::<(), _>(fmt::Error))).await;
    let error = ran.unwrap_err();
    let cause = error.source().unwrap();
    assert!(error.to_string().contains("acquired"), "{error}");
    assert!(cause.to_string().starts_with("acquire: "), "{cause}");
    assert!(cause.source().is_some(), "the store's own");

    store.heal();
    let ran = dedup.run(&e(3), || ready(Err::<(), _>(fmt::Error))).await;
    let error = ran.unwrap_err();
    assert!(error.to_string().contains("not completed"), "{error}");
    assert!(error.source().unwrap().is::<fmt::Error>());
    drop(begun);
}

#[tokio::test(start_paused = true)]
async fn a_store_call_takes_a_quarter_of_a_short_lease_at_most() {
    let dedup = Dedup::new(Faulty::broken(Operation::Acquire, Fault::Hang));
    for (lease, limit) in [(millis(400), millis(100)), (secs(30), millis(300))] {
        let asked = Instant::now();
        dedup.clone().lease(lease).begin(&e(1)).await.unwrap_err();
        assert_eq!(asked.elapsed(), limit);
    }
}
