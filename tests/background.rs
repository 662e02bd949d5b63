//! What goes on behind the answers: releases, completions, renewals, and the drain that waits.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    error::Error,
    fmt,
    future::{Future, pending, ready},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep},
};
use tower::{Layer, Service};
use tower_webhook_dedup::{
    Begun, Dedup, DedupEvent, Entry, Key, Lease, LeaseStore, Operation, Ran, Record, Release,
    StoreErrorKind, StoreFailure, Token,
};

use http_support::{Events, Handler, c0, millis, post, secs, send};
use stores::{Call, Fault, Faulty, MemoryStore};

#[allow(dead_code, reason = "shared, and this file needs a part of it")]
#[path = "support/http.rs"]
mod http_support;
#[allow(dead_code, reason = "shared, and this file needs a part of it")]
#[path = "support/stores.rs"]
mod stores;

const FULL: Fault = Fault::Before(StoreErrorKind::OutOfMemory);

fn e(n: usize) -> Key {
    Key::new("t", format!("e{n}"))
}

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

/// Acquires the event, and expects to get it.
async fn acquired<St: LeaseStore>(dedup: &Dedup<St>, key: &Key) -> Lease<St> {
    match dedup.begin(key).await.unwrap() {
        Begun::Acquired(lease) => lease,
        other => panic!("{other:?}"),
    }
}

/// Runs the event, and expects to complete it.
async fn completed<St: LeaseStore>(dedup: &Dedup<St>, key: &Key) {
    let ran = dedup.run(key, || ready(Ok::<_, Infallible>(()))).await;
    assert!(matches!(ran, Ok(Ran::Completed(()))), "{ran:?}");
}

async fn is_done(store: &Faulty, key: &Key) -> bool {
    matches!(store.entry(key).await, Some(Entry::Done { .. }))
}

/// Polls the future until so many calls of this kind have come in, and leaves it there.
async fn drive_until<F: Future>(future: F, store: &Faulty, operation: Operation, times: usize) {
    tokio::select! {
        _ = future => panic!("it came to its end"),
        () = store.called(operation, times) => {}
    }
}

fn completion_dropped(event: &DedupEvent) -> bool {
    matches!(event, DedupEvent::CompletionDropped { .. })
}

