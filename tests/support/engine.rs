//! The engine without HTTP, on a store that fails as it is told.

#![allow(dead_code, reason = "no test uses all of it")]

use std::{
    convert::Infallible,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::runtime::{Builder, Runtime};
use tower_webhook_dedup::{Begun, Dedup, Entry, Key, Lease, LeaseStore, Ran, StoreErrorKind};

use crate::stores::{Fault, Faulty};

pub(crate) const FULL: Fault = Fault::Before(StoreErrorKind::OutOfMemory);

pub(crate) fn e(n: usize) -> Key {
    Key::new("t", format!("e{n}"))
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
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
