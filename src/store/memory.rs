//! A store in this process's own memory.

mod shard;

use std::{
    error::Error,
    fmt,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use self::shard::Shard;
use super::{
    Acquire, Entry, LeaseStore, Record, Release, StoreError, StoreErrorKind, Token, shards::Shards,
};
use crate::Key;

/// A [`LeaseStore`] in the memory of this one process: no other process sees it, and a restart
/// forgets it.
///
/// For trying things out, for tests, and for services that are a single process and can bear to run
/// an event again after a restart. Time is [tokio's clock](tokio::time), which tests can pause.
///
/// It keeps at most [`capacity`](Self::with_capacity) entries. At the cap a new event displaces
/// the failed entry, else the completed one, that would run out first; a running lease is never
/// displaced. Where all are running, acquiring is an error of the kind
/// [`OutOfMemory`](StoreErrorKind::OutOfMemory).
///
/// The answers that are kept for duplicates, where that is
/// [asked for](crate::Duplicate::Replay), take at most [`max_answer_bytes`](Self::max_answer_bytes)
/// in all. At the cap the answers that would run out first go. Their events stay completed:
/// duplicates get the plain 200.
///
/// Clones share their entries.
///
/// # Testing a handler
///
/// With tokio's feature `test-util` and its clock paused, days pass at once:
///
/// ```
/// use std::time::Duration;
///
/// use axum::{Router, body::Body, http::Request, routing::post};
/// use tower::ServiceExt;
/// use tower_webhook_dedup::{MemoryStore, WebhookDedupLayer, providers};
///
/// # /*
/// #[tokio::test(start_paused = true)]
/// # */
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// async fn an_event_is_remembered_for_four_days() {
///     let dedup = WebhookDedupLayer::new(MemoryStore::new(), providers::stripe());
///     let app = Router::new().route("/hook", post(|| async {})).layer(dedup);
///     let outcome = async || {
///         let event = Request::post("/hook").body(Body::from(r#"{"id":"evt_1"}"#)).unwrap();
///         let answer = app.clone().oneshot(event).await.unwrap();
///         answer.headers()["webhook-dedup"].clone()
///     };
///     assert_eq!(outcome().await, "run");
///     assert_eq!(outcome().await, "duplicate");
///     tokio::time::sleep(Duration::from_secs(4 * 24 * 3600)).await;
///     assert_eq!(outcome().await, "run");
/// }
/// # an_event_is_remembered_for_four_days();
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    shards: Arc<Shards<Shard>>,
    /// What it was made with.
    capacity: usize,
}

impl MemoryStore {
    /// How many entries [`new`](Self::new) makes room for: 100 000, some 50 MB.
    pub const DEFAULT_CAPACITY: usize = 100_000;

    /// How many bytes of answers are kept, where nothing else is said: 64 MiB.
    pub const DEFAULT_ANSWER_BYTES: usize = 64 * 1024 * 1024;

    /// An empty store with room for [`DEFAULT_CAPACITY`](Self::DEFAULT_CAPACITY) entries.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(Self::DEFAULT_CAPACITY)
    }

    /// An empty store with room for this many entries. They are spread by hash over up to 64
    /// shards of at least 1 024 entries, and a shard that is full displaces entries although
    /// another has room. Nothing is allocated up front.
    ///
    /// # Panics
    ///
    /// If the capacity is zero.
    #[must_use]
    #[track_caller]
    pub fn with_capacity(capacity: usize) -> Self {
        assert!(
            capacity > 0,
            "a memory store needs room for at least one entry"
        );
        Self::empty(capacity, Self::DEFAULT_ANSWER_BYTES)
    }

    /// An empty store of the same capacity, in which the answers to completed events take at most so
    /// many bytes, by an estimate; none is kept with zero.
    ///
    /// Each shard has an equal part of them: an answer that is larger than that is not kept.
    ///
    /// Defaults to [`DEFAULT_ANSWER_BYTES`](Self::DEFAULT_ANSWER_BYTES), which are 1 MiB in each of 64
    /// shards.
    #[must_use]
    pub fn max_answer_bytes(self, bytes: usize) -> Self {
        Self::empty(self.capacity, bytes)
    }

    fn empty(capacity: usize, answer_bytes: usize) -> Self {
        let shard = |shards| Shard::new(capacity / shards, answer_bytes / shards);
        Self {
            shards: Arc::new(Shards::new(capacity, shard)),
            capacity,
        }
    }

    /// How many entries there are, those whose time is over but which are not yet removed included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.all().map(|shard| shard.len()).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shard of the key, rid of what is over.
    fn shard(&self, key: &Key, now: Instant) -> MutexGuard<'_, Shard> {
        let mut shard = self.shards.of(key);
        shard.expire(key, now);
        shard
    }
}

