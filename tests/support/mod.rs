//! What tests run against: real servers, and things that go wrong between them and us.

#![allow(dead_code, reason = "no test uses all of it")]

mod fake_redis;
mod proxy;
mod redis_server;
mod watch;

use std::{future::Future, time::Duration};

use tokio::time::Instant;

pub(crate) use self::{
    fake_redis::FakeRedis, proxy::Proxy, redis_server::RedisServer, watch::Watch,
};

/// How long a condition may take to come true on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

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
