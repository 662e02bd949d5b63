//! What the engine is told: times and caps.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::panicking,
    time::Duration,
};

use crate::DedupEvent;

/// The settings of a [`Dedup`](crate::Dedup). Shared state lives elsewhere, so that setters may come in
/// any order and at any time before the first request.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) lease: Duration,
    pub(crate) run_limit: Duration,
    pub(crate) retention: Duration,
    pub(crate) store_timeout: Duration,
    pub(crate) limits: Limits,
    pub(crate) on_event: Option<Arc<OnEvent>>,
}

pub(crate) type OnEvent = dyn Fn(&DedupEvent) + Send + Sync;

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            run_limit: Duration::from_secs(5 * 60),
            retention: Duration::from_secs(4 * 24 * 3600),
            store_timeout: Duration::from_millis(300),
            limits: Limits::default(),
            on_event: None,
        }
    }
}

impl Settings {
    /// Failures are only worth remembering while the sender may still retry.
    const KEEP_FAILED: Duration = Duration::from_secs(24 * 3600);

    /// How long a completed event is kept. A record must not be gone before the lease that it
    /// replaces would be.
    pub(crate) fn retention(&self) -> Duration {
        self.retention.max(self.lease)
    }

    /// How long a failed event is kept.
    pub(crate) fn keep_failed(&self) -> Duration {
        self.retention().min(Self::KEEP_FAILED)
    }

    /// How long one store call may take. A lease must outlive a few of them, or no renewal can be
    /// in time.
    pub(crate) fn store_timeout(&self) -> Duration {
        self.store_timeout.min(self.lease / 4)
    }

    pub(crate) fn emit(&self, event: &DedupEvent) {
        #[cfg(feature = "tracing")]
        event.trace();
        let Some(on_event) = &self.on_event else {
            return;
        };
        if panicking() {
            // Events are also emitted while a panic drops a lease: a second one would abort the
            // process.
            _ = catch_unwind(AssertUnwindSafe(|| on_event(event)));
        } else {
            on_event(event);
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("lease", &self.lease)
            .field("run_limit", &self.run_limit)
            .field("retention", &self.retention)
            .field("store_timeout", &self.store_timeout)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Refuses what no one can have meant: nothing at all, or more than a clock can count.
#[track_caller]
pub(crate) fn checked(name: &str, time: Duration) -> Duration {
    const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
    assert!(
        time >= Duration::from_millis(1),
        "the {name} must be at least a millisecond"
    );
    assert!(time <= LONGEST, "the {name} must be at most ten years");
    time
}

/// Caps on what one layer keeps in memory and in the background.
///
/// ```
/// use std::time::Duration;
/// use tower_webhook_dedup::Limits;
///
/// let limits = Limits::default().standbys(1_000).standby_age(Duration::from_secs(3_600));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Limits {
    pub(crate) standbys: usize,
    pub(crate) standby_age: Duration,
    pub(crate) waiters: usize,
    pub(crate) detached_runs: usize,
    pub(crate) bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            standbys: 256,
            standby_age: Duration::from_secs(24 * 3600),
            waiters: 1024,
            detached_runs: 1024,
            bytes: 64 * 1024 * 1024,
        }
    }
}

impl Limits {
    /// For how many events this process stands by at once. At the cap a duplicate in flight is
    /// refused with 503, since a promise that cannot be kept is not made.
    ///
    /// Defaults to 256.
    pub const fn standbys(mut self, count: usize) -> Self {
        self.standbys = count;
        self
    }

    /// How long a standby goes on trying before it reports its event as [`Lost`](crate::Lost).
    ///
    /// Defaults to 24 hours.
    ///
    /// # Panics
    ///
    /// If it is below a millisecond or above ten years.
    #[track_caller]
    pub fn standby_age(mut self, age: Duration) -> Self {
        self.standby_age = checked("age of standbys", age);
        self
    }

    /// How many duplicates wait at once under [`InFlight::Wait`](crate::InFlight::Wait). At the cap a
    /// duplicate does not wait: it is answered at once, as after the longest wait.
    ///
    /// Defaults to 1 024.
    pub const fn waiters(mut self, count: usize) -> Self {
        self.waiters = count;
        self
    }

    /// How many runs go on at once after their senders hung up. At the cap the handler is
    /// cancelled and the lease released.
    ///
    /// Defaults to 1 024.
    pub const fn detached_runs(mut self, count: usize) -> Self {
        self.detached_runs = count;
        self
    }

    /// How many bytes of requests standbys, waiters and detached runs hold together. At the cap it
    /// goes as at the cap of each.
    ///
    /// Defaults to 64 MiB.
    pub const fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }
}
