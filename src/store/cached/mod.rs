//! A store in front of another that remembers which events are done.

mod remembered;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use self::remembered::Remembered;
use super::{Acquire, Entry, LeaseStore, Record, Release, Token};
use crate::Key;

/// Remembers completed events in this process for a short while, so that a storm of duplicates
/// makes no store call.
///
/// ```
/// use std::time::Duration;
/// use tower_webhook_dedup::{Cached, EventId, MemoryStore, WebhookDedupLayer};
///
/// # let store = MemoryStore::new();
/// let store = Cached::new(store).ttl(Duration::from_secs(10));
/// let layer = WebhookDedupLayer::new(store, EventId::pointer("/id"));
/// ```
///
/// Only what is done is remembered, whole: the [`Record`] that a duplicate is answered with is the one
/// that the store has. Leases, failures and [`inspect`](LeaseStore::inspect) go to the store.
///
/// # For how long
///
/// For the [`ttl`](Self::ttl), at most a minute, and not longer than the record lives in the store:
///
/// - What this process completed, for the retention that it completed it with at most.
/// - What another process completed, only while the record is young enough: its age, by the clock of
///   the process that wrote it, and twice the `ttl` are within the shortest retention that this
///   process completed an event with. Before it completed any, it remembers nothing that others did.
///   This relies on clocks that differ by less than the `ttl`, and on processes that share a store
///   keeping events equally long. By a clock that is further behind, an event is done for up to a `ttl`
///   longer than its record lives.
///
/// A record that the store drops before its time, because it is full or was emptied, stays
/// remembered.
///
/// # Letting an event run again
///
/// [`forget`](LeaseStore::forget) through this process forgets here, too. **Through another process**,
/// or by deleting the key in Redis, it does not reach here: until its `ttl` is over this process goes
/// on answering that the event is done. Wait that long before the event is sent again. It is the same
/// after a `forget` that failed, but took effect later.
///
/// # Bounds
///
/// At most [`max_entries`](Self::max_entries) and [`max_bytes`](Self::max_bytes). At the cap the oldest
/// goes. They are spread by hash over up to 64 shards, and one that is full displaces events although
/// another has room. An event that is forgotten takes its room until its turn comes. Clones share what
/// is remembered.
#[must_use]
pub struct Cached<St> {
    store: St,
    shared: Arc<Shared>,
}

struct Shared {
    ttl: Duration,
    remembered: Remembered,
    /// The shortest retention that this process completed an event with, in milliseconds; the
    /// greatest number before it did.
    retention: AtomicU64,
}

impl<St: LeaseStore> Cached<St> {
    /// The longest time for which an event is remembered.
    pub const MAX_TTL: Duration = Duration::from_secs(60);

    /// Remembers what is done in this store.
    pub fn new(store: St) -> Self {
        Self {
            store,
            shared: Arc::new(Shared {
                ttl: Self::MAX_TTL,
                remembered: Remembered::new(65_536, 32 * 1024 * 1024),
                retention: AtomicU64::new(u64::MAX),
            }),
        }
    }

    /// For how long an event is remembered at most.
    ///
    /// Defaults to 60 seconds.
    ///
    /// # Panics
    ///
    /// If it is over 60 seconds.
    #[track_caller]
    pub fn ttl(self, ttl: Duration) -> Self {
        assert!(
            ttl <= Self::MAX_TTL,
            "events are remembered for a minute at most"
        );
        let (entries, bytes) = self.shared.remembered.limits();
        self.with(ttl, entries, bytes)
    }

    /// How many events are remembered at most; none with zero.
    ///
    /// Defaults to 65 536.
    pub fn max_entries(self, entries: usize) -> Self {
        let (ttl, (_, bytes)) = (self.shared.ttl, self.shared.remembered.limits());
        self.with(ttl, entries, bytes)
    }

    /// How much memory they take at most, by an estimate on the safe side: twice the key, 250 bytes, and
    /// the answer that is kept, for each.
    ///
    /// Defaults to 32 MiB.
    pub fn max_bytes(self, bytes: usize) -> Self {
        let (ttl, (entries, _)) = (self.shared.ttl, self.shared.remembered.limits());
        self.with(ttl, entries, bytes)
    }

    fn with(self, ttl: Duration, entries: usize, bytes: usize) -> Self {
        let shared = Arc::new(Shared {
            ttl,
            remembered: Remembered::new(entries, bytes),
            retention: AtomicU64::new(u64::MAX),
        });
        Self { shared, ..self }
    }

    /// How many events are remembered, those whose time is over but which are not yet removed
    /// included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.remembered.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Shared {
    /// For how long a record is remembered that somebody else wrote, if it is.
    fn ttl_of(&self, record: &Record) -> Option<Duration> {
        let retention = self.retention.load(Ordering::Relaxed);
        // How long it lives is not in the store's reply, and was said by whoever completed it.
        let shortest = Duration::from_millis(retention);
        let age = SystemTime::now().duration_since(record.completed_at());
        let lives = age.unwrap_or_default().saturating_add(2 * self.ttl) <= shortest;
        (retention < u64::MAX && lives).then_some(self.ttl)
    }
}

impl<St: LeaseStore> LeaseStore for Cached<St> {
    type Error = St::Error;

    async fn acquire(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Result<Acquire, St::Error> {
        let sent = Instant::now();
        let seen = match self.shared.remembered.look(key, sent) {
            Ok(record) => return Ok(Acquire::Done(record)),
            Err(seen) => seen,
        };
        let acquired = self.store.acquire(key, token, lease, by).await?;
        if let Acquire::Done(record) = &acquired
            && let Some(ttl) = self.shared.ttl_of(record)
        {
            let until = sent + ttl;
            self.shared.remembered.put(key, record, until, seen);
        }
        Ok(acquired)
    }

    async fn renew(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Result<bool, St::Error> {
        self.store.renew(key, token, lease, by).await
    }

    async fn complete(
        &self,
        key: &Key,
        token: Token,
        record: &Record,
        retention: Duration,
        by: Instant,
    ) -> Result<bool, St::Error> {
        // From before it is sent: it lives that long at least.
        let until = Instant::now() + retention.min(self.shared.ttl);
        let seen = self.shared.remembered.seen(key);
        let store = &self.store;
        let completed = store.complete(key, token, record, retention, by).await?;
        if completed {
            let millis = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
            self.shared.retention.fetch_min(millis, Ordering::Relaxed);
            self.shared.remembered.put(key, record, until, seen);
        }
        Ok(completed)
    }

    async fn release(
        &self,
        key: &Key,
        token: Token,
        release: Release,
        keep: Duration,
        by: Instant,
    ) -> Result<bool, St::Error> {
        self.store.release(key, token, release, keep, by).await
    }

    async fn inspect(&self, key: &Key, by: Instant) -> Result<Option<Entry>, St::Error> {
        self.store.inspect(key, by).await
    }

    async fn forget(&self, key: &Key, force: bool, by: Instant) -> Result<bool, St::Error> {
        let _forgetting = self.shared.remembered.forget(key);
        self.store.forget(key, force, by).await
    }
}

impl<St: Clone> Clone for Cached<St> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            shared: self.shared.clone(),
        }
    }
}

// Not derived: that would ask the store to be `Debug`.
impl<St> fmt::Debug for Cached<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cached")
            .field("ttl", &self.shared.ttl)
            .field("len", &self.shared.remembered.len())
            .finish_non_exhaustive()
    }
}
