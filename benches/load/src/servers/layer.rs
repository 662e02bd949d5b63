//! This layer, everything at its default but what the name of the server says.

use std::time::Duration;

use tower_webhook_dedup::{Cached, EventId, LeaseStore, RedisStore, WebhookDedupLayer};

use crate::Result;

pub(super) fn layer<St: LeaseStore>(store: St) -> WebhookDedupLayer<St> {
    WebhookDedupLayer::new(store, EventId::pointer("/id"))
}

/// Its connection does not sleep while a reply is awaited, unless that takes long.
pub(super) fn busy_poll(redis: &str) -> Result<WebhookDedupLayer<RedisStore>> {
    let store = RedisStore::builder(redis).busy_poll(Duration::from_micros(150));
    Ok(layer(store.open()?))
}

/// It remembers what is done.
pub(super) fn cached(redis: &str) -> Result<WebhookDedupLayer<Cached<RedisStore>>> {
    Ok(layer(Cached::new(RedisStore::open(redis)?)))
}
