//! Store calls, each with a deadline. A store should keep to it; here it is kept in any case.

use std::{future::Future, panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use tokio::time::{Instant, timeout_at};

use super::{Dedup, Error, Operation};
use crate::{Acquire, DedupEvent, Entry, Key, LeaseStore, Record, Release, StoreError, Token};

impl<St: LeaseStore> Dedup<St> {
    pub(super) fn call_acquire<'a>(
        &'a self,
        key: &'a Key,
        token: Token,
    ) -> impl Future<Output = Result<Acquire, Error>> + Send + 'a {
        let (lease, sent) = (self.settings.lease, Instant::now());
        let acquired = self.call(Operation::Acquire, key, move |store, by| {
            store.acquire(key, token, lease, by)
        });
        acquired.map(move |acquired| match acquired? {
            // This process stood still before it heard the reply. The lease may have run out by
            // now, and another run have come and gone.
            Acquire::Acquired { .. } if sent.elapsed() >= lease => {
                Err(self.failed(key, Error::timed_out(Operation::Acquire)))
            }
            acquired => Ok(acquired),
        })
    }

    pub(super) async fn call_renew(&self, key: &Key, token: Token) -> Result<bool, Error> {
        let lease = self.settings.lease;
        self.call(Operation::Renew, key, |store, by| {
            store.renew(key, token, lease, by)
        })
        .await
    }

    pub(super) fn call_complete<'a>(
        &'a self,
        key: &'a Key,
        token: Token,
        record: &'a Record,
    ) -> impl Future<Output = Result<bool, Error>> + Send + 'a {
        let retention = self.settings.retention();
        self.call(Operation::Complete, key, move |store, by| {
            store.complete(key, token, record, retention, by)
        })
    }

    pub(super) async fn call_release(
        &self,
        key: &Key,
        token: Token,
        release: Release,
    ) -> Result<bool, Error> {
        let keep = self.settings.keep_failed();
        self.call(Operation::Release, key, |store, by| {
            store.release(key, token, release, keep, by)
        })
        .await
    }

    pub(super) async fn call_inspect(&self, key: &Key) -> Result<Option<Entry>, Error> {
        self.call(Operation::Inspect, key, |store, by| store.inspect(key, by))
            .await
    }

    pub(super) async fn call_forget(&self, key: &Key, force: bool) -> Result<bool, Error> {
        self.call(Operation::Forget, key, |store, by| {
            store.forget(key, force, by)
        })
        .await
    }

    /// Makes one call, and reports its failure.
    ///
    /// Not an `async fn`: it is a part of every request's future, and would have room for the
    /// arguments twice.
    fn call<'a, T, E, F>(
        &'a self,
        operation: Operation,
        key: &'a Key,
        call: impl FnOnce(&'a St, Instant) -> F + Send + 'a,
    ) -> impl Future<Output = Result<T, Error>> + Send + 'a
    where
        T: Send + 'a,
        E: StoreError,
        F: Future<Output = Result<T, E>> + Send + 'a,
    {
        let by = Instant::now() + self.settings.store_timeout();
        // A panic in a store must not end the tasks that keep the other leases.
        let call = AssertUnwindSafe(async move { call(&self.shared.store, by).await });
        timeout_at(by, call.catch_unwind()).map(move |called| {
            let error = match called {
                Ok(Ok(Ok(reply))) => return Ok(reply),
                Ok(Ok(Err(error))) => Error::new(operation, error),
                Ok(Err(_)) => Error::panicked(operation),
                Err(_) => Error::timed_out(operation),
            };
            Err(self.failed(key, error))
        })
    }

    /// Reports the failure.
    fn failed(&self, key: &Key, error: Error) -> Error {
        self.settings.emit(&DedupEvent::StoreFailed {
            key: key.clone(),
            error: error.clone(),
        });
        error
    }
}

/// The shortest and longest time after which the sender of an in-flight duplicate is told to come
/// again.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// When to come again for an event whose lease lasts at most this long.
pub(crate) fn retry_after(at_most: Duration) -> Duration {
    at_most.clamp(RETRY_AFTER.0, RETRY_AFTER.1)
}
