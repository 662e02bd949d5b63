//! This layer, everything at its default.

use tower_webhook_dedup::{Cached, EventId, LeaseStore, RedisStore, WebhookDedupLayer};

use crate::Result;

pub(super) fn layer<St: LeaseStore>(store: St) -> WebhookDedupLayer<St> {
    WebhookDedupLayer::new(store, EventId::pointer("/id"))
}

/// It remembers what is done.
pub(super) fn cached(redis: &str) -> Result<WebhookDedupLayer<Cached<RedisStore>>> {
    Ok(layer(Cached::new(RedisStore::open(redis)?)))
}
