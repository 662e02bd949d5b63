//! Completions that could not be written at once: they are written later, and not for ever.

use std::{collections::HashMap, convert::Infallible, future::ready};

use tokio::{runtime::Runtime, time::sleep};
use tower_webhook_dedup::{Begun, Dedup, Operation, Ran, Record};

use engine::{acquired, completed, e, is_done, patient, paused_runtime, tasks};
use http_support::{Events, is, millis, poll_until, secs};
use stores::{Fault, Faulty};

#[path = "support/engine.rs"]
mod engine;
#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

/// As in a runtime's end, or a destructor on a thread of its own.
fn left_completing_outside_a_runtime(runtime: &Runtime, dedup: &Dedup<Faulty>, store: &Faulty) {
    store.breaks(Operation::Complete, Fault::Hang);
    let key = e(1);
    let mut run = Box::pin(completed(dedup, &key));
    runtime.block_on(poll_until(&mut run, store.called(Operation::Complete, 1)));
    drop(run);
    store.heal();
}

#[test]
fn a_completion_begun_outside_a_runtime_is_written_when_the_next_event_comes() {
    let (runtime, store) = (paused_runtime(), Faulty::new());
    let dedup = Dedup::new(store.clone());
    left_completing_outside_a_runtime(&runtime, &dedup, &store);
    runtime.block_on(async {
        assert!(!is_done(&store, &e(1)).await);
        completed(&dedup, &e(2)).await;
        // The clock outside was not the paused one.
        sleep(secs(1)).await;
        assert!(is_done(&store, &e(1)).await);
    });
}

#[test]
fn a_completion_begun_outside_a_runtime_is_written_by_a_drain() {
    let (runtime, store) = (paused_runtime(), Faulty::new());
    let dedup = Dedup::new(store.clone());
    left_completing_outside_a_runtime(&runtime, &dedup, &store);
    runtime.block_on(async {
        let drained = dedup.drain_handle().drain(secs(1)).await;
        assert!(drained.is_complete(), "{drained:?}");
        assert!(is_done(&store, &e(1)).await);
    });
}

#[test]
fn a_completion_that_outlives_its_runtime_is_written_in_the_next() {
    let (one, other) = (paused_runtime(), paused_runtime());
    let store = Faulty::broken(Operation::Complete, Fault::FULL);
    let dedup = Dedup::new(store.clone());
    one.block_on(async {
        completed(&dedup, &e(1)).await;
        sleep(millis(50)).await;
    });
    drop(one);
    store.heal();
    other.block_on(async {
        let ran = dedup.run(&e(1), || ready(Ok::<_, Infallible>(()))).await;
        assert!(matches!(ran, Ok(Ran::Done(_))), "{ran:?}");
        sleep(secs(10)).await;
        assert!(is_done(&store, &e(1)).await);
    });
}

#[tokio::test(start_paused = true)]
async fn a_completion_is_not_sent_again_while_it_is_being_written() {
    let store = Faulty::with(|call| match (call.operation, call.n) {
        (Operation::Complete, 1) => Fault::FULL,
        // Longer than the first pause.
        (Operation::Complete, _) => Fault::Delay(millis(280)),
        _ => Fault::None,
    });
    let dedup = Dedup::new(store.clone());
    completed(&dedup, &e(1)).await;
    sleep(secs(5)).await;
    assert_eq!(store.count(Operation::Complete), 2);
    assert!(is_done(&store, &e(1)).await);
}

/// What still was pending when nobody was left to write it.
#[test]
fn completions_that_outlive_their_runtime_and_their_layer_are_reported() {
    let (runtime, events) = (paused_runtime(), Events::default());
    let store = Faulty::broken(Operation::Complete, Fault::FULL);
    let dedup = Dedup::new(store).on_event(events.hook());
    runtime.block_on(async {
        completed(&dedup, &e(1)).await;
        sleep(millis(50)).await;
    });
    drop(runtime);
    assert_eq!(
        events.count(is!(CompletionDropped)),
        0,
        "it may yet be written"
    );
    drop(dedup);
    assert_eq!(events.count(is!(CompletionDropped)), 1);
}

