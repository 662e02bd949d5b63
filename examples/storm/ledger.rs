//! What the handler did, told by the handler: the layer has no part in it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// Which server it was. A process that is started again is another one.
pub(crate) type Incarnation = usize;

/// The history of each event.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<HashMap<String, Vec<Entry>>>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) at: Instant,
    pub(crate) by: Incarnation,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum What {
    /// A run began; they count from 0.
    Began,
    /// A run had its effect.
    Completed {
        run: usize,
    },
    /// The layer says that it wrote that down.
    Recorded,
    /// A run answered 500.
    Failed,
    Panicked,
    /// The layer says that it cannot keep a promise.
    Lost,
}

impl Ledger {
    /// Writes it down. Tells how many runs there were before.
    pub(crate) fn write(&self, id: &str, by: Incarnation, what: What) -> usize {
        let mut events = self.lock();
        let history = events.entry(id.to_owned()).or_default();
        let runs = history.iter().filter(|it| it.what == What::Began).count();
        // Under the lock, so that the order is that of the times.
        let at = Instant::now();
        history.push(Entry { at, by, what });
        runs
    }

    pub(crate) fn history(&self, id: &str) -> Vec<Entry> {
        self.lock().get(id).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
