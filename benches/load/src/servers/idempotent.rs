//! The crate `idempotent`, everything at its default. It takes the id from the header
//! `idempotency-key`, and does neither JSON nor SHA-256.

use idempotent::{middleware::IdempotencyLayer, valkey::ValkeyStore};

use crate::Result;

pub(super) async fn layer(redis: &str) -> Result<IdempotencyLayer<ValkeyStore>> {
    let store = ValkeyStore::with_url(redis).prefix("webhook");
    let layer = IdempotencyLayer::new(store.try_build().await?);
    Ok(layer.require_key(true))
}