/// The clock has an end; what lasts beyond it lasts for a century.
pub(super) fn after(now: Instant, time: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    now.checked_add(time).unwrap_or_else(|| now + CENTURY)
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// The [`MemoryStore`] is at its cap, and every entry is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStoreError;

impl fmt::Display for MemoryStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the memory store is full of running events")
    }
}

impl Error for MemoryStoreError {}

impl StoreError for MemoryStoreError {
    fn kind(&self) -> StoreErrorKind {
        StoreErrorKind::OutOfMemory
    }

    fn may_have_landed(&self) -> bool {
        false
    }
}

impl LeaseStore for MemoryStore {
    type Error = MemoryStoreError;

    async fn acquire(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        _by: Instant,
    ) -> Result<Acquire, MemoryStoreError> {
        let now = Instant::now();
        let mut shard = self.shard(key, now);
        let attempt = match shard.get(key) {
            Some(Entry::Running {
                token: holder,
                attempt,
                ..
            }) if *holder == token => {
                return Ok(Acquire::Acquired { attempt: *attempt });
            }
            Some(Entry::Running { since, lease, .. }) => {
                return Ok(Acquire::InFlight {
                    since: *since,
                    at_most: *lease,
                });
            }
            Some(Entry::Done { record, .. }) => return Ok(Acquire::Done(record.clone())),
            Some(Entry::Failed { attempts, .. }) => attempts.saturating_add(1),
            None => 1,
        };
        shard.put(
            key,
            Entry::running(token, lease, attempt),
            after(now, lease),
        )?;
        Ok(Acquire::Acquired { attempt })
    }

    async fn renew(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        _by: Instant,
    ) -> Result<bool, MemoryStoreError> {
        let now = Instant::now();
        let mut shard = self.shard(key, now);
        let entry = match shard.get(key) {
            Some(entry @ Entry::Running { token: holder, .. }) if *holder == token => entry.clone(),
            Some(_) => return Ok(false),
            None => Entry::running(token, lease, 1),
        };
        shard.put(key, entry, after(now, lease))?;
        Ok(true)
    }

    async fn complete(
        &self,
        key: &Key,
        token: Token,
        record: &Record,
        retention: Duration,
        _by: Instant,
    ) -> Result<bool, MemoryStoreError> {
        let now = Instant::now();
        let mut shard = self.shard(key, now);
        match shard.get(key) {
            Some(Entry::Running { token: other, .. } | Entry::Done { token: other, .. })
                if *other != token =>
            {
                return Ok(false);
            }
            _ => {}
        }
        shard.put(
            key,
            Entry::Done {
                token,
                record: record.clone(),
            },
            after(now, retention),
        )?;
        Ok(true)
    }

    async fn release(
        &self,
        key: &Key,
        token: Token,
        release: Release,
        keep: Duration,
        _by: Instant,
    ) -> Result<bool, MemoryStoreError> {
        let now = Instant::now();
        let mut shard = self.shard(key, now);
        let attempt = match shard.get(key) {
            Some(Entry::Running {
                token: holder,
                attempt,
                ..
            }) if *holder == token => *attempt,
            _ => return Ok(false),
        };
        let (attempts, status) = match release {
            Release::Failed { status } => (attempt, status),
            Release::Abandoned => (attempt.saturating_sub(1), None),
        };
        if attempts == 0 {
            shard.remove(key);
        } else {
            shard.put(
                key,
                Entry::failed(token, attempts, status),
                after(now, keep),
            )?;
        }
        Ok(true)
    }

    async fn inspect(&self, key: &Key, _by: Instant) -> Result<Option<Entry>, MemoryStoreError> {
        Ok(self.shard(key, Instant::now()).get(key).cloned())
    }

    async fn forget(&self, key: &Key, force: bool, _by: Instant) -> Result<bool, MemoryStoreError> {
        let mut shard = self.shard(key, Instant::now());
        if matches!(shard.get(key), Some(Entry::Running { .. })) && !force {
            return Ok(false);
        }
        Ok(shard.remove(key))
    }
}
