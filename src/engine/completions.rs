//! Completions that could not be written yet.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep};

use super::{Dedup, Settings, Shared, pace::Pace};
use crate::{DedupEvent, Key, LeaseStore, Record, Token};

/// At the cap the oldest is dropped and reported.
const MOST: usize = 4096;

/// After this, one is dropped and reported.
const OLDEST: Duration = Duration::from_secs(10 * 60);

/// How many are written at once.
const AT_ONCE: usize = 64;

/// The pauses between tries.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// While one is pending, this process answers its duplicates from it.
#[derive(Default)]
pub(super) struct Completions {
    pending: Mutex<Pending>,
    /// As many as are pending; so that nobody takes the lock in vain.
    count: AtomicUsize,
}

#[derive(Default)]
struct Pending {
    completions: HashMap<Key, Completion>,
    /// Whether a task writes them.
    worked: bool,
}

#[derive(Clone)]
struct Completion {
    token: Token,
    record: Record,
    since: Instant,
    settings: Arc<Settings>,
}

impl Completions {
    /// How the event was completed, where that is pending.
    pub(super) fn get(&self, key: &Key) -> Option<Record> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        Some(self.lock().completions.get(key)?.record.clone())
    }

    /// Stops trying to write it. `false`: it was not pending.
    pub(super) fn forget(&self, key: &Key) -> bool {
        self.update(|pending| pending.completions.remove(key))
            .is_some()
    }

    /// Removes it, unless another completion has taken its place.
    fn remove(&self, key: &Key, token: Token) -> bool {
        self.update(|pending| {
            let found = pending
                .completions
                .get(key)
                .is_some_and(|found| found.token == token);
            found && pending.completions.remove(key).is_some()
        })
    }

    fn update<T>(&self, change: impl FnOnce(&mut Pending) -> T) -> T {
        let mut pending = self.lock();
        let changed = change(&mut pending);
        self.count
            .store(pending.completions.len(), Ordering::Release);
        changed
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    /// Makes room for one; what had to go is returned.
    fn make_room(&mut self) -> Option<Key> {
        if self.completions.len() < MOST {
            return None;
        }
        let oldest = self
            .completions
            .iter()
            .min_by_key(|(_, completion)| completion.since);
        let key = oldest.map(|(key, _)| key.clone())?;
        self.completions.remove(&key);
        Some(key)
    }
}

impl<St: LeaseStore> Dedup<St> {
    /// Writes the record in the background, until it is written, refused or too old.
    pub(super) fn complete_later(&self, key: Key, token: Token, record: Record) {
        self.settings
            .emit(&DedupEvent::CompletionPending { key: key.clone() });
        let settings = self.settings.clone();
        let completion = Completion {
            token,
            record,
            since: Instant::now(),
            settings,
        };
        let (dropped, worked) = self.shared.completions.update(|pending| {
            let dropped = pending.make_room();
            pending.completions.insert(key, completion);
            (dropped, std::mem::replace(&mut pending.worked, true))
        });
        if !worked {
            // Not under the lock: a runtime that is ending drops the task at once.
            let work = Work {
                shared: self.shared.clone(),
                finished: false,
            };
            self.shared.tracker.spawn(work.run());
        }
        if let Some(key) = dropped {
            self.settings.emit(&DedupEvent::CompletionDropped { key });
        }
    }
}

/// The task that writes them. It lasts for as long as there are any.
struct Work<St: LeaseStore> {
    shared: Arc<Shared<St>>,
    finished: bool,
}

impl<St: LeaseStore> Work<St> {
    async fn run(mut self) {
        let mut pace = Pace::new(RETRY.0, RETRY.1);
        while let Some(pending) = self.pending() {
            let tried = pending.len();
            // Their leases must not run out between two tries.
            let leases = pending.iter().map(|(_, it)| it.settings.lease);
            let longest = leases.min().unwrap_or(RETRY.1) / 3;
            stream::iter(pending)
                .for_each_concurrent(AT_ONCE, |(key, completion)| self.write(key, completion))
                .await;
            if self.shared.completions.lock().completions.len() < tried {
                pace.restart();
            }
            sleep(pace.pause().min(longest)).await;
        }
    }

    /// What is pending; `None` ends the task, in the same step in which nothing was.
    fn pending(&mut self) -> Option<Vec<(Key, Completion)>> {
        let mut pending = self.shared.completions.lock();
        if pending.completions.is_empty() {
            pending.worked = false;
            self.finished = true;
            return None;
        }
        Some(
            pending
                .completions
                .iter()
                .map(|(key, it)| (key.clone(), it.clone()))
                .collect(),
        )
    }

    async fn write(&self, key: Key, completion: Completion) {
        let Completion {
            token,
            record,
            since,
            settings,
        } = completion;
        let dedup = Dedup {
            shared: self.shared.clone(),
            settings,
        };
        let (completions, settings) = (&dedup.shared.completions, &dedup.settings);
        match dedup.call_complete(&key, token, &record).await {
            Ok(written) => {
                completions.remove(&key, token);
                let status = record.status();
                settings.emit(&if written {
                    DedupEvent::Completed { key, status }
                } else {
                    DedupEvent::LeaseLost { key }
                });
            }
            Err(_) if since.elapsed() >= OLDEST => {
                if completions.remove(&key, token) {
                    settings.emit(&DedupEvent::CompletionDropped { key });
                }
            }
            // Where records cannot be written, the lease often still can be renewed (a full
            // Redis): nobody takes the event over meanwhile.
            Err(_) => _ = dedup.call_renew(&key, token).await,
        }
    }
}

impl<St: LeaseStore> Drop for Work<St> {
    /// When the runtime ends under the task, the next completion starts another.
    fn drop(&mut self) {
        if !self.finished {
            self.shared.completions.lock().worked = false;
        }
    }
}
