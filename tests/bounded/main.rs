//! Promise 7: memory is bounded, and each cap says what happens at it.

mod at_once;
mod bodies;
mod held;
mod memory_store;

#[path = "../support/engine.rs"]
mod engine;
#[path = "../support/http.rs"]
mod http_support;
#[path = "../support/stores.rs"]
mod stores;
