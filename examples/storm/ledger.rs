//! What the handler did, kept by the handler: the layer has no part in it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

#[derive(Default)]
pub(crate) struct Ledger {
    events: Mutex<HashMap<String, Runs>>,
    running: AtomicUsize,
    pub(crate) failed: AtomicUsize,
    pub(crate) panicked: AtomicUsize,
}

/// The runs of one event.
#[derive(Clone, Copy, Default)]
pub(crate) struct Runs {
    pub(crate) started: usize,
    pub(crate) completed: usize,
}

impl Ledger {
    /// A run begins. Tells how many there were before.
    pub(crate) fn begin(self: &Arc<Self>, id: &str) -> (usize, Running) {
        self.running.fetch_add(1, Relaxed);
        let mut events = self.lock();
        let runs = events.entry(id.to_owned()).or_default();
        runs.started += 1;
        (runs.started - 1, Running(self.clone()))
    }

    /// A run had its effect.
    pub(crate) fn complete(&self, id: &str) {
        self.lock().entry(id.to_owned()).or_default().completed += 1;
    }

    pub(crate) fn runs(&self, id: &str) -> Runs {
        self.lock().get(id).copied().unwrap_or_default()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running.load(Relaxed) == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Runs>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run that goes on; also when its future is dropped, it is over.
pub(crate) struct Running(Arc<Ledger>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
    }
}
