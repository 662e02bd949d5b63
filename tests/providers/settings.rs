//! What a preset sets, and that all of it can be set otherwise.

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use tokio::time::advance;
use tower::Layer;
use tower_webhook_dedup::{Key, KeyBy, MissingId, WebhookDedupLayer, providers};

use crate::{
    fixtures::fixture,
    http_support::{Handler, Run, secs, send},
    stores::MemoryStore,
};

#[tokio::test(start_paused = true)]
async fn the_namespace_is_the_name_and_the_path() {
    let keys = |run: Run| async move {
        let key = run.delivery().key().clone();
        assert_eq!(
            key,
            Key::new("stripe/hooks/provider", "evt_1FxTurePaY0000000000001")
        );
        200
    };
    let layer = WebhookDedupLayer::new(MemoryStore::new(), providers::stripe());
    let answer = send(
        &layer.layer(Handler::new(keys)),
        fixture("stripe").request(),
    )
    .await;
    assert_eq!(answer.brief(), (200, "run"));
}

#[tokio::test(start_paused = true)]
async fn every_value_can_be_overridden() {
    let keys = |run: Run| async move {
        let key = run.delivery().key().as_str().to_owned();
        assert!(key.starts_with("webhook:lock:mine:"), "{key}");
        assert!(!key.ends_with(":*"), "the body is in the key: {key}");
        200
    };
    let store = MemoryStore::new();
    let layer = WebhookDedupLayer::new(store.clone(), providers::stripe())
        .namespace("mine")
        .key_by(KeyBy::IdAndBody)
        .retention(secs(3600));
    let service = layer.layer(Handler::new(keys));
    send(&service, fixture("stripe").request()).await;
    advance(secs(3601)).await;
    let answer = send(&service, fixture("stripe").request()).await;
    assert_eq!(answer.brief(), (200, "run"));

    // A handshake that is none any more.
    let layer = WebhookDedupLayer::new(store, providers::slack())
        .bypass(|_, _| false)
        .missing_id(MissingId::Refuse)
        .refuse_with(|_| {
            http::Response::builder()
                .status(418)
                .body(Bytes::new())
                .unwrap()
        });
    let service = layer.layer(Handler::ok());
    let answer = send(&service, fixture("slack_url_verification").request()).await;
    assert_eq!(answer.brief(), (418, "refused"));
}

#[tokio::test(start_paused = true)]
async fn github_may_send_25_mib() {
    const LIMIT: usize = 25 * 1024 * 1024;
    let github = fixture("github");
    let service = WebhookDedupLayer::new(MemoryStore::new(), providers::github());
    let service = service.layer(Handler::ok());
    for (length, brief) in [(LIMIT, (200, "run")), (LIMIT + 1, (413, "refused"))] {
        // What is declared is believed, before it is read.
        let mut request = github.request();
        request.headers_mut().insert(CONTENT_LENGTH, length.into());
        assert_eq!(send(&service, request).await.brief(), brief, "{length}");
    }
}
