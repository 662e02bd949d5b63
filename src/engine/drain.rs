//! Bringing background work to an end before the process ends.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::time::timeout;

use super::Dedup;
use crate::{Key, LeaseStore, Lost, LostReason};

/// Waits, at shutdown, for what goes on in the background; made by
/// [`WebhookDedupLayer::drain_handle`](crate::WebhookDedupLayer::drain_handle).
///
/// Stop accepting requests, let the server finish those it has, then drain. A process that ends
/// without draining breaks the promises that its standbys are. Containers send SIGTERM, which
/// `tokio::signal::ctrl_c` alone does not see; and the server's time to finish and the limit given
/// here must together be shorter than what the platform waits before it kills. So limit the server's
/// time, too: the graceful shutdown of axum waits for ever for a sender that stalls in the middle of
/// a request.
///
/// ```
/// use std::time::Duration;
/// use tower_webhook_dedup::{EventId, MemoryStore, WebhookDedupLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"));
/// let drain = layer.drain_handle();
/// // … serve until told to stop …
/// let drained = drain.drain(Duration::from_secs(20)).await;
/// assert!(drained.is_complete());
/// # }
/// ```
#[derive(Clone)]
pub struct DrainHandle(Arc<dyn Drain>);

/// What was still open when the limit of [`DrainHandle::drain`] was over.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Drained {
    lost: Vec<Lost>,
    detached: Vec<Key>,
    unwritten: Vec<Key>,
    complete: bool,
}

impl DrainHandle {
    pub(super) fn new(dedup: Dedup<impl LeaseStore>) -> Self {
        Self(Arc::new(dedup))
    }

    /// Waits until all detached runs, standbys, releases and background completions are over, and
    /// all requests that are still under way, for as long as `limit`.
    ///
    /// It does not wait for what the application does itself, by [`Dedup::run`] or under a
    /// [`Lease`](crate::Lease): let that end first, such as in a `TaskTracker` of `tokio-util`. What such
    /// runs leave to be written or released is waited for.
    ///
    /// From the first moment on, duplicates of running events are refused with 503, since nobody
    /// would be there to keep the promise, and standbys try at once; the gate, that of all clones of
    /// the layer, does not open again. At the limit, standbys are ended after one last look into the
    /// store, each with a [`DedupEvent::Lost`](crate::DedupEvent::Lost), and returned. The rest goes
    /// on for as long as the process does.
    pub async fn drain(&self, limit: Duration) -> Drained {
        self.0.close();
        let idle = timeout(limit, self.0.idle()).await.is_ok();
        if idle && self.0.unwritten().is_empty() {
            return Drained {
                complete: true,
                ..Drained::default()
            };
        }
        Drained {
            lost: self.0.end().await,
            detached: self.0.detached(),
            unwritten: self.0.unwritten(),
            complete: false,
        }
    }
}

impl fmt::Debug for DrainHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DrainHandle").finish_non_exhaustive()
    }
}

impl Drained {
    /// Whether nothing was left.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// The acknowledged events that nobody in this process takes care of any more, with their
    /// requests.
    #[must_use]
    pub fn lost(&self) -> &[Lost] {
        &self.lost
    }

    /// The events whose runs go on without a sender.
    #[must_use]
    pub fn detached(&self) -> &[Key] {
        &self.detached
    }

    /// The events that were completed, which the store has not been told yet: they may run again.
    #[must_use]
    pub fn unwritten(&self) -> &[Key] {
        &self.unwritten
    }
}

/// [`Dedup`] without its store's type.
trait Drain: Send + Sync {
    fn close(&self);
    fn idle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    fn end(&self) -> Pin<Box<dyn Future<Output = Vec<Lost>> + Send + '_>>;
    fn detached(&self) -> Vec<Key>;
    fn unwritten(&self) -> Vec<Key>;
}

impl<St: LeaseStore> Drain for Dedup<St> {
    fn close(&self) {
        self.tracker().close();
        self.hurry_completions();
    }

    fn idle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.tracker().idle())
    }

    fn end(&self) -> Pin<Box<dyn Future<Output = Vec<Lost>> + Send + '_>> {
        Box::pin(self.end_standbys(LostReason::Drained))
    }

    fn detached(&self) -> Vec<Key> {
        self.tracker().detached()
    }

    fn unwritten(&self) -> Vec<Key> {
        self.shared.completions.keys()
    }
}
