//! Tower middleware that runs each webhook event once.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod identity;
pub mod store;

#[cfg(feature = "test-util")]
pub use self::store::contract;
#[cfg(feature = "redis")]
pub use self::store::{RedisStore, RedisStoreError};
pub use self::{
    identity::{BodyHash, EventId, JsonPointer, Key, NoId, ParseKeyError, ParsePointerError},
    store::{
        Acquire, BoxStore, BoxStoreError, Entry, LeaseStore, MemoryStore, MemoryStoreError,
        ParseEntryError, ParseTokenError, Record, Release, StoreError, StoreErrorKind, Token,
    },
};
