//! The task that writes what is pending.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::{Completion, RETRY};
use crate::{
    DedupEvent, Entry, Key, LeaseStore, Record, Release, Token,
    engine::{Dedup, Settings, Shared, pace::sleep},
};

/// After this, one is dropped and reported.
const OLDEST: Duration = Duration::from_secs(10 * 60);

/// How many are written at once.
const AT_ONCE: usize = 64;

/// The task that writes them. It lasts for as long as there are any.
pub(super) struct Writer<St: LeaseStore> {
    shared: Arc<Shared<St>>,
    finished: bool,
}

/// One that is due, copied out of the lock.
struct Due {
    key: Key,
    token: Token,
    record: Record,
    settings: Arc<Settings>,
    is_old: bool,
    forgotten: Arc<AtomicBool>,
}

impl<St: LeaseStore> Writer<St> {
    pub(super) const fn new(shared: Arc<Shared<St>>) -> Self {
        let finished = false;
        Self { shared, finished }
    }

    pub(super) async fn run(mut self) {
        // One that hangs holds up none of the others.
        let mut writing = FuturesUnordered::new();
        let mut hurried = false;
        while self.goes_on() {
            if !hurried && self.shared.tracker.is_draining() {
                hurried = true;
                self.hurry();
            }
            for due in self.take_due(AT_ONCE - writing.len(), hurried) {
                writing.push(write(self.shared.clone(), due));
            }
            let next = (writing.len() < AT_ONCE).then(|| self.next_due());
            sleep(next.flatten(), &self.shared.completions.added, &mut writing).await;
        }
    }

    /// `false` ends the task, in the same step in which nothing was pending.
    fn goes_on(&mut self) -> bool {
        let mut pending = self.shared.completions.lock();
        self.finished = pending.completions.is_empty();
        pending.worked = !self.finished;
        pending.worked
    }

    /// There is no time left for long pauses.
    fn hurry(&self) {
        let now = Instant::now();
        let mut pending = self.shared.completions.lock();
        for completion in pending.completions.values_mut() {
            completion.due = now;
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let pending = self.shared.completions.lock();
        pending.completions.values().map(Completion::next).min()
    }

    /// So many of those that are due, those first that have been for the longest time.
    fn take_due(&self, most: usize, hurried: bool) -> Vec<Due> {
        let now = Instant::now();
        let mut pending = self.shared.completions.lock();
        let due = pending.completions.iter_mut();
        let mut due: Vec<_> = due.filter(|(_, it)| it.next() <= now).collect();
        due.sort_by_key(|(_, it)| it.next());
        due.into_iter()
            .take(most)
            .map(|(key, it)| {
                let pause = it.pace.pause();
                it.due = now + if hurried { pause.min(RETRY.0) } else { pause };
                it.busy = now + 3 * it.settings.store_timeout();
                Due {
                    key: key.clone(),
                    token: it.run.token,
                    record: it.run.record.clone(),
                    settings: it.settings.clone(),
                    is_old: now - it.since >= OLDEST,
                    forgotten: it.forgotten.clone(),
                }
            })
            .collect()
    }
}

impl<St: LeaseStore> Drop for Writer<St> {
    /// When the runtime ends under the task, the next call starts another.
    fn drop(&mut self) {
        if !self.finished {
            let mut pending = self.shared.completions.lock();
            pending.worked = false;
            for completion in pending.completions.values_mut() {
                completion.busy = completion.since;
            }
        }
    }
}

async fn write<St: LeaseStore>(shared: Arc<Shared<St>>, due: Due) {
    let Due {
        key,
        token,
        record,
        settings,
        is_old,
        forgotten,
    } = due;
    let dedup = Dedup { shared, settings };
    let completions = &dedup.shared.completions;
    match dedup.call_complete(&key, token, &record).await {
        // It may have landed after the store had forgotten the event.
        Ok(true) | Err(_) if forgotten.load(Ordering::Acquire) => {
            let found = dedup.call_inspect(&key).await;
            if matches!(found, Ok(Some(Entry::Done { token: by, .. })) if by == token) {
                _ = dedup.call_forget(&key, false).await;
            }
        }
        Ok(true) => {
            completions.remove(&key, token);
            if !record.is_given_up() {
                let status = record.status();
                dedup.settings.emit(&DedupEvent::Completed { key, status });
            }
        }
        Ok(false) => {
            completions.refused(&key, token);
            dedup.settings.emit(&DedupEvent::LeaseLost { key });
        }
        Err(_) if is_old => {
            if completions.remove(&key, token) {
                dedup.settings.emit(&DedupEvent::CompletionDropped { key });
            }
        }
        // Where records cannot be written, the lease often still can be renewed (a full Redis):
        // nobody takes the event over meanwhile.
        Err(_) if completions.lock().holds(&key, token) => {
            // Each run in turn and without a pause: the lease of the one that holds it may end soon.
            let (mut renewed, mut runs) = (token, completions.runs(&key));
            while let Ok(false) = dedup.call_renew(&key, renewed).await {
                runs = runs.saturating_sub(1);
                match completions.turn(&key, renewed) {
                    Some(next) if runs > 0 => renewed = next,
                    _ => break,
                }
            }
            // Forgotten meanwhile, the event must not be held by what was just renewed.
            if !completions.tried(&key, renewed) {
                dedup.release_later(key, renewed, Release::Abandoned, true);
            }
        }
        Err(_) => {}
    }
}
