//! An axum server that runs each webhook event once.
//!
//! ```sh
//! cargo run --release --example axum
//! curl -i localhost:3000/webhook -d '{"id":"evt_1"}'
//! ```
//!
//! `REDIS_URL` shares the events among any number of such servers; without it they are kept in
//! memory. `LISTEN` is the address, and `RUST_LOG=debug` tells what the layer does.

use std::{env, error::Error, time::Duration};

use axum::{Extension, Router, body::Bytes, http::StatusCode, routing::post};
use tokio::{net::TcpListener, sync::oneshot, time::timeout};
use tower_webhook_dedup::{
    BoxStore, Delivery, DrainHandle, EventId, LeaseStore, MemoryStore, RedisStore,
    WebhookDedupLayer,
};
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| "off".into()))
        .with_writer(std::io::stderr)
        .init();

    let store = match env::var("REDIS_URL") {
        Ok(url) => RedisStore::open(&url)?.boxed(),
        Err(_) => MemoryStore::new().boxed(),
    };
    let (app, drain) = app(store);

    let address = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    let told_to_stop = told_to_stop()?;
    println!("listening on {}", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel::<()>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async { _ = stopped.await });
    let server = tokio::spawn(server.into_future());

    told_to_stop.await;
    drop(stop);
    // It waits for handlers, and would wait for ever for a sender that stalls.
    _ = timeout(Duration::from_secs(8), server).await;
    // The layer may still be running events that it has acknowledged.
    let drained = drain.drain(Duration::from_secs(20)).await;
    for lost in drained.lost() {
        eprintln!("not completed: {}", lost.key);
    }
    Ok(())
}

/// The routes.
pub(crate) fn app(store: BoxStore) -> (Router, DrainHandle) {
    let dedup = WebhookDedupLayer::new(store, EventId::pointer("/id"));
    let drain = dedup.drain_handle();
    let app = Router::new()
        .route("/webhook", post(handle).layer(dedup))
        // The same handler without the layer, to compare.
        .route("/bare", post(handle));
    (app, drain)
}

/// Does the work. Only a 2xx completes the event; whatever else happens here, it runs again.
async fn handle(delivery: Option<Extension<Delivery>>, event: Bytes) -> StatusCode {
    if let Some(Extension(delivery)) = delivery {
        // Unique for the event: as a `UNIQUE` column next to what you write for it, it makes that
        // happen exactly once, whatever becomes of this process.
        let _key = delivery.key();
    }
    let _work = event.len();
    StatusCode::OK
}

/// Ctrl-C, or SIGTERM where there is one. Neither ends the process by itself from here on.
fn told_to_stop() -> std::io::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let (mut terminated, mut interrupted) = {
        use tokio::signal::unix::{SignalKind, signal};
        (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        )
    };
    Ok(async move {
        #[cfg(unix)]
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
        #[cfg(not(unix))]
        {
            _ = tokio::signal::ctrl_c().await;
        }
    })
}
