//! Signatures are verified outside this layer, and by another crate: here webhook-verify, for Stripe,
//! GitHub, and senders that follow Standard Webhooks.
//!
//! ```sh
//! STRIPE_SECRET=whsec_… GITHUB_SECRET=key WEBHOOK_SECRET=whsec_… cargo run --release --example signature
//!
//! signature=$(printf '{"action":"opened"}' | openssl dgst -sha256 -hmac key -r | cut -d' ' -f1)
//! curl -i localhost:3000/webhooks/github -d '{"action":"opened"}' -H 'x-github-delivery: 1' \
//!     -H "x-hub-signature-256: sha256=$signature"
//! ```
//!
//! `LISTEN` is the address.

use std::{env, error::Error, time::Duration};

use axum::{
    BoxError, Router,
    body::{Body, Bytes},
    error_handling::HandleErrorLayer,
    extract::{DefaultBodyLimit, Request},
    http::StatusCode,
    routing::post,
};
use futures_util::future::join_all;
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_http::limit::RequestBodyLimitLayer;
use tower_webhook_dedup::{DrainHandle, LeaseStore, MemoryStore, WebhookDedupLayer, providers};
use webhook_verify::{Provider, Secret, VerifyOptions, tower::VerifyLayer};

/// No webhook is longer: GitHub's may have so much, and it never sends again what was refused. The
/// verifying layer reads all of the body and has no limit of its own.
const MAX_BODY: usize = 25 * 1024 * 1024;

/// What the senders sign with.
pub(crate) struct Secrets {
    pub(crate) stripe: String,
    pub(crate) github: String,
    pub(crate) standard_webhooks: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let secrets = Secrets {
        stripe: secret("STRIPE_SECRET")?,
        github: secret("GITHUB_SECRET")?,
        standard_webhooks: secret("WEBHOOK_SECRET")?,
    };
    let address = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);

    let (app, drains) = app(&MemoryStore::new(), secrets, &VerifyOptions::default());
    // A container is sent SIGTERM instead, and a connection that stalls holds this up: see the
    // example `axum`.
    axum::serve(listener, app)
        .with_graceful_shutdown(async { _ = tokio::signal::ctrl_c().await })
        .await?;
    let limit = Duration::from_secs(20);
    join_all(drains.iter().map(|drain| drain.drain(limit))).await;
    Ok(())
}

fn secret(name: &str) -> Result<String, String> {
    env::var(name).map_err(|why| format!("{name}: {why}"))
}

/// sender → limit → signature → dedup → handler
///
/// In this order a forged request ends at the signature: it makes no store call, takes no lease
/// and cannot stand in for the true one. The other way round, anybody could have an event marked as
/// running, or fill the store.
///
/// Only what verifies, limits or traces belongs outside the dedup layer. What commits, retries or
/// cuts off the handler belongs inside: outside, it could undo a run that was recorded as completed.
pub(crate) fn app(
    store: &impl LeaseStore,
    secrets: Secrets,
    options: &VerifyOptions,
) -> (Router, Vec<DrainHandle>) {
    let senders = [
        // The id is in the body, and signed with it.
        (
            "/webhooks/stripe",
            providers::stripe(),
            Provider::Stripe,
            secrets.stripe,
        ),
        // No signature covers the id, which is in a header: whoever replays a request can have it run
        // once more, but not hide another behind it, since the body is in the key, too.
        (
            "/webhooks/github",
            providers::github(),
            Provider::GitHub,
            secrets.github,
        ),
        // The id is in a header that is signed.
        (
            "/webhooks/standard",
            providers::standard_webhooks(),
            Provider::StandardWebhooks,
            secrets.standard_webhooks,
        ),
    ];

    let (mut app, mut drains) = (Router::new(), Vec::new());
    for (path, preset, provider, secret) in senders {
        let dedup = WebhookDedupLayer::new(store.clone(), preset);
        drains.push(dedup.drain_handle());
        let verify = VerifyLayer::with_options(provider, Secret::new(secret), options.clone());
        let verify = ServiceBuilder::new()
            .layer(RequestBodyLimitLayer::new(MAX_BODY))
            .layer(HandleErrorLayer::new(unreadable))
            .layer(verify)
            // It hands on plain bytes.
            .map_request(|request: Request<Bytes>| request.map(Body::from));
        let route = Router::new()
            .route(path, post(handle))
            // Axum's own limit, of 2 MB; it would fail the handler. The one outside is enough.
            .layer(DefaultBodyLimit::disable())
            // With axum the last one added is the outermost.
            .layer(dedup)
            .layer(verify);
        app = app.merge(route);
    }
    (app, drains)
}

/// The body is too long, or broke off.
async fn unreadable(_: BoxError) -> StatusCode {
    StatusCode::BAD_REQUEST
}

/// Does the work.
async fn handle(event: Bytes) -> StatusCode {
    let _work = event.len();
    StatusCode::OK
}
