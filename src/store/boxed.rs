//! A store whose type is not known at compile time.

use std::{error::Error, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use futures_util::TryFutureExt;
use tokio::time::Instant;

use super::{Acquire, Entry, LeaseStore, Record, Release, StoreError, StoreErrorKind, Token};
use crate::Key;

/// A [`LeaseStore`] with its type erased, as made by [`LeaseStore::boxed`].
///
/// For programs whose configuration picks the store. Costs one allocation a call.
///
/// ```
/// use tower_webhook_dedup::{BoxStore, EventId, LeaseStore, MemoryStore, WebhookDedupLayer};
///
/// let store: BoxStore = MemoryStore::new().boxed();
/// let layer = WebhookDedupLayer::new(store, EventId::pointer("/id"));
/// ```
#[derive(Clone)]
pub struct BoxStore(Arc<dyn DynStore>);

/// The error of the store inside a [`BoxStore`].
#[derive(Debug)]
pub struct BoxStoreError(Box<dyn StoreError>);

type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, BoxStoreError>> + Send + 'a>>;

impl BoxStore {
    pub(super) fn new(store: impl LeaseStore) -> Self {
        Self(Arc::new(Erased(store)))
    }
}

impl fmt::Debug for BoxStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BoxStore({})", self.0.name())
    }
}

impl fmt::Display for BoxStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for BoxStoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl StoreError for BoxStoreError {
    fn kind(&self) -> StoreErrorKind {
        self.0.kind()
    }

    fn may_have_landed(&self) -> bool {
        self.0.may_have_landed()
    }
}

impl LeaseStore for BoxStore {
    type Error = BoxStoreError;

    async fn acquire(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Result<Acquire, BoxStoreError> {
        self.0.acquire(key, token, lease, by).await
    }

    async fn renew(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Result<bool, BoxStoreError> {
        self.0.renew(key, token, lease, by).await
    }

    async fn complete(
        &self,
        key: &Key,
        token: Token,
        record: &Record,
        retention: Duration,
        by: Instant,
    ) -> Result<bool, BoxStoreError> {
        self.0.complete(key, token, record, retention, by).await
    }

    async fn release(
        &self,
        key: &Key,
        token: Token,
        release: Release,
        keep: Duration,
        by: Instant,
    ) -> Result<bool, BoxStoreError> {
        self.0.release(key, token, release, keep, by).await
    }

    async fn inspect(&self, key: &Key, by: Instant) -> Result<Option<Entry>, BoxStoreError> {
        self.0.inspect(key, by).await
    }

    async fn forget(&self, key: &Key, force: bool, by: Instant) -> Result<bool, BoxStoreError> {
        self.0.forget(key, force, by).await
    }

    fn boxed(self) -> BoxStore {
        self
    }
}

/// [`LeaseStore`] with its futures boxed, which makes it dyn-compatible.
trait DynStore: Send + Sync {
    fn name(&self) -> &'static str;
    fn acquire<'a>(
        &'a self,
        key: &'a Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Reply<'a, Acquire>;
    fn renew<'a>(
        &'a self,
        key: &'a Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Reply<'a, bool>;
    fn complete<'a>(
        &'a self,
        key: &'a Key,
        token: Token,
        record: &'a Record,
        retention: Duration,
        by: Instant,
    ) -> Reply<'a, bool>;
    fn release<'a>(
        &'a self,
        key: &'a Key,
        token: Token,
        release: Release,
        keep: Duration,
        by: Instant,
    ) -> Reply<'a, bool>;
    fn inspect<'a>(&'a self, key: &'a Key, by: Instant) -> Reply<'a, Option<Entry>>;
    fn forget<'a>(&'a self, key: &'a Key, force: bool, by: Instant) -> Reply<'a, bool>;
}

struct Erased<St>(St);

/// Boxes the future and its error.
fn erase<'a, T, E: StoreError>(
    call: impl Future<Output = Result<T, E>> + Send + 'a,
) -> Reply<'a, T> {
    Box::pin(call.map_err(|error| BoxStoreError(Box::new(error))))
}

impl<St: LeaseStore> DynStore for Erased<St> {
    fn name(&self) -> &'static str {
        std::any::type_name::<St>()
    }

    fn acquire<'a>(
        &'a self,
        key: &'a Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Reply<'a, Acquire> {
        erase(self.0.acquire(key, token, lease, by))
    }

    fn renew<'a>(
        &'a self,
        key: &'a Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Reply<'a, bool> {
        erase(self.0.renew(key, token, lease, by))
    }

    fn complete<'a>(
        &'a self,
        key: &'a Key,
        token: Token,
        record: &'a Record,
        retention: Duration,
        by: Instant,
    ) -> Reply<'a, bool> {
        erase(self.0.complete(key, token, record, retention, by))
    }

    fn release<'a>(
        &'a self,
        key: &'a Key,
        token: Token,
        release: Release,
        keep: Duration,
        by: Instant,
    ) -> Reply<'a, bool> {
        erase(self.0.release(key, token, release, keep, by))
    }

    fn inspect<'a>(&'a self, key: &'a Key, by: Instant) -> Reply<'a, Option<Entry>> {
        erase(self.0.inspect(key, by))
    }

    fn forget<'a>(&'a self, key: &'a Key, force: bool, by: Instant) -> Reply<'a, bool> {
        erase(self.0.forget(key, force, by))
    }
}