/// In whichever order they are kept, and though the first are due again before the last were tried.
#[tokio::test(start_paused = true)]
async fn of_many_completions_that_cannot_be_written_all_are_tried() {
    const MANY: usize = 2000;
    let store = Faulty::broken(Operation::Complete, Fault::FULL);
    let dedup = Dedup::new(store.clone());
    for n in 0..MANY {
        completed(&dedup, &e(n)).await;
    }
    store.breaks(Operation::Complete, Fault::Hang);
    let before = store.count(Operation::Complete);
    sleep(secs(60)).await;
    let mut tries = HashMap::new();
    for call in store.of(Operation::Complete).into_iter().skip(before) {
        *tries.entry(call.token).or_insert(0) += 1;
    }
    assert_eq!(tries.len(), MANY);
    let (least, most) = (tries.values().min().unwrap(), tries.values().max().unwrap());
    assert!(most - least <= 2, "{least} to {most} tries");
}

#[tokio::test(start_paused = true)]
async fn duplicates_of_what_is_not_yet_written_start_no_task_each() {
    let store = Faulty::broken(Operation::Complete, Fault::FULL);
    let dedup = Dedup::new(store.clone());
    let tasks = tasks(&dedup);
    completed(&dedup, &e(1)).await;
    for n in 0..50 {
        sleep(millis(n)).await;
        let ran = dedup.run(&e(1), || ready(Ok::<_, Infallible>(()))).await;
        assert!(matches!(ran, Ok(Ran::Done(_))), "{ran:?}");
    }
    assert_eq!(tasks(), 2, "one renews, and one writes");
}

/// The pauses between tries are longer than the time there is.
#[tokio::test(start_paused = true)]
async fn a_drain_writes_at_once_what_can_be_written() {
    let store = Faulty::broken(Operation::Complete, Fault::FULL);
    let dedup = Dedup::new(store.clone());
    completed(&dedup, &e(1)).await;
    // The pauses are five seconds by now.
    store.called(Operation::Complete, 8).await;
    store.heal();
    let drained = dedup.drain_handle().drain(secs(1)).await;
    assert!(drained.is_complete(), "{drained:?}");
    assert!(is_done(&store, &e(1)).await);
}

/// And goes on trying, at short pauses.
#[tokio::test(start_paused = true)]
async fn a_drain_writes_what_can_be_written_before_its_limit() {
    let store = Faulty::broken(Operation::Complete, Fault::FULL);
    let dedup = Dedup::new(store.clone());
    completed(&dedup, &e(1)).await;
    store.called(Operation::Complete, 8).await;
    let drain = dedup.drain_handle();
    let draining = tokio::spawn(async move { drain.drain(secs(2)).await });
    sleep(secs(1)).await;
    store.heal();
    let drained = draining.await.unwrap();
    assert!(drained.is_complete(), "{drained:?}");
}

/// Whether its lease was taken away with it or not.
#[tokio::test(start_paused = true)]
async fn an_event_that_is_forgotten_while_its_completion_is_being_written_runs_again() {
    for force in [true, false] {
        let store = Faulty::broken(Operation::Complete, Fault::Hang);
        let dedup = Dedup::new(store.clone());
        completed(&dedup, &e(1)).await;
        // The second one is of the background.
        store.called(Operation::Complete, 2).await;
        assert!(dedup.forget(&e(1), force).await.unwrap());
        sleep(secs(2)).await;
        assert_eq!(store.count(Operation::Renew), 0, "it needs no lease");
        drop(acquired(&dedup, &e(1)).await);
    }
}

