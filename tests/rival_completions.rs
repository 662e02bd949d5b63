//! Of several runs of an event that succeeded here, the one that holds the event is written.

use std::{collections::HashSet, sync::Mutex, time::Duration};

use tokio::time::sleep;
use tower_webhook_dedup::{Dedup, Entry, Lease, Operation, Record, Token};

use engine::{acquired, e, is_done};
use http_support::{Events, is, millis, secs};
use stores::{Call, Fault, Faulty};

#[path = "support/engine.rs"]
mod engine;
#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

/// Runs of one event that go on beside each other, in the order in which they acquired it: the
/// leases of all but the last ran out.
struct Rivals<const N: usize> {
    store: Faulty,
    dedup: Dedup<Faulty>,
    events: Events,
    runs: [Option<Lease<Faulty>>; N],
    /// The token of the last.
    holder: Option<Token>,
}

impl<const N: usize> Rivals<N> {
    async fn begin(lease: Duration) -> Self {
        let (store, events) = (
            Faulty::broken(Operation::Renew, Fault::FULL),
            Events::default(),
        );
        let dedup = Dedup::new(store.clone())
            .lease(lease)
            .on_event(events.hook());
        let mut runs = Vec::new();
        while runs.len() < N {
            sleep(secs(3)).await;
            runs.push(acquired(&dedup, &e(1)).await);
        }
        Self {
            store,
            dedup,
            events,
            holder: runs.last().map(Lease::token),
            runs: runs.try_into().map(|runs: [_; N]| runs.map(Some)).unwrap(),
        }
    }

    /// One succeeds, and that cannot be written at once.
    async fn succeed(&mut self, run: usize) {
        let run = self.runs[run].take().unwrap();
        assert!(!run.complete(Record::new(None, None)).await);
    }

    /// They succeed in this order, and of each the background has begun to write what could not be
    /// written at once.
    async fn succeed_unwritten(&mut self, order: [usize; N]) {
        for run in order {
            let writes = self.store.count(Operation::Complete);
            self.succeed(run).await;
            self.store.called(Operation::Complete, writes + 2).await;
        }
    }

    /// The token that the store gives the event to.
    async fn held_by(&self) -> Option<Token> {
        match self.store.entry(&e(1)).await? {
            Entry::Running { token, .. } => Some(token),
            _ => None,
        }
    }

    /// Whether it is done a while after the store is well.
    async fn is_done_at_last(&self) -> bool {
        self.store.heal();
        sleep(secs(5)).await;
        is_done(&self.store, &e(1)).await
    }
}

/// The first time that this token is to be written fails; this is what becomes of the others.
fn once_full(
    others: impl Fn(&Call) -> Fault + Send + Sync,
) -> impl Fn(&Call) -> Fault + Send + Sync {
    let tried = Mutex::new(HashSet::new());
    move |call| match call.operation {
        Operation::Complete if tried.lock().unwrap().insert(call.token) => Fault::FULL,
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
        let mut rivals = Rivals::begin(secs(2)).await;
        let holder = rivals.holder;
        rivals
            .store
            .plan(once_full(move |call| match call.operation {
                Operation::Complete if call.token == holder => Fault::FULL,
                // Refused, when all three have succeeded.
                Operation::Complete => Fault::Delay(millis(100)),
                _ => Fault::None,
            }));
        rivals.succeed_unwritten(order).await;
        // Longer than a lease.
        sleep(secs(5)).await;
        assert_eq!(rivals.held_by().await, holder, "{order:?}");
        assert!(rivals.is_done_at_last().await, "{order:?}");
        let drain = rivals.dedup.drain_handle();
        assert!(drain.drain(secs(1)).await.is_complete());
    }
}

