//! The engine's front: acquire an event, run it, look at it.

#[cfg(feature = "test-util")]
use std::pin::Pin;
use std::{fmt, future::Future, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use super::{
    Beat, Begun, Error, Lease, Limits, OnEvent, Ran, RunError, Settings, Shared, Tracker,
    call::retry_after, checked, drain::DrainHandle, heartbeat::Superseded,
};
use crate::{Acquire, DedupEvent, Entry, Key, LeaseStore, Record, Release, Token};

/// Deduplication without HTTP: for a queue consumer, or for the elements of a batch.
///
/// Clones share their leases, standbys and background tasks, so keep one and clone it. The layer
/// has one inside: [`WebhookDedupLayer::dedup`](crate::WebhookDedupLayer::dedup).
///
/// Needs a [tokio] runtime with time enabled. What goes on in the background does so on the runtime
/// of the first call that needs it, and moves on to another when that one has ended; one that exists
/// but is not driven holds it up.
///
/// ```
/// use tower_webhook_dedup::{Dedup, Key, MemoryStore, Ran};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn work() -> Result<u32, std::io::Error> { Ok(7) }
/// let dedup = Dedup::new(MemoryStore::new());
/// let key = Key::new("sendgrid", "sg_event_1");
///
/// // Heartbeat, completion and release are taken care of.
/// assert!(matches!(dedup.run(&key, work).await?, Ran::Completed(7)));
/// assert!(matches!(dedup.run(&key, work).await?, Ran::Done(_)));
/// # Ok(())
/// # }
/// ```
pub struct Dedup<St: LeaseStore> {
    pub(super) shared: Arc<Shared<St>>,
    pub(super) settings: Arc<Settings>,
}

impl<St: LeaseStore> Clone for Dedup<St> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            settings: self.settings.clone(),
        }
    }
}

