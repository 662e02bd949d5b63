//! One store until it fails, then another, and back again.

mod back;
mod book;
mod calls;
mod error;
mod line;
mod shared;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use self::shared::Shared;
use super::{LeaseStore, StoreErrorKind};

pub use self::error::FallbackError;

/// A [`LeaseStore`] that asks `P`, the primary, until it fails, and then goes on with `S`, the
/// secondary, until the primary is well again. The secondary is usually a
/// [`MemoryStore`](crate::MemoryStore).
///
/// ```
/// use tower_webhook_dedup::{EventId, Fallback, MemoryStore, WebhookDedupLayer};
///
/// # let redis = MemoryStore::new();
/// let store = Fallback::new(redis, MemoryStore::new())
///     .on_switch(|switch| eprintln!("webhook store: {switch:?}"));
/// let layer = WebhookDedupLayer::new(store, EventId::pointer("/id"));
/// ```
///
/// # While degraded, processes are not protected from each other
///
/// On its secondary, a process knows what went through itself and nothing else. It runs an event
/// that another process runs at the same moment, or completed before the outage; each event still
/// runs once *per process*. A process that ends meanwhile takes along what it did not carry back.
/// Where a second run is worse than a refusal, use the primary alone.
///
/// What a process did by itself stays known through both switches:
///
/// - Its leases are mirrored in the secondary with the same token as they are taken, renewed and
///   ended, and so are its completions, for as long as the secondary has room. A failing or slow
///   secondary holds up nothing while the primary works.
/// - A run that is in flight during a switch keeps its token: its heartbeat and its completion go
///   on in the other store.
///
/// # When it switches
///
/// At the first failure of the primary of the kinds [`Unreachable`](StoreErrorKind::Unreachable),
/// [`TimedOut`](StoreErrorKind::TimedOut), [`ReadOnly`](StoreErrorKind::ReadOnly) and
/// [`OutOfMemory`](StoreErrorKind::OutOfMemory). The call that meets it is answered by the
/// secondary, within its deadline: the primary gets half of the time, the secondary the rest.
/// All others stay errors: [`Denied`](StoreErrorKind::Denied) is a mistake in the configuration,
/// [`BadReply`](StoreErrorKind::BadReply) damaged data, and a process that quietly worked around
/// either would do so for ever.
///
/// # How it comes back
///
/// While degraded, no call waits for the primary. A background task takes and releases a lease of
/// its own there (`webhook:lock:fallback-probe:…`, for a second), one try after each
/// [pause](Self::probe_pause). Where that works, it writes to the primary what this process knows
/// better, and only then is the primary asked again:
///
/// - completions, those from before the outage included, since a primary may come back empty;
/// - leases that are still live, with their tokens;
/// - releases of leases that the primary may still hold, or that may yet land there.
///
/// If that fails, the process stays on the secondary and the task tries again. Where the primary
/// has meanwhile given a live event to another token, or it is done there, this process's run goes
/// on, and its event stays in the secondary until the run has ended and the other one, too; events
/// that came up in the last moment stay until they are carried over as well. An event that an
/// operator let run again through *another* process shortly before the outage, and that did not
/// run since, is recorded as done once more. Failed attempts during the outage are not carried over.
///
/// # While the secondary decides
///
/// It does so about every event while degraded, and about some for a while after that: those that
/// are contested, or came up in the last moment. Where it fails for one of these, its error is the
/// answer, although the primary may be well by then, and the layer's
/// [`store_failure`](crate::WebhookDedupLayer::store_failure) applies. Asking the primary instead
/// could run an event that the secondary has given to somebody. A
/// [`MemoryStore`](crate::MemoryStore) fails only when it is full of running leases.
///
/// # Bounds
///
/// This process keeps its last [`completions`](Self::completions) (10 000), 65 536 live leases and
/// 4 096 releases to carry back. At the cap the oldest completion or release goes, and a new lease
/// is not carried back: the primary then does not learn of it. The answers that those completions
/// [keep for duplicates](crate::Duplicate::Replay) take 64 MiB at most; beyond that the oldest go, and
/// their events are carried back without. The memory of the secondary is its own to bound; what it
/// displaces is forgotten here as well.
#[must_use]
pub struct Fallback<P: LeaseStore, S: LeaseStore> {
    shared: Arc<Shared<P, S>>,
    settings: Settings,
}

