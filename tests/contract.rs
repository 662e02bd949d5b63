//! The stores that need no server keep the contract of all stores.

use tower_webhook_dedup::{Cached, LeaseStore, MemoryStore, store::contract};

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