impl<St: LeaseStore> fmt::Debug for Dedup<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dedup")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl<St: LeaseStore> Dedup<St> {
    /// Deduplicates over this store, with the defaults of the [layer](crate::WebhookDedupLayer).
    #[must_use]
    pub fn new(store: St) -> Self {
        let shared = Shared {
            store,
            tracker: Arc::default(),
            heartbeat: Default::default(),
            releases: Default::default(),
            completions: Default::default(),
            standbys: Default::default(),
            namespaces: Default::default(),
        };
        Self {
            shared: Arc::new(shared),
            settings: Arc::default(),
        }
    }

    /// How long a lease lasts unless it is renewed, as it is at a third of that. When a process
    /// dies, its events run again one lease later.
    ///
    /// Defaults to 30 seconds.
    ///
    /// # Panics
    ///
    /// If it is below a millisecond or above ten years.
    #[must_use]
    #[track_caller]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.set().lease = checked("lease", lease);
        self
    }

    /// How long a run may take. Past it, [`run`](Self::run) drops the work and releases its
    /// lease; one from [`begin`](Self::begin) is not renewed any more, and runs out.
    ///
    /// Defaults to 5 minutes.
    ///
    /// # Panics
    ///
    /// If it is below a millisecond or above ten years.
    #[must_use]
    #[track_caller]
    pub fn run_limit(mut self, limit: Duration) -> Self {
        self.set().run_limit = checked("run limit", limit);
        self
    }

    /// How long a completed event is remembered: longer than its sender goes on retrying. The
    /// lease is used where it is longer.
    ///
    /// Defaults to 4 days.
    ///
    /// # Panics
    ///
    /// If it is below a millisecond or above ten years.
    #[must_use]
    #[track_caller]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.set().retention = checked("retention", retention);
        self
    }

    /// How long one call to the store may take; a quarter of the lease where that is shorter.
    ///
    /// Defaults to 300 milliseconds.
    ///
    /// # Panics
    ///
    /// If it is below a millisecond or above ten years.
    #[must_use]
    #[track_caller]
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.set().store_timeout = checked("store timeout", timeout);
        self
    }

    /// Caps on what is kept in memory and in the background.
    ///
    /// Defaults to [`Limits::default`].
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.set().limits = limits;
        self
    }

    /// Calls this with each [`DedupEvent`]. It must be quick: it is called
    /// where the events happen. A panic in it is caught.
    ///
    /// Defaults to none.
    #[must_use]
    pub fn on_event(mut self, on_event: impl Fn(&DedupEvent) + Send + Sync + 'static) -> Self {
        self.set().on_event = Some(Arc::new(on_event) as Arc<OnEvent>);
        self
    }

    fn set(&mut self) -> &mut Settings {
        Arc::make_mut(&mut self.settings)
    }

    /// Runs the work unless the event is running or done. `Ok` completes the event; `Err`, a panic
    /// or dropping the future leaves it runnable.
    ///
    /// # Errors
    ///
    /// If the store failed before the work began, or the work did, or it took too long. A store
    /// that fails after the work is no error: the completion is written in the background.
    pub async fn run<T, E, F>(
        &self,
        key: &Key,
        work: impl FnOnce() -> F,
    ) -> Result<Ran<T>, RunError<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        let lease = match self.begin(key).await.map_err(RunError::Store)? {
            Begun::Acquired(lease) => lease,
            Begun::Done(record) => return Ok(Ran::Done(record)),
            Begun::InFlight { retry_after } => return Ok(Ran::InFlight { retry_after }),
        };
        match timeout(self.settings.run_limit, work()).await {
            Ok(Ok(value)) => {
                lease.complete(Record::new(None, None)).await;
                Ok(Ran::Completed(value))
            }
            Ok(Err(error)) => {
                lease.release(Release::Failed { status: None }).await;
                Err(RunError::Work(error))
            }
            Err(_) => {
                lease.overran().await;
                Err(RunError::RunLimit)
            }
        }
    }

    /// Acquires the lease of an event, for those who want to hold it themselves. It is renewed in
    /// the background until it ends, or until the run limit.
    ///
    /// ```
    /// # use tower_webhook_dedup::{Begun, Dedup, Key, MemoryStore, Record, Release};
    /// # async fn work() -> Result<(), ()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let dedup = Dedup::new(MemoryStore::new());
    /// if let Begun::Acquired(lease) = dedup.begin(&Key::new("queue", "message_1")).await? {
    ///     match work().await {
    ///         Ok(()) => _ = lease.complete(Record::new(None, None)).await,
    ///         Err(()) => lease.release(Release::Failed { status: None }).await,
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store failed. What the call may have written is released in the background.
    pub async fn begin(&self, key: &Key) -> Result<Begun<St>, Error> {
        self.acquire(key).await.map_err(|(error, _claim)| error)
    }

    /// What the store keeps of an event.
    ///
    /// # Errors
    ///
    /// If the store failed.
    pub async fn inspect(&self, key: &Key) -> Result<Option<Entry>, Error> {
        self.call_inspect(key).await
    }

    /// Lets an event run again, after an operator pressed "resend", say. A live lease is only
    /// taken away if `force`d; its run goes on, but cannot complete over another one. Send the event
    /// at once: the next renewal of that lease, a third of it later at most, takes the event again
    /// unless another run has it by then. Where another process runs it, that one goes on answering
    /// that it does.
    ///
    /// `false`: there was nothing to forget, or a live lease that was not to be.
    ///
    /// The [`Key`] is in each log line and [`DedupEvent`] about the event, and parses from its text. By
    /// hand, `redis-cli --scan --pattern 'webhook:lock:billing:evt_1:*'` finds it, and `DEL` of it does
    /// the same for what is done or failed; but processes with a [`Cached`](crate::Cached) store, or a
    /// completion that is not written yet, go on knowing it for a while.
    ///
    /// ```
    /// # use tower_webhook_dedup::{Dedup, Key, MemoryStore, Ran};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn work() -> Result<(), std::io::Error> { Ok(()) }
    /// let dedup = Dedup::new(MemoryStore::new()); // or `layer.dedup()`
    /// let key: Key = "webhook:lock:billing:evt_1:*".parse()?;
    /// # dedup.run(&key, work).await?;
    /// assert!(dedup.forget(&key, false).await?);
    /// assert!(matches!(dedup.run(&key, work).await?, Ran::Completed(())));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the store failed.
    pub async fn forget(&self, key: &Key, force: bool) -> Result<bool, Error> {
        if force && let Some(beat) = self.shared.heartbeat.find(key) {
            beat.take();
        }
        let forgotten = self.call_forget(key, force).await?;
        let tokens = self.shared.completions.forget(key);
        // It was done for this process, whatever the store knew of that.
        let was_done = !tokens.is_empty();
        for token in tokens {
            self.release_later(key.clone(), token, Release::Abandoned, true);
        }
        Ok(forgotten || was_done)
    }

    /// The handle that waits for background work at shutdown. Use it when your own runs are over.
    #[must_use]
    pub fn drain_handle(&self) -> DrainHandle {
        DrainHandle::new(self.clone())
    }

    /// Passes each background task, of all clones, through `wrap` before it is spawned, so that a
    /// test can freeze or kill what stands for one process. To be called before the first request;
    /// only the first call counts.
    #[cfg(feature = "test-util")]
    pub fn wrap_tasks<W>(&self, wrap: W)
    where
        W: Fn(Pin<Box<dyn Future<Output = ()> + Send>>) -> Pin<Box<dyn Future<Output = ()> + Send>>
            + Send
            + Sync
            + 'static,
    {
        self.tracker().wrap(Box::new(wrap));
    }

    /// Whether this namespace was not yet told of.
    pub(crate) fn is_news(&self, namespace: Option<&Arc<str>>) -> bool {
        let mut namespaces = self.shared.namespaces.lock();
        namespaces.insert(namespace.cloned())
    }

    pub(crate) fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    pub(crate) fn tracker(&self) -> &Arc<Tracker> {
        &self.shared.tracker
    }

    /// Acquires, and on failure leaves the choice of what happens to the token, which may hold the
    /// event by now: dropping the claim releases it.
    pub(crate) async fn acquire(&self, key: &Key) -> Result<Begun<St>, (Error, Claim<'_, St>)> {
        if let Some(record) = self.pending_completion(key) {
            return Ok(Begun::Done(record));
        }
        // A storm on an event that this process runs does not touch the store.
        if let Some(at_most) = self.held_here(key) {
            let retry_after = retry_after(at_most);
            return Ok(Begun::InFlight { retry_after });
        }
        let mut claim = Claim {
            dedup: self,
            key: key.clone(),
            token: Token::random(),
            live: true,
        };
        // The lease counts from before the command is sent, not from its reply.
        let sent = Instant::now();
        let acquired = self.call_acquire(key, claim.token).await;
        claim.live = acquired.as_ref().is_err_and(Error::may_have_landed);
        Ok(match acquired {
            Ok(Acquire::Acquired { attempt }) => {
                let lease = Lease::new(self.clone(), key.clone(), claim.token, attempt, sent);
                self.settings.emit(&DedupEvent::Acquired {
                    key: key.clone(),
                    attempt,
                });
                match lease.keep().await {
                    Ok(()) => Begun::Acquired(lease),
                    // Another run goes on here, or may elsewhere; what this token holds, or will,
                    // is released.
                    Err(Superseded) => Begun::InFlight {
                        retry_after: retry_after(self.settings.lease),
                    },
                }
            }
            Ok(Acquire::Done(record)) => Begun::Done(record),
            Ok(Acquire::InFlight { at_most, .. }) => Begun::InFlight {
                retry_after: retry_after(at_most),
            },
            Err(error) => return Err((error, claim)),
        })
    }

    /// Acquires an event that another run of the same request claims to have, in the place of that.
    /// Meanwhile somebody else may get it.
    pub(crate) async fn acquire_from(
        &self,
        claim: &Beat,
    ) -> Result<Begun<St>, (Error, Claim<'_, St>)> {
        claim.hand_over();
        let (key, token) = (&claim.key, claim.token);
        // Where that fails, the event is still held, until that run is over.
        _ = self.call_release(key, token, Release::Abandoned).await;
        self.acquire(key).await
    }

    /// For how long at most a run in this process holds the event.
    fn held_here(&self, key: &Key) -> Option<Duration> {
        self.shared.heartbeat.find(key)?.held()
    }

    /// Resolves when the run of this event in this process is over, and the store knows; never where
    /// there is none.
    pub(super) async fn run_ends(&self, key: &Key) {
        match self.shared.heartbeat.find(key) {
            Some(beat) => beat.ended().await,
            None => std::future::pending().await,
        }
    }
}

/// A token that may hold an event without anybody knowing. Dropped, it is released, whether or
/// not the command that sent it has landed yet.
pub(crate) struct Claim<'a, St: LeaseStore> {
    dedup: &'a Dedup<St>,
    key: Key,
    token: Token,
    live: bool,
}

impl<St: LeaseStore> Claim<'_, St> {
    /// The claim as a lease for a run that goes ahead without protection: nobody renews it, but
    /// the run's end completes or releases it. `None` where the token cannot hold the event.
    pub(crate) fn unconfirmed(mut self) -> Option<Lease<St>> {
        if !self.live {
            return None;
        }
        self.live = false;
        let (dedup, key) = (self.dedup.clone(), self.key.clone());
        Some(Lease::unconfirmed(dedup, key, self.token))
    }
}

impl<St: LeaseStore> Drop for Claim<'_, St> {
    fn drop(&mut self) {
        if self.live {
            self.dedup
                .release_later(self.key.clone(), self.token, Release::Abandoned, true);
        }
    }
}
