//! The stores that need no server keep the contract of all stores.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_webhook_dedup::{Acquire, Cached, Key, LeaseStore, MemoryStore, Token, store::contract};

#[tokio::test(start_paused = true)]
async fn the_memory_store_keeps_the_contract() {
    contract(MemoryStore::new()).await;
}

#[tokio::test(start_paused = true)]
async fn a_boxed_store_keeps_the_contract() {
    contract(MemoryStore::new().boxed()).await;
}

#[tokio::test(start_paused = true)]
async fn a_cached_store_keeps_the_contract() {
    contract(Cached::new(MemoryStore::new())).await;
}

/// Beyond the contract: no duration that a caller of the store itself may choose does any harm.
#[tokio::test(start_paused = true)]
async fn the_memory_store_takes_any_duration() {
    let (store, key, token) = (MemoryStore::new(), Key::new("n", "1"), Token::random());
    let by = Instant::now() + Duration::from_secs(3600);
    let acquire = async |token, lease| store.acquire(&key, token, lease, by).await.unwrap();
    for lease in [Duration::ZERO, Duration::from_nanos(1)] {
        assert_eq!(
            acquire(token, lease).await,
            Acquire::Acquired { attempt: 1 }
        );
        sleep(Duration::from_millis(1)).await;
        assert_eq!(store.inspect(&key, by).await.unwrap(), None, "{lease:?}");
    }
    acquire(token, Duration::MAX).await;
    assert!(store.renew(&key, token, Duration::MAX, by).await.unwrap());
    let other = acquire(Token::random(), Duration::MAX).await;
    assert!(matches!(other, Acquire::InFlight { .. }), "{other:?}");
}
