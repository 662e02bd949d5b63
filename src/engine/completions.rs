//! Completions that could not be written yet.

mod writer;

use std::{
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use self::writer::Writer;
use super::{Dedup, Settings, pace::Pace, tracker::Booked};
use crate::{
    DedupEvent, Key, LeaseStore, Record, StoredAnswer, Token, identity::KeyMap, mutex::Mutex,
};

/// At the cap the oldest is dropped and reported.
const MOST: usize = 4096;

/// The pauses between tries; never longer than a third of the lease, which is renewed with each.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// While one is pending, this process answers its duplicates from it.
#[derive(Default)]
pub(super) struct Completions {
    pending: Mutex<Pending>,
    /// As many as are pending; so that nobody takes the lock in vain.
    count: AtomicUsize,
    /// Wakes the task: there is a new one, or little time left.
    added: Notify,
}

#[derive(Default)]
struct Pending {
    completions: KeyMap<Completion>,
    /// Whether a task writes them.
    worked: bool,
}

struct Completion {
    run: Succeeded,
    /// Other runs of the event that succeeded here: one whose lease ran out, and one that took
    /// over. The store takes the completion of the one that holds the event, whichever that is.
    others: Vec<Succeeded>,
    settings: Arc<Settings>,
    since: Instant,
    pace: Pace,
    due: Instant,
    /// It is being written, and if nothing has come of that by then, it is not any more.
    busy: Instant,
    /// Whether it was forgotten; for those that are writing it.
    forgotten: Arc<AtomicBool>,
}

struct Succeeded {
    token: Token,
    record: Record,
    /// The memory of the answer in the record.
    _bytes: Option<Booked>,
}

impl Completions {
    /// The events whose completions are pending.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.lock().completions.keys().cloned().collect()
    }

    /// Stops trying to write it, where it is pending; the lease of one of these tokens is held for
    /// it.
    pub(super) fn forget(&self, key: &Key) -> Vec<Token> {
        let forgotten = self.update(|pending| pending.completions.remove(key));
        let runs = forgotten.into_iter().flat_map(|it| {
            it.forgotten.store(true, Ordering::Release);
            it.others.into_iter().chain([it.run])
        });
        runs.map(|run| run.token).collect()
    }

    /// Stops trying to write it, unless another completion has taken its place.
    fn remove(&self, key: &Key, token: Token) -> bool {
        self.update(|pending| {
            pending.holds(key, token) && pending.completions.remove(key).is_some()
        })
    }

    /// Another token holds the event. Another run that succeeded here is written in its place.
    fn refused(&self, key: &Key, token: Token) {
        self.update(|pending| {
            let Some(completion) = pending.completions.get_mut(key) else {
                return;
            };
            if completion.run.token != token {
                completion.others.retain(|other| other.token != token);
            } else if let Some(other) = completion.others.pop() {
                completion.run = other;
                completion.due = Instant::now();
                completion.busy = completion.due;
            } else {
                pending.completions.remove(key);
            }
        });
    }

    /// How many runs of the event succeeded here.
    fn runs(&self, key: &Key) -> usize {
        let pending = self.lock();
        let completion = pending.completions.get(key);
        completion.map_or(0, |it| 1 + it.others.len())
    }

    /// Another token holds the event for now: it may be that of the next run that succeeded here.
    fn turn(&self, key: &Key, token: Token) -> Option<Token> {
        let mut pending = self.lock();
        let completion = pending.completions.get_mut(key);
        let completion = completion.filter(|it| it.run.token == token)?;
        let other = completion.others.pop()?;
        let refused = std::mem::replace(&mut completion.run, other);
        completion.others.insert(0, refused);
        Some(completion.run.token)
    }

    /// It was tried in vain, and can be tried again; `false` where it is not pending any more.
    fn tried(&self, key: &Key, token: Token) -> bool {
        let mut pending = self.lock();
        let holds = pending.holds(key, token);
        if let Some(completion) = pending.completions.get_mut(key).filter(|_| holds) {
            completion.busy = Instant::now();
        }
        holds
    }

    fn update<T>(&self, change: impl FnOnce(&mut Pending) -> T) -> T {
        let mut pending = self.lock();
        let changed = change(&mut pending);
        self.count
            .store(pending.completions.len(), Ordering::Release);
        changed
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock()
    }
}