/// Nothing can be written at all for a while, nor does anybody learn who holds the event but from
/// the renewals.
#[tokio::test(start_paused = true)]
async fn of_runs_that_succeeded_the_one_that_holds_the_event_is_renewed() {
    for order in [[0, 1, 2], [2, 0, 1], [2, 1, 0]] {
        let mut rivals = Rivals::begin(secs(2)).await;
        rivals.store.plan(|call| match call.operation {
            Operation::Complete => Fault::FULL,
            // Answered when all three have succeeded.
            Operation::Renew => Fault::Delay(millis(50)),
            _ => Fault::None,
        });
        rivals.succeed_unwritten(order).await;
        sleep(secs(10)).await;
        assert_eq!(rivals.held_by().await, rivals.holder, "{order:?}");
        assert!(rivals.is_done_at_last().await, "{order:?}");
    }
}

/// Under a lease that ends before two pauses are over: what is done here must not run elsewhere.
#[tokio::test(start_paused = true)]
async fn of_runs_that_succeeded_the_one_that_holds_the_event_is_renewed_in_time() {
    for order in [[0, 1, 2], [2, 0, 1], [2, 1, 0]] {
        let mut rivals = Rivals::<3>::begin(millis(600)).await;
        sleep(millis(520)).await;
        rivals.store.breaks(Operation::Complete, Fault::FULL);
        for run in order {
            rivals.succeed(run).await;
        }
        for _ in 0..50 {
            sleep(millis(100)).await;
            assert_eq!(rivals.held_by().await, rivals.holder, "{order:?}");
        }
        assert!(rivals.is_done_at_last().await, "{order:?}");
    }
}

/// Each is renewed once a try, in vain, and not without end.
#[tokio::test(start_paused = true)]
async fn of_runs_that_succeeded_none_is_written_where_another_process_holds_the_event() {
    let mut rivals = Rivals::<2>::begin(secs(2)).await;
    let store = rivals.store.clone();
    sleep(secs(3)).await;
    let other = store.hold(&e(1), secs(60)).await;
    store.breaks(Operation::Complete, Fault::FULL);
    let before = store.count(Operation::Renew);
    for run in 0..2 {
        rivals.succeed(run).await;
    }
    sleep(secs(10)).await;
    let tries = store.count(Operation::Complete);
    let renewals = store.count(Operation::Renew) - before;
    assert!(renewals <= 2 * tries, "{renewals} renewals, {tries} tries");

    assert!(!rivals.is_done_at_last().await);
    assert_eq!(rivals.held_by().await, Some(other));
    let drain = rivals.dedup.drain_handle();
    assert!(drain.drain(secs(1)).await.is_complete());
}

/// The late one succeeds last.
const LATE_LAST: [usize; 2] = [1, 0];

/// It was being written when another run succeeded; then nothing is left to write.
#[tokio::test(start_paused = true)]
async fn of_runs_that_succeeded_one_is_written_once() {
    let mut rivals = Rivals::begin(secs(2)).await;
    let holder = rivals.holder;
    rivals
        .store
        .plan(once_full(move |call| match call.operation {
            Operation::Complete if call.token == holder => Fault::Delay(millis(50)),
            Operation::Complete => Fault::Delay(millis(100)),
            _ => Fault::None,
        }));
    rivals.succeed_unwritten(LATE_LAST).await;
    sleep(secs(5)).await;
    assert!(is_done(&rivals.store, &e(1)).await);
    assert_eq!(rivals.store.count(Operation::Complete), 4);
    assert_eq!(rivals.events.count(is!(Completed)), 1);
}

/// Its lease was being renewed when another run succeeded: it is not let go of.
#[tokio::test(start_paused = true)]
async fn of_runs_that_succeeded_none_is_released() {
    let mut rivals = Rivals::begin(secs(2)).await;
    let holder = rivals.holder;
    rivals.store.plan(move |call| match call.operation {
        Operation::Complete => Fault::FULL,
        Operation::Renew if call.token == holder => Fault::Delay(millis(50)),
        Operation::Renew => Fault::Delay(millis(100)),
        _ => Fault::None,
    });
    rivals.succeed_unwritten(LATE_LAST).await;
    sleep(secs(5)).await;
    assert_eq!(rivals.store.count(Operation::Release), 0);
    assert!(rivals.is_done_at_last().await);
}
