//! Releases that nobody waits for: of dropped leases, and of acquires that may still land.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::stream::FuturesUnordered;
use tokio::{sync::Notify, time::Instant};

use super::{
    Dedup, Settings, Shared,
    pace::{Pace, sleep},
};
use crate::{Key, LeaseStore, Release, Token, mutex::Mutex};

/// At the cap the oldest is let go: its lease runs out.
const MOST: usize = 4096;

/// How many are sent at once.
const AT_ONCE: usize = 64;

/// The pauses after failed tries: short, since the events are blocked meanwhile.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));

/// An old command can land after the release that followed it; so it is released once more.
const AGAIN: Duration = Duration::from_secs(1);

/// For so long after a drain began it is tried to release; what remains runs out.
const HURRY: Duration = Duration::from_secs(2);

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
    pace: Pace,
    due: Instant,
    /// The lease has run out by then.
    until: Instant,
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
            pace: Pace::new(RETRY.0, RETRY.1),
            due: now,
            until,
        };
        // Outside a runtime nothing can be sent, and the lease runs out; and it must not seem to
        // others that there was a task.
        let can_spawn = self.tracker().can_spawn();
        let start = {
            let mut queue = self.shared.releases.queue.lock();
            if queue.waiting.len() >= MOST {
                queue.waiting.pop_front();
            }
            queue.waiting.push_back(waiting);
            let start = can_spawn && !queue.worked;
            queue.worked |= start;
            start
        };
        if start {
            // Not under the lock: a runtime that is ending drops the task at once.
            let work = Work {
                shared: self.shared.clone(),
                finished: false,
            };
            self.shared.tracker.spawn(work.run());
        } else {
            self.shared.releases.pushed.notify_one();
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
        // One that hangs holds up none of the others.
        let mut sending = FuturesUnordered::new();
        while self.goes_on(sending.is_empty()) {
            for waiting in self.take_due(AT_ONCE - sending.len()) {
                sending.push(send(self.shared.clone(), waiting));
            }
            let next = (sending.len() < AT_ONCE).then(|| self.next_due());
            sleep(next.flatten(), &self.shared.releases.pushed, &mut sending).await;
        }
    }

    /// `false` ends the task, in the same step in which there was nothing left.
    fn goes_on(&mut self, idle: bool) -> bool {
        let mut queue = self.shared.releases.queue.lock();
        self.finished = idle && queue.waiting.is_empty();
        queue.worked = !self.finished;
        queue.worked
    }

    fn next_due(&self) -> Option<Instant> {
        let queue = self.shared.releases.queue.lock();
        queue.waiting.iter().map(|waiting| waiting.due).min()
    }

    /// So many of those that are due, oldest first.
    fn take_due(&self, most: usize) -> Vec<Waiting> {
        let now = Instant::now();
        let mut taken = Vec::new();
        let mut queue = self.shared.releases.queue.lock();
        for _ in 0..queue.waiting.len() {
            let Some(waiting) = queue.waiting.pop_front() else {
                break;
            };
            if waiting.due <= now && taken.len() < most {
                taken.push(waiting);
            } else {
                queue.waiting.push_back(waiting);
            }
        }
        taken
    }
}

async fn send<St: LeaseStore>(shared: Arc<Shared<St>>, mut waiting: Waiting) {
    let (settings, key) = (waiting.settings.clone(), &waiting.key);
    let dedup = Dedup { shared, settings };
    let released = dedup.call_release(key, waiting.token, waiting.release);
    let released = released.await;
    let now = Instant::now();
    let next = match released {
        Ok(_) if waiting.again => Waiting {
            again: false,
            due: now + AGAIN,
            ..waiting
        },
        Ok(_) => return,
        Err(_) => Waiting {
            due: now + waiting.pace.pause(),
            ..waiting
        },
    };
    let draining = dedup.tracker().draining_since();
    let until = draining.map_or(next.until, |since| next.until.min(since + HURRY));
    if next.due < until {
        dedup.shared.releases.queue.lock().waiting.push_back(next);
    }
}

impl<St: LeaseStore> Drop for Work<St> {
    /// When the runtime ends under the task, the next release starts another.
    fn drop(&mut self) {
        if !self.finished {
            self.shared.releases.queue.lock().worked = false;
        }
    }
}
