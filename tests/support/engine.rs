//! The engine without HTTP, on a store that fails as it is told.

#![allow(dead_code, reason = "no test uses all of it")]

use std::{
    convert::Infallible,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tower_webhook_dedup::{Begun, Dedup, Entry, Key, Lease, LeaseStore, Ran};

use crate::stores::Faulty;

#[allow(unused_imports, reason = "not all of it is needed everywhere")]
pub(crate) use runtime::paused_runtime;

#[path = "runtime.rs"]
mod runtime;

pub(crate) fn e(n: usize) -> Key {
    Key::new("t", format!("e{n}"))
}

/// Acquires the event, and expects to get it.
pub(crate) async fn acquired<St: LeaseStore>(dedup: &Dedup<St>, key: &Key) -> Lease<St> {
    match dedup.begin(key).await.unwrap() {
        Begun::Acquired(lease) => lease,
        other => panic!("{other:?}"),
    }
}

/// Runs the event, and expects to complete it.
pub(crate) async fn completed<St: LeaseStore>(dedup: &Dedup<St>, key: &Key) {
    let ran = dedup.run(key, || ready(Ok::<_, Infallible>(()))).await;
    assert!(matches!(ran, Ok(Ran::Completed(()))), "{ran:?}");
}

pub(crate) async fn is_done(store: &Faulty, key: &Key) -> bool {
    matches!(store.entry(key).await, Some(Entry::Done { .. }))
}

/// How many background tasks it has spawned.
pub(crate) fn tasks(dedup: &Dedup<Faulty>) -> impl Fn() -> usize + use<> {
    let tasks = Arc::new(AtomicUsize::new(0));
    let spawned = tasks.clone();
    dedup.wrap_tasks(move |task| {
        spawned.fetch_add(1, Ordering::SeqCst);
        task
    });
    move || tasks.load(Ordering::SeqCst)
}

/// Layers that share an engine can have timeouts that are longer than each other's leases: this one's
/// is 15 seconds, and its clones may shorten their leases.
pub(crate) fn patient(store: &Faulty) -> Dedup<Faulty> {
    let lease = Duration::from_secs(60);
    let dedup = Dedup::new(store.clone()).lease(lease);
    dedup.store_timeout(Duration::from_secs(15))
}
