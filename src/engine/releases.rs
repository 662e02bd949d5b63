//! Releases that nobody waits for: of dropped leases, and of acquires that may still land.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{Dedup, Settings, Shared};
use crate::{Key, LeaseStore, Release, Token};

/// At the cap the oldest is let go: its lease runs out.
const MOST: usize = 4096;

/// How many are sent at once.
const AT_ONCE: usize = 64;

/// The pause after a failed try: short, since the events are blocked meanwhile.
const RETRY: Duration = Duration::from_millis(250);

/// An old command can land after the release that followed it; so it is released once more.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Releases {
    queue: Mutex<Queue>,
    /// Wakes the task: something new is due before what it sleeps for.
    pushed: Notify,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Whether a task works the queue off.
    worked: bool,
}

struct Waiting {
    key: Key,
    token: Token,
    release: Release,
    again: bool,
    settings: Arc<Settings>,
    due: Instant,
    /// The lease has run out by then.
    until: Instant,
}

impl Releases {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<St: LeaseStore> Dedup<St> {
    /// Releases the token in the background; with `again`, once more a second later.
    pub(super) fn release_later(&self, key: Key, token: Token, release: Release, again: bool) {
        let now = Instant::now();
        let (settings, until) = (self.settings.clone(), now + self.settings.lease);
        let waiting = Waiting {
            key,
            token,
            release,
            again,
            settings,
            due: now,
            until,
        };
        let worked = {
            let mut queue = self.shared.releases.lock();
            if queue.waiting.len() >= MOST {
                queue.waiting.pop_front();
            }
            queue.waiting.push_back(waiting);
            std::mem::replace(&mut queue.worked, true)
        };
        if worked {
            self.shared.releases.pushed.notify_one();
        } else {
            // Not under the lock: a runtime that is ending drops the task at once. Outside a
            // runtime nothing can be sent, and the lease runs out.
            let work = Work {
                shared: self.shared.clone(),
                finished: false,
            };
            self.shared.tracker.spawn(work.run());
        }
    }
}

/// The task that works the queue off. It lasts for as long as there is something in it.
struct Work<St: LeaseStore> {
    shared: Arc<Shared<St>>,
    finished: bool,
}

impl<St: LeaseStore> Work<St> {
    async fn run(mut self) {
        while let Some(next) = self.next_due() {
            if timeout_at(next, self.shared.releases.pushed.notified())
                .await
                .is_ok()
            {
                continue;
            }
            let due = self.take_due();
            stream::iter(due)
                .for_each_concurrent(AT_ONCE, |waiting| self.release(waiting))
                .await;
        }
    }

    /// When to look again; `None` ends the task, in the same step in which the queue was empty.
    fn next_due(&mut self) -> Option<Instant> {
        let mut queue = self.shared.releases.lock();
        let next = queue.waiting.iter().map(|waiting| waiting.due).min();
        if next.is_none() {
            queue.worked = false;
            self.finished = true;
        }
        next
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.shared.releases.lock()
    }

    fn take_due(&self) -> Vec<Waiting> {
        let now = Instant::now();
        let mut queue = self.queue();
        let (due, rest): (Vec<_>, Vec<_>) = queue
            .waiting
            .drain(..)
            .partition(|waiting| waiting.due <= now);
        queue.waiting.extend(rest);
        due
    }

    async fn release(&self, waiting: Waiting) {
        let Waiting {
            key,
            token,
            release,
            settings,
            ..
        } = &waiting;
        let dedup = Dedup {
            shared: self.shared.clone(),
            settings: settings.clone(),
        };
        let released = dedup.call_release(key, *token, *release).await;
        let now = Instant::now();
        let next = match released {
            Ok(_) if waiting.again => Waiting {
                again: false,
                due: now + AGAIN,
                ..waiting
            },
            Ok(_) => return,
            Err(_) => Waiting {
                due: now + RETRY,
                ..waiting
            },
        };
        if next.due < next.until {
            self.queue().waiting.push_back(next);
        }
    }
}

impl<St: LeaseStore> Drop for Work<St> {
    /// When the runtime ends under the task, the next release starts another.
    fn drop(&mut self) {
        if !self.finished {
            self.queue().worked = false;
        }
    }
}
