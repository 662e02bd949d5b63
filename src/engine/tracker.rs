//! The one place where tasks are spawned, and where what they hold is counted.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{runtime::Handle, sync::Notify, time::Instant};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use super::Limits;
use crate::{Key, mutex::Mutex};

/// Background work of one layer. Draining waits for all of it.
#[derive(Default)]
pub(crate) struct Tracker {
    tasks: TaskTracker,
    draining: OnceLock<Instant>,
    drain_begun: Notify,
    waiters: AtomicUsize,
    bytes: AtomicUsize,
    /// The events of runs whose senders hung up.
    detached: Mutex<HashMap<u64, Key>>,
    count: AtomicUsize,
    /// What a test puts around each task.
    wrap: OnceLock<Box<Wrap>>,
}

/// A task as a test sees it.
pub(super) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

type Wrap = dyn Fn(Task) -> Task + Send + Sync;

impl Tracker {
    /// Whether this is inside a runtime.
    pub(crate) fn can_spawn(&self) -> bool {
        Handle::try_current().is_ok()
    }

    /// Spawns work that draining waits for. `false` outside a runtime, where nothing can run.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> bool {
        let Ok(runtime) = Handle::try_current() else {
            return false;
        };
        match self.wrap.get() {
            Some(wrap) => drop(self.tasks.spawn_on(wrap(Box::pin(work)), &runtime)),
            None => drop(self.tasks.spawn_on(work, &runtime)),
        }
        true
    }

    /// Spawns work that goes on for as long as the layer lives.
    pub(crate) fn spawn_daemon(&self, work: impl Future<Output = ()> + Send + 'static) -> bool {
        let Ok(runtime) = Handle::try_current() else {
            return false;
        };
        match self.wrap.get() {
            Some(wrap) => drop(runtime.spawn(wrap(Box::pin(work)))),
            None => drop(runtime.spawn(work)),
        }
        true
    }

    /// Puts this around each task from now on.
    #[cfg(feature = "test-util")]
    pub(super) fn wrap(&self, wrap: Box<Wrap>) {
        _ = self.wrap.set(wrap);
    }

    /// Draining waits until this is dropped.
    pub(crate) fn open(&self) -> TaskTrackerToken {
        self.tasks.token()
    }

    /// From now on no promise is made that would outlive this process.
    pub(crate) fn close(&self) {
        self.draining.get_or_init(Instant::now);
        self.drain_begun.notify_waiters();
        self.tasks.close();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get().is_some()
    }

    /// When draining began.
    pub(crate) fn draining_since(&self) -> Option<Instant> {
        self.draining.get().copied()
    }

    /// Resolves when draining begins; at once if it has.
    pub(crate) async fn draining(&self) {
        let begun = self.drain_begun.notified();
        if !self.is_draining() {
            begun.await;
        }
    }

    /// Resolves when no work is left.
    pub(crate) async fn idle(&self) {
        self.tasks.wait().await;
    }

    /// Books bytes of a request that is kept; `None` at the cap.
    pub(crate) fn book(self: &Arc<Self>, bytes: usize, limits: &Limits) -> Option<Booked> {
        let booked = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                held.checked_add(bytes).filter(|&sum| sum <= limits.bytes)
            });
        booked.is_ok().then(|| Booked {
            tracker: self.clone(),
            bytes,
        })
    }

    /// A place among the waiters; `None` at the cap.
    pub(crate) fn wait(self: &Arc<Self>, bytes: usize, limits: &Limits) -> Option<Waiter> {
        let booked = self.book(bytes, limits)?;
        let place = self
            .waiters
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiters| {
                (waiters < limits.waiters).then_some(waiters + 1)
            });
        place.is_ok().then(|| Waiter {
            _bytes: booked,
            tracker: self.clone(),
        })
    }

    /// A place among the detached runs; `None` at the cap.
    pub(crate) fn detach(
        self: &Arc<Self>,
        key: Key,
        bytes: usize,
        limits: &Limits,
    ) -> Option<Detached> {
        let booked = self.book(bytes, limits)?;
        let mut detached = self.detached.lock();
        if detached.len() >= limits.detached_runs {
            return None;
        }
        let n = self.count.fetch_add(1, Ordering::Relaxed) as u64;
        detached.insert(n, key);
        Some(Detached {
            _bytes: booked,
            tracker: self.clone(),
            n,
        })
    }

    /// The events whose detached runs are not over.
    pub(crate) fn detached(&self) -> Vec<Key> {
        self.detached.lock().values().cloned().collect()
    }
}

/// Gives its bytes back when dropped.
pub(crate) struct Booked {
    tracker: Arc<Tracker>,
    bytes: usize,
}

impl Drop for Booked {
    fn drop(&mut self) {
        self.tracker.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Gives its place back when dropped.
pub(crate) struct Waiter {
    _bytes: Booked,
    tracker: Arc<Tracker>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.tracker.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Gives its place back when dropped.
pub(crate) struct Detached {
    _bytes: Booked,
    tracker: Arc<Tracker>,
    n: u64,
}

impl Drop for Detached {
    fn drop(&mut self) {
        self.tracker.detached.lock().remove(&self.n);
    }
}
