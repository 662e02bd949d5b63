//! What holds on every topology.

#![allow(dead_code, reason = "no test uses all of it")]

use std::time::Duration;

use tower_webhook_dedup::{Acquire, Key, LeaseStore, RedisStore, Release, Token};

use crate::{
    hook::Hook,
    support::{FAILED, LEASE, RedisServer, acquired, by, done, fresh, until},
};

/// R9.
pub(crate) async fn a_late_owner_does_no_harm(store: &RedisStore) {
    let (key, late) = (fresh(), Token::random());
    let short = Duration::from_millis(20);
    store.acquire(&key, late, short, by()).await.unwrap();
    until("the lease is over", async || {
        store.inspect(&key, by()).await.unwrap().is_none()
    })
    .await;
    let owner = acquired(store, &key).await;
    let kept = store.inspect(&key, by()).await.unwrap();
    for release in [FAILED, Release::Abandoned] {
        let released = store.release(&key, late, release, LEASE, by());
        assert!(!released.await.unwrap());
    }
    assert!(!store.renew(&key, late, LEASE, by()).await.unwrap());
    let record = done();
    let complete = store.complete(&key, late, &record, LEASE, by());
    assert!(!complete.await.unwrap());
    assert_eq!(store.inspect(&key, by()).await.unwrap(), kept);
    let released = store.release(&key, owner, FAILED, LEASE, by());
    assert!(released.await.unwrap());
}

/// R7: what a process leaves behind that dies while it holds a lease.
pub(crate) async fn a_crash_wedges_nothing<'a>(
    open: impl Fn() -> RedisStore,
    keeper: impl Fn(&Key) -> &'a RedisServer,
) {
    let lease = Duration::from_secs(2);
    let key = fresh();
    let dead = open();
    let dying = dead.acquire(&key, Token::random(), lease, by());
    dying.await.unwrap();
    drop(dead);
    let ttl = keeper(&key).number(&["PTTL", key.as_str()]);
    assert!((1..=2000).contains(&ttl), "{ttl}");
    let (store, token) = (open(), Token::random());
    until("the lease ran out", async || {
        let acquired = store.acquire(&key, token, lease, by()).await.unwrap();
        match acquired {
            Acquire::Acquired { attempt } => attempt == 1,
            other => {
                assert!(matches!(other, Acquire::InFlight { .. }), "{other:?}");
                false
            }
        }
    })
    .await;
}

/// R42: on servers of which none has seen the scripts.
pub(crate) async fn a_script_flush_has_no_visible_effect(
    store: &RedisStore,
    key: &Key,
    flush: impl Fn(),
) {
    let token = acquired(store, key).await;
    flush();
    assert!(store.renew(key, token, LEASE, by()).await.unwrap());
    flush();
    let released = store.release(key, token, FAILED, LEASE, by());
    assert!(released.await.unwrap());
    flush();
    let token = acquired(store, key).await;
    flush();
    let record = done();
    let complete = store.complete(key, token, &record, LEASE, by());
    assert!(complete.await.unwrap());
    flush();
    assert!(store.forget(key, false, by()).await.unwrap());
}

/// R35.
pub(crate) async fn braces_in_ids_are_nothing_special(hook: &Hook) {
    for id in ["{", "}", "{}", "a{b}c", "{}{", "{{}}", "{y}1", "{y}2"] {
        hook.send_with(id, &[("x-status", "500")])
            .await
            .is(500, "run");
        hook.send(id).await.is(200, "run");
        hook.send(id).await.is(200, "duplicate");
    }
}