/// An acquire that may still land is released twice, a second apart.
#[tokio::test(start_paused = true)]
async fn a_release_does_not_wait_for_one_that_is_sent_again_later() {
    let store = Faulty::new();
    let dedup = Dedup::new(store.clone());
    let lease = acquired(&dedup, &e(1)).await;
    store.plan(|call| match call.operation {
        Operation::Acquire => Fault::Hang,
        _ => Fault::None,
    });
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

/// As in a runtime's end, or a destructor on a thread of its own.
fn left_completing_outside_a_runtime(runtime: &Runtime, dedup: &Dedup<Faulty>, store: &Faulty) {
    store.plan(|call| match call.operation {
        Operation::Complete => Fault::Hang,
        _ => Fault::None,
    });
    let key = e(1);
    let mut run = Box::pin(completed(dedup, &key));
    runtime.block_on(drive_until(&mut run, store, Operation::Complete, 1));
    drop(run);
    store.heal();
}

#[test]
fn a_completion_begun_outside_a_runtime_is_written_when_the_next_event_comes() {
    let (runtime, store) = (runtime(), Faulty::new());
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
    let (runtime, store) = (runtime(), Faulty::new());
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
    let (one, other) = (runtime(), runtime());
    let store = Faulty::broken(Operation::Complete, FULL);
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

#[test]
fn a_release_that_outlives_its_runtime_is_sent_in_the_next() {
    let (one, other) = (runtime(), runtime());
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
    let refused = Fault::Before(StoreErrorKind::Unreachable);
    for (healed, free) in [(secs(1), true), (secs(4), false)] {
        let store = Faulty::broken(Operation::Release, refused);
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
async fn a_completion_is_not_sent_again_while_it_is_being_written() {
    let store = Faulty::with(|call| match (call.operation, call.n) {
        (Operation::Complete, 1) => FULL,
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
    let (runtime, events) = (runtime(), Events::default());
    let store = Faulty::broken(Operation::Complete, FULL);
    let dedup = Dedup::new(store).on_event(events.hook());
    runtime.block_on(async {
        completed(&dedup, &e(1)).await;
        sleep(millis(50)).await;
    });
    drop(runtime);
    assert_eq!(events.count(completion_dropped), 0, "it may yet be written");
    drop(dedup);
    assert_eq!(events.count(completion_dropped), 1);
}

/// In whichever order they are kept, and though the first are due again before the last were tried.
#[tokio::test(start_paused = true)]
async fn of_many_completions_that_cannot_be_written_all_are_tried() {
    const MANY: usize = 2000;
    let store = Faulty::broken(Operation::Complete, FULL);
    let dedup = Dedup::new(store.clone());
    for n in 0..MANY {
        completed(&dedup, &e(n)).await;
    }
    store.plan(|call| match call.operation {
        Operation::Complete => Fault::Hang,
        _ => Fault::None,
    });
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

/// Runs of one event that go on beside each other, in the order in which they acquired it: the
/// leases of all but the last ran out.
async fn runs<const N: usize>(store: &Faulty, dedup: &Dedup<Faulty>) -> [Lease<Faulty>; N] {
    store.plan(|call| match call.operation {
        Operation::Renew => FULL,
        _ => Fault::None,
    });
    let mut runs = Vec::new();
    while runs.len() < N {
        sleep(secs(3)).await;
        runs.push(acquired(dedup, &e(1)).await);
    }
    runs.try_into().unwrap()
}

/// It succeeds, and that cannot be written at once.
async fn succeed(run: Lease<Faulty>) {
    assert!(!run.complete(Record::new(None, None)).await);
}

/// It succeeds, and the background has begun to write what could not be written at once.
async fn succeed_unwritten(store: &Faulty, run: Lease<Faulty>) {
    let writes = store.count(Operation::Complete);
    succeed(run).await;
    store.called(Operation::Complete, writes + 2).await;
}

/// The token that holds the event.
async fn holder(store: &Faulty) -> Option<Token> {
    match store.entry(&e(1)).await? {
        Entry::Running { token, .. } => Some(token),
        _ => None,
    }
}

/// The first time that this token is to be written fails; this is what becomes of the others.
fn once_full(
    others: impl Fn(&Call) -> Fault + Send + Sync,
) -> impl Fn(&Call) -> Fault + Send + Sync {
    let tried = Mutex::new(HashSet::new());
    move |call| match call.operation {
        Operation::Complete if tried.lock().unwrap().insert(call.token) => FULL,
        _ => others(call),
    }
}

/// Runs whose leases ran out, and the one that took over, succeed in the same process while no
/// record can be written. In whichever order: the event is held for the one that holds it, though
/// the store refuses the others meanwhile, and it is that one which is written.
#[tokio::test(start_paused = true)]
async fn of_runs_that_succeeded_the_one_that_holds_the_event_is_written() {
    for order in [
        [0, 1, 2],
        [1, 0, 2],
        [0, 2, 1],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let store = Faulty::new();
        let dedup = Dedup::new(store.clone()).lease(secs(2));
        let mut runs = runs::<3>(&store, &dedup).await.map(Some);
        let token = runs[2].as_ref().map(Lease::token);
        store.plan(once_full(move |call| match call.operation {
            Operation::Complete if call.token == token => FULL,
            // Refused, when all three have succeeded.
            Operation::Complete => Fault::Delay(millis(100)),
            _ => Fault::None,
        }));
        for run in order {
            succeed_unwritten(&store, runs[run].take().unwrap()).await;
        }
        // Longer than a lease.
        sleep(secs(5)).await;
        assert_eq!(holder(&store).await, token, "{order:?}");
        store.heal();
        sleep(secs(5)).await;
        assert!(is_done(&store, &e(1)).await, "{order:?}");
        assert!(dedup.drain_handle().drain(secs(1)).await.is_complete());
    }
}

/// Nothing can be written at all for a while, nor does anybody learn who holds the event but from
/// the renewals.
#[tokio::test(start_paused = true)]
async fn of_runs_that_succeeded_the_one_that_holds_the_event_is_renewed() {
    for order in [[0, 1, 2], [2, 0, 1], [2, 1, 0]] {
        let store = Faulty::new();
        let dedup = Dedup::new(store.clone()).lease(secs(2));
        let mut runs = runs::<3>(&store, &dedup).await.map(Some);
        let token = runs[2].as_ref().map(Lease::token);
        store.plan(|call| match call.operation {
            Operation::Complete => FULL,
            // Answered when all three have succeeded.
            Operation::Renew => Fault::Delay(millis(50)),
            _ => Fault::None,
        });
        for run in order {
            succeed_unwritten(&store, runs[run].take().unwrap()).await;
        }
        sleep(secs(10)).await;
        assert_eq!(holder(&store).await, token, "{order:?}");
        store.heal();
        sleep(secs(5)).await;
        assert!(is_done(&store, &e(1)).await, "{order:?}");
    }
}

/// Under a lease that ends before two pauses are over: what is done here must not run elsewhere.
#[tokio::test(start_paused = true)]
async fn of_runs_that_succeeded_the_one_that_holds_the_event_is_renewed_in_time() {
    for order in [[0, 1, 2], [2, 0, 1], [2, 1, 0]] {
        let store = Faulty::new();
        let dedup = Dedup::new(store.clone()).lease(millis(600));
        let mut runs = runs::<3>(&store, &dedup).await.map(Some);
        let token = runs[2].as_ref().map(Lease::token);
        sleep(millis(520)).await;
        store.plan(|call| match call.operation {
            Operation::Complete => FULL,
            _ => Fault::None,
        });
        for run in order {
            succeed(runs[run].take().unwrap()).await;
        }
        for _ in 0..50 {
            sleep(millis(100)).await;
            assert_eq!(holder(&store).await, token, "{order:?}");
        }
        store.heal();
        sleep(secs(1)).await;
        assert!(is_done(&store, &e(1)).await, "{order:?}");
    }
}

/// Each is renewed once a try, in vain, and not without end.
#[tokio::test(start_paused = true)]
async fn of_runs_that_succeeded_none_is_written_where_another_process_holds_the_event() {
    let store = Faulty::new();
    let dedup = Dedup::new(store.clone()).lease(secs(2));
    let runs = runs::<2>(&store, &dedup).await;
    sleep(secs(3)).await;
    let other = store.hold(&e(1), secs(60)).await;
    store.plan(|call| match call.operation {
        Operation::Complete => FULL,
        _ => Fault::None,
    });
    let before = store.count(Operation::Renew);
    for run in runs {
        succeed(run).await;
    }
    sleep(secs(10)).await;
    let tries = store.count(Operation::Complete);
    let renewals = store.count(Operation::Renew) - before;
    assert!(renewals <= 2 * tries, "{renewals} renewals, {tries} tries");

    store.heal();
    sleep(secs(5)).await;
    assert_eq!(holder(&store).await, Some(other));
    assert!(dedup.drain_handle().drain(secs(1)).await.is_complete());
}

/// It was being written when another run succeeded; then nothing is left to write.
#[tokio::test(start_paused = true)]
async fn of_runs_that_succeeded_one_is_written_once() {
    let (store, events) = (Faulty::new(), Events::default());
    let dedup = Dedup::new(store.clone())
        .lease(secs(2))
        .on_event(events.hook());
    let [late, holder] = runs(&store, &dedup).await;
    let token = Some(holder.token());
    store.plan(once_full(move |call| match call.operation {
        Operation::Complete if call.token == token => Fault::Delay(millis(50)),
        Operation::Complete => Fault::Delay(millis(100)),
        _ => Fault::None,
    }));
    succeed_unwritten(&store, holder).await;
    succeed_unwritten(&store, late).await;
    sleep(secs(5)).await;
    assert!(is_done(&store, &e(1)).await);
    assert_eq!(store.count(Operation::Complete), 4);
    let written = |event: &DedupEvent| matches!(event, DedupEvent::Completed { .. });
    assert_eq!(events.count(written), 1);
}

/// Its lease was being renewed when another run succeeded: it is not let go of.
#[tokio::test(start_paused = true)]
async fn of_runs_that_succeeded_none_is_released() {
    let store = Faulty::new();
    let dedup = Dedup::new(store.clone()).lease(secs(2));
    let [late, holder] = runs(&store, &dedup).await;
    let token = Some(holder.token());
    store.plan(move |call| match call.operation {
        Operation::Complete => FULL,
        Operation::Renew if call.token == token => Fault::Delay(millis(50)),
        Operation::Renew => Fault::Delay(millis(100)),
        _ => Fault::None,
    });
    succeed_unwritten(&store, holder).await;
    succeed_unwritten(&store, late).await;
    sleep(secs(5)).await;
    assert_eq!(store.count(Operation::Release), 0);
    store.heal();
    sleep(secs(5)).await;
    assert!(is_done(&store, &e(1)).await);
}

/// How many background tasks it has spawned.
fn tasks(dedup: &Dedup<Faulty>) -> impl Fn() -> usize + use<> {
    let tasks = Arc::new(AtomicUsize::new(0));
    let spawned = tasks.clone();
    dedup.wrap_tasks(move |task| {
        spawned.fetch_add(1, Ordering::SeqCst);
        task
    });
    move || tasks.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn duplicates_of_what_is_not_yet_written_start_no_task_each() {
    let store = Faulty::broken(Operation::Complete, FULL);
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

/// The pauses between tries are longer than the time there is.
#[tokio::test(start_paused = true)]
async fn a_drain_writes_at_once_what_can_be_written() {
    let store = Faulty::broken(Operation::Complete, FULL);
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
    let store = Faulty::broken(Operation::Complete, FULL);
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
            (Operation::Complete, 1) => FULL,
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
        (Operation::Complete, 1) => FULL,
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
        Operation::Complete => FULL,
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
        _ => FULL,
    });
    let dedup = Dedup::new(store.clone());
    completed(&dedup, &e(1)).await;
    dedup.forget(&e(1), false).await.unwrap_err();
    let begun = dedup.begin(&e(1)).await.unwrap();
    assert!(matches!(begun, Begun::Done(_)), "{begun:?}");
}

/// Layers that share an engine can have timeouts that are longer than each other's leases.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_holds_up_no_other_lease() {
    let store = Faulty::new();
    let slow = Dedup::new(store.clone())
        .lease(secs(60))
        .store_timeout(secs(15));
    let fast = slow.clone().lease(secs(2));
    let hanging = acquired(&slow, &e(1)).await;
    let token = hanging.token();
    store.plan(move |call| match call.operation {
        Operation::Renew if call.token == Some(token) => Fault::Hang,
        _ => Fault::None,
    });
    sleep(secs(19)).await;
    let healthy = acquired(&fast, &e(2)).await;
    sleep(secs(10)).await;
    assert!(!healthy.is_lost());
    assert!(matches!(
        fast.begin(&e(2)).await.unwrap(),
        Begun::InFlight { .. }
    ));
    assert!(!hanging.is_lost(), "tried again before its deadline");
}

/// The same of what has been completed,
#[tokio::test(start_paused = true)]
async fn a_completion_that_hangs_holds_up_no_other() {
    let store = Faulty::new();
    let slow = Dedup::new(store.clone())
        .lease(secs(60))
        .store_timeout(secs(15));
    let fast = slow.clone().lease(secs(2));
    let elsewhere = Dedup::new(store.elsewhere());
    let hanging = acquired(&slow, &e(1)).await;
    let token = hanging.token();
    store.plan(move |call| match call.operation {
        Operation::Complete if call.token == Some(token) => Fault::Hang,
        Operation::Complete => FULL,
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

/// and of what is released.
#[tokio::test(start_paused = true)]
async fn a_release_that_hangs_holds_up_no_other() {
    let store = Faulty::new();
    let slow = Dedup::new(store.clone())
        .lease(secs(60))
        .store_timeout(secs(15));
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

/// With one runtime ends the task that renews, amid the renewals of leases of another.
#[test]
fn a_renewal_that_ends_with_its_runtime_is_sent_again_by_the_next() {
    let (one, other) = (runtime(), runtime());
    let store = Faulty::with(|call| match call.operation {
        Operation::Renew if call.n <= 2 => Fault::Hang,
        _ => Fault::None,
    });
    let dedup = Dedup::new(store.clone());
    let first = one.block_on(acquired(&dedup, &e(1)));
    let second = other.block_on(acquired(&dedup, &e(2)));
    one.block_on(store.called(Operation::Renew, 2));
    drop((first, one));
    other.block_on(async {
        let third = acquired(&dedup, &e(3)).await;
        sleep(secs(60)).await;
        assert!(!third.is_lost());
        assert!(!second.is_lost());
    });
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_panics_costs_no_lease() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Renew if call.n == 1 => Fault::Panic,
        _ => Fault::None,
    });
    let dedup = Dedup::new(store.clone());
    let leases = [acquired(&dedup, &e(1)).await, acquired(&dedup, &e(2)).await];
    sleep(secs(40)).await;
    for lease in leases {
        assert!(!lease.is_lost());
        let holder = store.entry(lease.key()).await;
        assert!(
            matches!(holder, Some(Entry::Running { token, .. }) if token == lease.token()),
            "{holder:?}"
        );
    }
}

/// The release lands first, and is answered before the renewal lands, or after that.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_overtaken_by_the_release_leaves_no_lease_behind() {
    for answered in [millis(0), millis(100)] {
        let store = Faulty::with(move |call| match call.operation {
            Operation::Renew => Fault::Delay(millis(50)),
            Operation::Release => Fault::DelayAfter(answered),
            _ => Fault::None,
        });
        let dedup = Dedup::new(store.clone());
        let lease = acquired(&dedup, &e(1)).await;
        store.called(Operation::Renew, 1).await;
        lease.release(Release::Abandoned).await;
        sleep(secs(3)).await;
        assert!(store.entry(&e(1)).await.is_none(), "{answered:?}");
    }
}

/// On the real clock: the thread is blocked, and with it the task that renews.
#[tokio::test]
async fn a_lease_whose_time_has_passed_is_lost_though_nobody_looked() {
    let dedup = Dedup::new(MemoryStore::new()).lease(millis(20));
    let lease = acquired(&dedup, &e(1)).await;
    std::thread::sleep(millis(40));
    assert!(lease.is_lost());
}

/// However its run ends: another one may have run beside it.
#[tokio::test]
async fn a_lease_whose_time_has_passed_is_reported_when_it_ends() {
    for ending in 0..3 {
        let events = Events::default();
        let dedup = Dedup::new(MemoryStore::new())
            .lease(millis(20))
            .on_event(events.hook());
        let lease = acquired(&dedup, &e(1)).await;
        std::thread::sleep(millis(40));
        match ending {
            0 => assert!(lease.complete(Record::new(None, None)).await),
            1 => lease.release(Release::Abandoned).await,
            _ => drop(lease),
        }
        assert_eq!(events.count(lease_lost), 1, "{ending}");
    }
}

/// The store takes it up again, as it would after it forgot everything.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_lands_after_another_run_came_and_went_does_not_hide_it() {
    let (store, events) = (Faulty::new(), Events::default());
    let dedup = Dedup::new(store.clone())
        .lease(secs(2))
        .on_event(events.hook());
    let begun = Instant::now();
    let lease = acquired(&dedup, &e(1)).await;
    store.plan(move |call| match call.operation {
        Operation::Renew if call.at < begun + millis(1_800) => FULL,
        Operation::Renew => Fault::Delay(millis(300)),
        _ => Fault::None,
    });
    sleep(millis(2_010)).await;
    drop(acquired(&Dedup::new(store.elsewhere()), &e(1)).await);
    sleep(secs(1)).await;
    assert_eq!(events.count(lease_lost), 1);
    assert!(
        lease.complete(Record::new(None, None)).await,
        "all the same"
    );
}

fn lease_lost(event: &DedupEvent) -> bool {
    matches!(event, DedupEvent::LeaseLost { .. })
}

fn run_limit(event: &DedupEvent) -> bool {
    matches!(event, DedupEvent::RunLimit { .. })
}

#[tokio::test(start_paused = true)]
async fn an_unprotected_run_past_its_limit_is_reported() {
    for fault in [FULL, Fault::Hang] {
        let events = Events::default();
        let service = c0(Faulty::broken(Operation::Acquire, fault))
            .store_failure(StoreFailure::Forward)
            .run_limit(secs(1))
            .on_event(events.hook())
            .layer(Handler::new(|_| pending()));
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (504, "unprotected"));
        assert_eq!(events.count(run_limit), 1, "{fault:?}");
    }
}

/// There it cannot go on, so it is not said to.
#[test]
fn a_run_that_is_dropped_outside_a_runtime_is_not_reported_as_going_on() {
    let (runtime, events) = (runtime(), Events::default());
    let handler = Handler::new(|_| pending());
    let mut service = c0(Faulty::new())
        .on_event(events.hook())
        .layer(handler.clone());
    let mut answer = Box::pin(service.call(post("e1")));
    runtime.block_on(async {
        tokio::select! {
            _ = &mut answer => panic!("it has no end"),
            () = handler.began(1) => {}
        }
    });
    drop(runtime);
    drop(answer);
    let detached = |event: &DedupEvent| matches!(event, DedupEvent::Detached { .. });
    let abandoned = |event: &DedupEvent| matches!(event, DedupEvent::Abandoned { .. });
    assert_eq!((events.count(detached), events.count(abandoned)), (0, 1));
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
    store.plan(|_| Fault::Before(StoreErrorKind::Unreachable));
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
