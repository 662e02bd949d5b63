//! Signatures are verified outside this layer, and by another crate: here webhook-verify, for
//! senders that follow Standard Webhooks.
//!
//! ```sh
//! WEBHOOK_SECRET=whsec_… cargo run --release --example signature
//! ```

use std::{env, error::Error, time::Duration};

use axum::{
    BoxError, Router,
    body::{Body, Bytes},
    error_handling::HandleErrorLayer,
    extract::Request,
    http::StatusCode,
    routing::post,
};
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_http::limit::RequestBodyLimitLayer;
use tower_webhook_dedup::{DrainHandle, EventId, LeaseStore, MemoryStore, WebhookDedupLayer};
use webhook_verify::{Provider, Secret, tower::VerifyLayer};

/// No webhook is longer. The verifying layer reads all of the body and has no limit of its own.
const MAX_BODY: usize = 1024 * 1024;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let secret = env::var("WEBHOOK_SECRET")?;
    let address = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);

    let (app, drain) = app(MemoryStore::new(), secret);
    axum::serve(listener, app)
        .with_graceful_shutdown(async { _ = tokio::signal::ctrl_c().await })
        .await?;
    _ = drain.drain(Duration::from_secs(20)).await;
    Ok(())
}

/// sender → limit → signature → dedup → handler
///
/// In this order a forged request ends at the signature: it makes no store call, takes no lease
/// and cannot stand in for the true one. The other way round, anybody could have an event marked as
/// running, or fill the store.
///
/// Only what verifies, limits or traces belongs outside the dedup layer. What commits, retries or
/// cuts off the handler belongs inside: outside, it could undo a run that was recorded as completed.
pub(crate) fn app(store: impl LeaseStore, secret: String) -> (Router, DrainHandle) {
    // The signature covers this header. An id that it does not cover could be changed by whoever
    // replays the request.
    let dedup = WebhookDedupLayer::new(store, EventId::header("webhook-id"));
    let drain = dedup.drain_handle();

    let verify = ServiceBuilder::new()
        .layer(RequestBodyLimitLayer::new(MAX_BODY))
        .layer(HandleErrorLayer::new(unreadable))
        .layer(VerifyLayer::new(
            Provider::StandardWebhooks,
            Secret::new(secret),
        ))
        // It hands on plain bytes.
        .map_request(|request: Request<Bytes>| request.map(Body::from));
    let app = Router::new()
        .route("/webhooks/demo", post(handle))
        // With axum the last one added is the outermost.
        .layer(dedup)
        .layer(verify);
    (app, drain)
}

/// The body is too long, or broke off.
async fn unreadable(_: BoxError) -> StatusCode {
    StatusCode::BAD_REQUEST
}

/// Does the work.
async fn handle() -> StatusCode {
    StatusCode::OK
}
