//! What tests run against: real servers, and things that go wrong between them and us.

#![allow(dead_code, unused_imports, reason = "no test uses all of it")]

mod answer;
mod cluster;
mod fake_redis;
mod front;
mod pair;
mod proxy;
mod redis_server;
mod sentinel;
mod watch;

use std::{future::Future, time::Duration};

use tokio::time::Instant;
use tower_webhook_dedup::{
    Acquire, Key, LeaseStore, Record, RedisStore, RedisStoreBuilder, Release, StoreError,
    StoreErrorKind, Token,
};

pub(crate) use self::{
    answer::Answer,
    cluster::{Cluster, free_ports},
    fake_redis::FakeRedis,
    front::{Front, cached},
    pair::Pair,
    proxy::Proxy,
    redis_server::RedisServer,
    sentinel::{Service, listening, listening_with},
    watch::Watch,
};

/// How long a condition may take to come true on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A store at the URL.
pub(crate) fn store_at(url: &str) -> RedisStore {
    builder_at(url).open().unwrap()
}

/// The same, to be set up further. `COALESCE=off` in the environment turns coalescing off, so that
/// tests can be run without it.
pub(crate) fn builder_at(url: &str) -> RedisStoreBuilder {
    let off = std::env::var("COALESCE").is_ok_and(|it| it == "off");
    RedisStore::builder(url).coalesce(!off)
}

/// Waits until the condition holds.
#[track_caller]
pub(crate) fn until<F: Future<Output = bool>>(
    what: &str,
    condition: impl FnMut() -> F,
) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    let mut condition = condition;
    async move {
        let end = Instant::now() + PATIENCE;
        while !condition().await {
            assert!(
                Instant::now() < end,
                "{caller}: waited in vain until {what}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// How long leases last where it does not matter.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

pub(crate) const FAILED: Release = Release::Failed { status: Some(500) };

/// A deadline that a server in order does not need.
pub(crate) fn by() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

pub(crate) fn done() -> Record {
    Record::new(Some(200), None)
}

/// A key that nobody used yet.
pub(crate) fn fresh() -> Key {
    Key::new("test", Token::random().to_string())
}

/// The keys of this event, or with `*` of all.
pub(crate) fn keys(server: &RedisServer, id: &str) -> Vec<String> {
    let pattern = format!("webhook:lock:t:{id}:*");
    redis::from_redis_value(server.command(&["KEYS", &pattern])).unwrap()
}

/// Acquires the key, and expects to get it.
pub(crate) async fn acquired(store: &impl LeaseStore, key: &Key) -> Token {
    let token = Token::random();
    let acquired = store.acquire(key, token, LEASE, by()).await.unwrap();
    assert!(matches!(acquired, Acquire::Acquired { .. }), "{acquired:?}");
    token
}

/// The deadline of calls that may miss it.
const SOON: Duration = Duration::from_millis(500);

/// How late an answer may be on a busy machine. With it, it is still before the connect timeout.
const SLACK: Duration = Duration::from_millis(1400);

/// Acquires with a short deadline, and expects an error not much later.
pub(crate) async fn refused<St: LeaseStore>(store: &St) -> St::Error {
    let start = Instant::now();
    let key = fresh();
    let acquired = store.acquire(&key, Token::random(), LEASE, start + SOON);
    let error = acquired.await.expect_err("nobody can have answered");
    let took = start.elapsed();
    assert!(took < SOON + SLACK, "{error}, after {took:?}");
    error
}

/// The same, until it is an error that somebody gave: on a busy machine the first deadlines may pass
/// before.
pub(crate) async fn refused_by_name<St: LeaseStore>(store: &St) -> St::Error {
    let end = Instant::now() + PATIENCE;
    loop {
        let error = refused(store).await;
        if error.kind() != StoreErrorKind::TimedOut {
            return error;
        }
        assert!(Instant::now() < end, "{error}");
    }
}

/// Whether the store can be reached.
pub(crate) async fn works(store: &impl LeaseStore) -> bool {
    let deadline = Instant::now() + SOON;
    store.inspect(&fresh(), deadline).await.is_ok()
}