/// Told to the hook of [`Fallback::on_switch`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Switch {
    /// From the primary to the secondary: processes are not protected from each other from now on.
    #[non_exhaustive]
    Out {
        /// How the primary failed.
        kind: StoreErrorKind,
    },
    /// Back to the primary.
    #[non_exhaustive]
    Back {
        /// How long it was away.
        after: Duration,
        /// How many leases, completions and releases the primary was told.
        carried: usize,
        /// How many of this process's events another process holds in the primary; they stay in the
        /// secondary until both have ended.
        contested: usize,
        /// How many completions were not carried over, for lack of room for them.
        dropped: usize,
    },
}

#[derive(Clone)]
struct Settings {
    probe_pause: Duration,
    probe_timeout: Duration,
    completions: usize,
    on_switch: Option<Arc<OnSwitch>>,
}

type OnSwitch = dyn Fn(&Switch) + Send + Sync;

impl Settings {
    fn tell(&self, switch: &Switch) {
        if let Some(on_switch) = &self.on_switch {
            // Its panic is no reason to leave a request unanswered, or the primary unwatched.
            _ = catch_unwind(AssertUnwindSafe(|| on_switch(switch)));
        }
    }
}

impl<P: LeaseStore, S: LeaseStore> Fallback<P, S> {
    /// Asks `primary`, and `secondary` while it fails.
    pub fn new(primary: P, secondary: S) -> Self {
        Self {
            shared: Arc::new(Shared::new(primary, secondary)),
            settings: Settings {
                probe_pause: Duration::from_secs(1),
                probe_timeout: Duration::from_secs(1),
                completions: 10_000,
                on_switch: None,
            },
        }
    }

    /// How long to wait before the primary is tried again.
    ///
    /// Defaults to 1 second.
    ///
    /// # Panics
    ///
    /// If it is below a millisecond.
    #[track_caller]
    pub const fn probe_pause(mut self, pause: Duration) -> Self {
        assert!(
            pause.as_millis() > 0,
            "the pause between probes must be at least a millisecond"
        );
        self.settings.probe_pause = pause;
        self
    }

    /// How long the primary may take for each call of the background task: a probe, or something
    /// that is carried back. No request waits for these.
    ///
    /// Defaults to 1 second.
    ///
    /// # Panics
    ///
    /// If it is below a millisecond.
    #[track_caller]
    pub const fn probe_timeout(mut self, timeout: Duration) -> Self {
        assert!(
            timeout.as_millis() > 0,
            "the timeout of probes must be at least a millisecond"
        );
        self.settings.probe_timeout = timeout;
        self
    }

    /// How many of this process's last completions are kept to be carried back, some 250 bytes
    /// each. With zero, none is.
    ///
    /// Defaults to 10 000.
    pub const fn completions(mut self, count: usize) -> Self {
        self.settings.completions = count;
        self
    }

    /// Calls this at each switch, where to log and count them: in a call that met the failure, or in
    /// the background task. It must be quick. A panic in it is caught.
    ///
    /// Worth an alert: with `tracing`, for example
    /// `store.on_switch(|switch| tracing::error!(?switch, "webhook store"))`.
    ///
    /// Defaults to none.
    pub fn on_switch(mut self, on_switch: impl Fn(&Switch) + Send + Sync + 'static) -> Self {
        self.settings.on_switch = Some(Arc::new(on_switch));
        self
    }

    /// Whether the primary has failed and the secondary is asked now.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.shared.lock().down.is_some()
    }
}

impl<P: LeaseStore, S: LeaseStore> Clone for Fallback<P, S> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            settings: self.settings.clone(),
        }
    }
}

// Not derived: that would ask the stores to be `Debug`.
impl<P: LeaseStore, S: LeaseStore> fmt::Debug for Fallback<P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("degraded", &self.is_degraded())
            .field("probe_pause", &self.settings.probe_pause)
            .field("probe_timeout", &self.settings.probe_timeout)
            .field("completions", &self.settings.completions)
            .finish_non_exhaustive()
    }
}
