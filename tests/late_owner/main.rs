//! Promise 4: a late owner does no harm, and learns that it is late.

mod late_calls;
mod late_start;
mod renewed;
mod taken_over;
mod told;

#[path = "../support/engine.rs"]
mod engine;
#[path = "../support/http.rs"]
mod http_support;
#[path = "../support/stores.rs"]
mod stores;

use tower_webhook_dedup::{Entry, Token};

use self::{http_support::e1, stores::Faulty};

async fn holder(store: &Faulty) -> Option<Token> {
    match store.entry(&e1()).await {
        Some(Entry::Running { token, .. }) => Some(token),
        _ => None,
    }
}
