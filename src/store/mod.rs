//! The store that all processes share: who holds an event, and which ones are done.

mod answer;
mod boxed;
mod cached;
#[cfg(feature = "test-util")]
mod contract;
mod fallback;
mod memory;
mod record;
#[cfg(feature = "redis")]
mod redis;
mod shards;
mod token;

use std::{
    error::Error,
    fmt,
    future::Future,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use crate::Key;

#[cfg(feature = "test-util")]
pub use self::contract::contract;
use self::memory::after;
#[cfg(feature = "redis")]
pub use self::redis::{Finding, RedisStore, RedisStoreBuilder, RedisStoreError};
pub use self::{
    answer::StoredAnswer,
    boxed::{BoxStore, BoxStoreError},
    cached::Cached,
    fallback::{Fallback, FallbackError, Switch},
    memory::{MemoryStore, MemoryStoreError},
    record::{Entry, ParseEntryError, Record},
    token::{ParseTokenError, Token},
};

/// Keeps one [`Entry`] a key: running under a lease, failed, or done.
///
/// Each method is one atomic step on one key, so that no store can be written that looks first and
/// writes later. All are idempotent per [`Token`]: a call whose reply got lost can be repeated, and
/// the engine does repeat. An expired entry counts as absent.
///
/// Durations are from a millisecond to ten years (3 660 days), moments are those of [tokio's
/// clock](Instant).
///
/// Every method takes `by`, the moment at which the caller stops waiting. A store should stop
/// trying then; the engine drops the call in any case, so a dropped future must leave nothing
/// broken behind. What the call wrote by then may stay: that is what the token is for.
///
/// A value that cannot be read is an error, never a duplicate.
///
/// # A store of your own
///
/// `examples/store.rs` is a whole one, of a map under a lock; in a database each method is one statement,
/// or one transaction, on one row. [`Entry`] has a text form, by `Display` and `FromStr`, that other
/// processes read as well. With the feature `test-util`, `contract` checks all that is said here:
///
/// ```toml
/// [dev-dependencies]
/// tower-webhook-dedup = { version = "0.1", features = ["test-util"] }
/// ```
pub trait LeaseStore: Clone + Send + Sync + 'static {
    /// What goes wrong in this store.
    type Error: StoreError;

    /// Takes the lease of an event for `lease`, or tells why not.
    ///
    /// | there is | answer |
    /// |---|---|
    /// | nothing | `Acquired`, attempt 1 |
    /// | running, this token | `Acquired`, the same attempt (a repeat) |
    /// | running, another token | `InFlight` |
    /// | failed | `Acquired`, its attempts plus one |
    /// | done | `Done` |
    fn acquire(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> impl Future<Output = Result<Acquire, Self::Error>> + Send;

    /// Makes the lease last for `lease` from now; where there is nothing (the store lost its
    /// memory), takes it again. `false`: another token holds it, or it has ended.
    fn renew(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Records the event as done, for `retention`. `false`, changing nothing, where another token
    /// is running it or completed it; `true` also when this token had completed it already.
    fn complete(
        &self,
        key: &Key,
        token: Token,
        record: &Record,
        retention: Duration,
        by: Instant,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Gives the lease up. `false`, changing nothing, where this token does not hold it.
    ///
    /// After [`Release::Failed`], and where failures were counted before, a failed entry stays for
    /// `keep`; else nothing does.
    fn release(
        &self,
        key: &Key,
        token: Token,
        release: Release,
        keep: Duration,
        by: Instant,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// What is kept under the key.
    fn inspect(
        &self,
        key: &Key,
        by: Instant,
    ) -> impl Future<Output = Result<Option<Entry>, Self::Error>> + Send;

    /// Removes the entry, so that the event runs again; a live lease only if `force`d. `false`:
    /// nothing was removed.
    fn forget(
        &self,
        key: &Key,
        force: bool,
        by: Instant,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Erases the type, for programs whose configuration picks the store.
    #[must_use]
    fn boxed(self) -> BoxStore {
        BoxStore::new(self)
    }
}

/// The answer to [`LeaseStore::acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acquire {
    /// The caller holds the lease now and runs the event.
    Acquired {
        /// 1 for the first run, one more after each failed one.
        attempt: u32,
    },
    /// Another token holds it.
    InFlight {
        /// When that run began, on the clock of the process that runs it.
        since: SystemTime,
        /// How long its lease can last from now unless it is renewed.
        at_most: Duration,
    },
    /// The event was completed.
    Done(Record),
}

/// How a lease ends without completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Release {
    /// The run answered with failure; the attempt counts.
    Failed {
        /// The HTTP status it answered with, where it did.
        status: Option<u16>,
    },
    /// The run was cut off; the attempt does not count.
    Abandoned,
}

/// What went wrong in a store, sorted by what one can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No connection could be made, or it broke.
    Unreachable,
    /// No answer within the time limit.
    TimedOut,
    /// The server is a replica and takes no writes.
    ReadOnly,
    /// The store is full.
    OutOfMemory,
    /// Wrong credentials, or not allowed to run a command.
    Denied,
    /// An unexpected answer, or a stored value that cannot be read.
    BadReply,
    /// What it was told about the server makes no sense, such as a malformed URL.
    Misconfigured,
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "the store cannot be reached",
            Self::TimedOut => "the store did not answer in time",
            Self::ReadOnly => "the store is read-only",
            Self::OutOfMemory => "the store is full",
            Self::Denied => "the store denied access",
            Self::BadReply => "the store gave an unexpected answer",
            Self::Misconfigured => "the store is misconfigured",
        })
    }
}

/// An error of a [`LeaseStore`].
pub trait StoreError: Error + Send + Sync + 'static {
    /// What kind of trouble it is.
    fn kind(&self) -> StoreErrorKind;

    /// Whether the command may have taken effect, or may still. In doubt, `true`.
    fn may_have_landed(&self) -> bool;
}
