//! Nonsense panics where it is configured, and times are kept as they were given.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use tokio::time::{Instant, advance};
use tower::Layer;
use tower_webhook_dedup::{
    AfterWait, Dedup, Entry, EventId, InFlight, Key, LeaseStore, Limits, Token, WebhookDedup,
    WebhookDedupLayer,
};

use http_support::{Handler, by_id, e1, millis, post, secs, send};
use stores::{Fault, Faulty, MemoryStore};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

/// Whether this panics, and with what.
fn panics<T>(configure: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(configure)).is_err()
}

type Setter = fn(WebhookDedupLayer<MemoryStore>, Duration) -> WebhookDedupLayer<MemoryStore>;

const SETTERS: [(&str, Setter); 5] = [
    ("lease", WebhookDedupLayer::lease),
    ("run_limit", WebhookDedupLayer::run_limit),
    ("retention", WebhookDedupLayer::retention),
    ("store_timeout", WebhookDedupLayer::store_timeout),
    ("body_timeout", WebhookDedupLayer::body_timeout),
];

/// R52
#[test]
fn durations_that_nobody_can_have_meant_panic_where_they_are_configured() {
    let new = || WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"));
    let micro = Duration::from_micros(999);
    let decade = secs(10 * 366 * 24 * 3600);
    for (name, set) in SETTERS {
        for nonsense in [Duration::ZERO, micro, decade + secs(1), Duration::MAX] {
            assert!(panics(|| set(new(), nonsense)), "{name} {nonsense:?}");
        }
        for fine in [millis(1), millis(500), millis(1_500), decade] {
            assert!(!panics(|| set(new(), fine)), "{name} {fine:?}");
        }
    }
    assert!(panics(|| Limits::default().standby_age(Duration::ZERO)));
    assert!(panics(|| Limits::default().standby_age(Duration::MAX)));
}

/// R52, for those who use the engine itself.
#[test]
fn the_engine_refuses_the_same_durations() {
    type Setter = fn(Dedup<MemoryStore>, Duration) -> Dedup<MemoryStore>;
    let setters: [Setter; 4] = [
        Dedup::lease,
        Dedup::run_limit,
        Dedup::retention,
        Dedup::store_timeout,
    ];
    for set in setters {
        for nonsense in [Duration::ZERO, Duration::MAX] {
            assert!(panics(|| set(Dedup::new(MemoryStore::new()), nonsense)));
        }
    }
}

/// R52: setters come in any order, so this is looked at when the layer is used.
#[test]
fn a_lease_shorter_than_four_store_timeouts_panics_when_the_layer_is_used() {
    let new = || WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"));
    let used = |layer: WebhookDedupLayer<MemoryStore>| panics(|| layer.layer(Handler::ok()));
    for (lease, timeout, bad) in [
        (millis(1_199), millis(300), true),
        (millis(1_200), millis(300), false),
        (millis(100), millis(25), false),
        (millis(100), millis(26), true),
        (secs(30), secs(8), true),
    ] {
        assert_eq!(used(new().lease(lease).store_timeout(timeout)), bad);
        assert_eq!(used(new().store_timeout(timeout).lease(lease)), bad);
    }
    assert!(used(new().lease(secs(1))));
    assert!(!used(new()));
}

/// R52
#[test]
fn other_nonsense_panics_where_it_is_configured() {
    for pointer in ["id", "/a~", "/a~2"] {
        assert!(panics(|| EventId::pointer(pointer)), "{pointer}");
    }
    assert!(panics(|| EventId::header("no header")));
    assert!(panics(|| MemoryStore::with_capacity(0)));
    for max in [Duration::ZERO, Duration::MAX] {
        let then = AfterWait::RetryLater;
        let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"));
        assert!(panics(|| layer.in_flight(InFlight::Wait { max, then })));
    }
}

/// R52
#[tokio::test(start_paused = true)]
async fn leases_are_exact() {
    for length in [millis(500), millis(1_500), secs(30)] {
        let store = Faulty::new();
        let dedup = Dedup::new(store.clone()).lease(length);
        let lease = dedup.begin(&e1()).await.unwrap();
        let Some(Entry::Running { lease: kept, .. }) = store.entry(&e1()).await else {
            panic!("not running");
        };
        assert_eq!(kept, length);
        // From now on as if the process had died.
        std::mem::forget(lease);
        store.plan(|_| Fault::Hang);
        advance(length - millis(1)).await;
        assert!(store.entry(&e1()).await.is_some());
        advance(millis(2)).await;
        assert!(store.entry(&e1()).await.is_none());
    }
}

/// R52: no entry without an end, whatever was configured.
#[tokio::test(start_paused = true)]
async fn no_entry_stays_for_ever() {
    let day = secs(24 * 3600);
    for (lease, retention) in [
        (secs(2), day),
        (secs(2), millis(1)),
        (day * 3650, day * 3650),
    ] {
        let store = MemoryStore::new();
        let layer = by_id(store.clone()).lease(lease).retention(retention);
        let done: WebhookDedup<_, _> = layer.clone().layer(Handler::ok());
        let failed = layer.clone().layer(Handler::statuses([500]));
        assert_eq!(send(&done, post("done")).await.brief(), (200, "run"));
        assert_eq!(send(&failed, post("failed")).await.brief(), (500, "run"));
        let key = Key::new("t", "held");
        let by = Instant::now();
        store
            .acquire(&key, Token::random(), lease, by)
            .await
            .unwrap();
        // The failed one is kept for a day at most.
        advance(day + secs(1)).await;
        let failed = store.inspect(&Key::new("t", "failed"), by).await.unwrap();
        assert!(failed.is_none());
        advance(lease.max(retention)).await;
        for id in ["done", "held"] {
            let entry = store.inspect(&Key::new("t", id), by).await.unwrap();
            assert!(entry.is_none(), "{id}");
        }
        assert!(store.is_empty());
    }
}
