//! gRPC and webhooks on one port, under one layer, which only applies to the webhooks.
//!
//! ```sh
//! cargo run --release --example tonic
//! curl -i localhost:3000/webhooks/demo -d '{"id":"evt_1"}'
//! grpcurl -plaintext localhost:3000 grpc.health.v1.Health/Check
//! ```

use std::{env, error::Error, time::Duration};

use axum::{http::StatusCode, routing::post};
use tokio::net::TcpListener;
use tonic::{
    service::Routes,
    transport::{Server, server::TcpIncoming},
};
use tower_webhook_dedup::{EventId, LeaseStore, MemoryStore, WebhookDedupLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);

    let store = MemoryStore::new();
    // A container is sent SIGTERM instead: see the example `axum`.
    serve(listener, store, async { _ = tokio::signal::ctrl_c().await }).await?;
    Ok(())
}

/// Serves until told to stop; then finishes what it has.
pub(crate) async fn serve(
    listener: TcpListener,
    store: impl LeaseStore,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    // A gRPC call is a POST, too, so the default would refuse it for want of an event id; and a
    // streaming one must not be buffered.
    let dedup = WebhookDedupLayer::new(store, EventId::pointer("/id"))
        .applies_to(|request| request.uri.path().starts_with("/webhooks/"));
    let drain = dedup.drain_handle();

    Server::builder()
        .accept_http1(true) // curl, and most senders
        .layer(dedup)
        .add_routes(routes())
        .serve_with_incoming_shutdown(TcpIncoming::from(listener), stop)
        .await?;
    _ = drain.drain(Duration::from_secs(20)).await;
    Ok(())
}

/// gRPC's health service, and a webhook.
fn routes() -> Routes {
    let (_reporter, health) = tonic_health::server::health_reporter();
    let routes = Routes::new(health).into_axum_router();
    routes.route("/webhooks/demo", post(handle)).into()
}

/// Does the work.
async fn handle() -> StatusCode {
    StatusCode::OK
}
