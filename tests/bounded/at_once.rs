//! At most 64 calls of a kind are under way in the background.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;
use tower_webhook_dedup::{Dedup, Key, Lease, Operation, Record};

use crate::{
    engine::acquired,
    http_support::{millis, secs},
    stores::{Call, Fault, Faulty},
};

/// How long a call takes: not all equally, so that some end while others go on.
fn time(call: &Call) -> Duration {
    millis(if call.n.is_multiple_of(3) { 150 } else { 100 })
}

/// How many of these calls were under way at the same time.
fn at_once(calls: impl Iterator<Item = Call>) -> usize {
    let mut changes: Vec<_> = calls
        .flat_map(|call| [(call.at, 1), (call.at + time(&call), -1)])
        .collect();
    changes.sort_unstable();
    let at_once = changes.iter().scan(0, |at_once, (_, change)| {
        *at_once += change;
        Some(*at_once)
    });
    at_once.max().unwrap_or(0).try_into().unwrap()
}

/// So many leases of one layer's engine.
async fn leases(store: &Faulty, many: usize) -> Vec<Lease<Faulty>> {
    let dedup = Dedup::new(store.clone());
    let mut leases = Vec::new();
    for n in 0..many {
        leases.push(acquired(&dedup, &Key::new("t", n.to_string())).await);
    }
    leases
}

#[tokio::test(start_paused = true)]
async fn at_most_64_leases_are_renewed_at_once() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Renew => Fault::Delay(time(call)),
        _ => Fault::None,
    });
    let leases = leases(&store, 300).await;
    sleep(secs(15)).await;
    let renewals = store.of(Operation::Renew);
    assert_eq!((renewals.len(), at_once(renewals.into_iter())), (300, 64));
    assert!(leases.iter().all(|lease| !lease.is_lost()));
}

#[tokio::test(start_paused = true)]
async fn at_most_64_releases_are_sent_at_once() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Release => Fault::Delay(time(call)),
        _ => Fault::None,
    });
    drop(leases(&store, 300).await);
    sleep(secs(5)).await;
    let releases = store.of(Operation::Release);
    assert_eq!((releases.len(), at_once(releases.into_iter())), (300, 64));
    assert_eq!(store.inner.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn at_most_64_pending_completions_are_written_at_once() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Complete if call.n <= 300 => Fault::FULL,
        Operation::Complete => Fault::Delay(time(call)),
        _ => Fault::None,
    });
    let leases = leases(&store, 300).await;
    let completing = leases
        .into_iter()
        .map(|lease| lease.complete(Record::new(None, None)));
    let written = join_all(completing).await;
    assert!(written.iter().all(|written| !written));
    sleep(secs(5)).await;
    let again = store.of(Operation::Complete).split_off(300);
    assert_eq!((again.len(), at_once(again.into_iter())), (300, 64));
}
