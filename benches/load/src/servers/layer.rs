//! This layer, everything at its default.

use tower_webhook_dedup::{EventId, LeaseStore, WebhookDedupLayer};

pub(super) fn layer<St: LeaseStore>(store: St) -> WebhookDedupLayer<St> {
    WebhookDedupLayer::new(store, EventId::pointer("/id"))
}
