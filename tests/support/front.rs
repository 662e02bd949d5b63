//! A store as tests use it: behind a cache, if they are told to.

#![allow(dead_code, reason = "no test uses all of it")]

use std::{env, ops::Deref, time::Duration};

use tokio::time::Instant;
use tower_webhook_dedup::{Acquire, Cached, Entry, Key, LeaseStore, Record, Release, Token};

/// `CACHED=on` in the environment puts a [`Cached`] in front of the store, so that tests can be run
/// with it. Clones share what it remembers. Everything else is the store's own.
#[derive(Clone, Debug)]
pub(crate) struct Front<St> {
    behind: St,
    cached: Option<Cached<St>>,
}

/// Whether stores are behind a cache.
pub(crate) fn cached() -> bool {
    env::var("CACHED").is_ok_and(|it| it == "on")
}

/// For how long events may be remembered that the store has forgotten.
pub(crate) fn remembered() -> Duration {
    if cached() {
        Cached::<MemoryStore>::MAX_TTL
    } else {
        Duration::ZERO
    }
}

impl<St: LeaseStore + Clone> Front<St> {
    pub(crate) fn of(behind: St) -> Self {
        let cached = cached().then(|| Cached::new(behind.clone()));
        Self { behind, cached }
    }
}

impl<St> Deref for Front<St> {
    type Target = St;

    fn deref(&self) -> &St {
        &self.behind
    }
}

pub(crate) type MemoryStore = Front<tower_webhook_dedup::MemoryStore>;

impl MemoryStore {
    pub(crate) fn new() -> Self {
        Self::of(tower_webhook_dedup::MemoryStore::new())
    }

    pub(crate) fn with_capacity(records: usize) -> Self {
        Self::of(tower_webhook_dedup::MemoryStore::with_capacity(records))
    }
}

impl<St: LeaseStore> LeaseStore for Front<St> {
    type Error = St::Error;

    async fn acquire(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Result<Acquire, St::Error> {
        match &self.cached {
            Some(cached) => cached.acquire(key, token, lease, by).await,
            None => self.behind.acquire(key, token, lease, by).await,
        }
    }

    async fn renew(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Result<bool, St::Error> {
        match &self.cached {
            Some(cached) => cached.renew(key, token, lease, by).await,
            None => self.behind.renew(key, token, lease, by).await,
        }
    }

    async fn complete(
        &self,
        key: &Key,
        token: Token,
        record: &Record,
        retention: Duration,
        by: Instant,
    ) -> Result<bool, St::Error> {
        match &self.cached {
            Some(cached) => cached.complete(key, token, record, retention, by).await,
            None => {
                self.behind
                    .complete(key, token, record, retention, by)
                    .await
            }
        }
    }

    async fn release(
        &self,
        key: &Key,
        token: Token,
        release: Release,
        keep: Duration,
        by: Instant,
    ) -> Result<bool, St::Error> {
        match &self.cached {
            Some(cached) => cached.release(key, token, release, keep, by).await,
            None => self.behind.release(key, token, release, keep, by).await,
        }
    }

    async fn inspect(&self, key: &Key, by: Instant) -> Result<Option<Entry>, St::Error> {
        match &self.cached {
            Some(cached) => cached.inspect(key, by).await,
            None => self.behind.inspect(key, by).await,
        }
    }

    async fn forget(&self, key: &Key, force: bool, by: Instant) -> Result<bool, St::Error> {
        match &self.cached {
            Some(cached) => cached.forget(key, force, by).await,
            None => self.behind.forget(key, force, by).await,
        }
    }
}