impl Completion {
    /// When it is tried next.
    fn next(&self) -> Instant {
        self.due.max(self.busy)
    }
}

impl Drop for Completions {
    /// The layer is gone, and nobody writes them any more.
    fn drop(&mut self) {
        let pending = std::mem::take(&mut *self.lock());
        for (key, Completion { settings, .. }) in pending.completions {
            settings.emit(&DedupEvent::CompletionDropped { key });
        }
    }
}

impl Pending {
    fn holds(&self, key: &Key, token: Token) -> bool {
        self.completions.get(key).is_some_and(|found| {
            let mut others = found.others.iter();
            found.run.token == token || others.any(|other| other.token == token)
        })
    }

    /// Makes room for one of this key; what had to go is returned.
    fn make_room(&mut self, key: &Key) -> Option<(Key, Completion)> {
        if self.completions.len() < MOST || self.completions.contains_key(key) {
            return None;
        }
        let oldest = self.completions.iter().min_by_key(|(_, it)| it.since);
        let oldest = oldest.map(|(key, _)| key.clone())?;
        self.completions.remove_entry(&oldest)
    }
}

impl<St: LeaseStore> Dedup<St> {
    /// Writes the record in the background, until it is written, refused or too old.
    pub(super) fn complete_later(&self, key: Key, token: Token, record: Record) {
        self.settings
            .emit(&DedupEvent::CompletionPending { key: key.clone() });
        let now = Instant::now();
        let mut completion = Completion {
            run: self.booked(token, record),
            others: Vec::new(),
            settings: self.settings.clone(),
            since: now,
            pace: Pace::new(RETRY.0, RETRY.1.min(self.settings.lease / 3)),
            due: now,
            busy: now,
            forgotten: Arc::default(),
        };
        let dropped = self.shared.completions.update(|pending| {
            let dropped = pending.make_room(&key);
            if let Some(earlier) = pending.completions.remove(&key) {
                completion.others = earlier.others;
                completion.others.push(earlier.run);
                completion.since = earlier.since;
                completion.forgotten = earlier.forgotten;
            }
            pending.completions.insert(key, completion);
            dropped
        });
        if let Some((key, Completion { settings, .. })) = dropped {
            settings.emit(&DedupEvent::CompletionDropped { key });
        }
        self.shared.completions.added.notify_one();
        self.write_completions();
    }

    /// Without its answer, where there is no room for that.
    fn booked(&self, token: Token, record: Record) -> Succeeded {
        let size = record.answer().map(StoredAnswer::size);
        let bytes = size.and_then(|size| self.tracker().book(size, &self.settings.limits));
        let record = match size {
            Some(_) if bytes.is_none() => record.with_answer(None),
            _ => record,
        };
        Succeeded {
            token,
            record,
            _bytes: bytes,
        }
    }

    /// How the event was completed, where that is pending.
    pub(super) fn pending_completion(&self, key: &Key) -> Option<Record> {
        let completions = &self.shared.completions;
        if completions.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.write_completions();
        Some(completions.lock().completions.get(key)?.run.record.clone())
    }

    /// There is little time left: what is pending is tried at once, and at short pauses.
    pub(super) fn hurry_completions(&self) {
        self.shared.completions.added.notify_one();
        self.write_completions();
    }

    /// Has a task write what is pending: where it became so outside a runtime, or where the
    /// task's runtime has ended, there is none.
    fn write_completions(&self) {
        // Outside a runtime it must not seem to others that there was one.
        let can_spawn = self.tracker().can_spawn();
        let start = {
            let mut pending = self.shared.completions.lock();
            let start = can_spawn && !pending.worked && !pending.completions.is_empty();
            pending.worked |= start;
            start
        };
        if start {
            // Not under the lock: a runtime that is ending drops the task at once.
            let writer = Writer::new(self.shared.clone());
            self.shared.tracker.spawn(writer.run());
        }
    }
}