/// The store forgets the event, and then the completion lands that was on its way; or its reply gets
/// lost.
#[tokio::test(start_paused = true)]
async fn an_event_that_is_forgotten_before_its_completion_lands_runs_again() {
    for late in [Fault::Delay(millis(200)), Fault::Late(millis(200))] {
        let store = Faulty::with(move |call| match (call.operation, call.n) {
            (Operation::Complete, 1) => Fault::FULL,
            (Operation::Complete, _) => late,
            _ => Fault::None,
        });
        let dedup = Dedup::new(store.clone());
        completed(&dedup, &e(1)).await;
        store.called(Operation::Complete, 2).await;
        assert!(dedup.forget(&e(1), false).await.unwrap());
        sleep(secs(2)).await;
        assert!(store.entry(&e(1)).await.is_none(), "{late:?}");
        drop(acquired(&dedup, &e(1)).await);
    }
}

/// Another run completed it meanwhile: that is what was done.
#[tokio::test(start_paused = true)]
async fn what_was_done_after_an_event_was_forgotten_stays_done() {
    let store = Faulty::with(|call| match (call.operation, call.n) {
        (Operation::Complete, 1) => Fault::FULL,
        (Operation::Complete, 2) => Fault::Delay(millis(200)),
        _ => Fault::None,
    });
    let dedup = Dedup::new(store.clone());
    completed(&dedup, &e(1)).await;
    store.called(Operation::Complete, 2).await;
    assert!(dedup.forget(&e(1), true).await.unwrap());
    // The lease that is given back comes first.
    store.called(Operation::Release, 1).await;
    sleep(millis(10)).await;
    assert!(
        acquired(&dedup, &e(1))
            .await
            .complete(Record::new(Some(204), None))
            .await
    );
    sleep(secs(2)).await;
    assert!(is_done(&store, &e(1)).await);
    assert_eq!(store.count(Operation::Forget), 1);
}

/// The renewal takes the event again, long after it was released.
#[tokio::test(start_paused = true)]
async fn an_event_that_is_forgotten_while_its_lease_is_being_renewed_runs_again() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Complete => Fault::FULL,
        Operation::Renew => Fault::Delay(secs(5)),
        _ => Fault::None,
    });
    let dedup = Dedup::new(store.clone())
        .lease(secs(60))
        .store_timeout(secs(10));
    completed(&dedup, &e(1)).await;
    store.called(Operation::Renew, 1).await;
    assert!(dedup.forget(&e(1), true).await.unwrap());
    sleep(secs(6)).await;
    assert!(store.entry(&e(1)).await.is_none());
    drop(acquired(&dedup, &e(1)).await);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_the_store_fails_to_forget_is_still_known_as_completed() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Acquire => Fault::None,
        _ => Fault::FULL,
    });
    let dedup = Dedup::new(store.clone());
    completed(&dedup, &e(1)).await;
    dedup.forget(&e(1), false).await.unwrap_err();
    let begun = dedup.begin(&e(1)).await.unwrap();
    assert!(matches!(begun, Begun::Done(_)), "{begun:?}");
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_hangs_holds_up_no_other() {
    let store = Faulty::new();
    let slow = patient(&store);
    let fast = slow.clone().lease(secs(2));
    let elsewhere = Dedup::new(store.elsewhere());
    let hanging = acquired(&slow, &e(1)).await;
    let token = hanging.token();
    store.plan(move |call| match call.operation {
        Operation::Complete if call.token == Some(token) => Fault::Hang,
        Operation::Complete => Fault::FULL,
        _ => Fault::None,
    });
    assert!(!hanging.complete(Record::new(None, None)).await);
    store.called(Operation::Complete, 2).await;
    completed(&fast, &e(2)).await;
    for _ in 0..10 {
        sleep(secs(1)).await;
        let begun = elsewhere.begin(&e(2)).await.unwrap();
        assert!(matches!(begun, Begun::InFlight { .. }), "{begun:?}");
    }
}
