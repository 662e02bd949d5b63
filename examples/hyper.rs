//! The layer on hyper alone, with no framework: the body is hyper's `Incoming`.
//!
//! ```sh
//! cargo run --release --example hyper
//! curl -i localhost:3000 -d '{"id":"evt_1"}'
//! ```

use std::{convert::Infallible, env, error::Error, pin::pin, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_webhook_dedup::{
    Delivery, EventId, LeaseStore, MemoryStore, RequestBody, WebhookDedupLayer,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);

    let store = MemoryStore::new();
    // A container is sent SIGTERM instead: see the example `axum`.
    serve(listener, store, async { _ = tokio::signal::ctrl_c().await }).await;
    Ok(())
}

/// Serves until told to stop; then finishes what it has.
pub(crate) async fn serve(
    listener: TcpListener,
    store: impl LeaseStore,
    stop: impl Future<Output = ()>,
) {
    let dedup = WebhookDedupLayer::new(store, EventId::pointer("/id"));
    let drain = dedup.drain_handle();
    let service = ServiceBuilder::new().layer(dedup).service_fn(handle);

    let connections = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => TokioIo::new(stream),
                Err(error) => {
                    eprintln!("could not accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(stream, TowerToHyperService::new(service.clone()));
        // A connection that breaks off is the sender's business.
        tokio::spawn(connections.watch(connection));
    }
    drop(listener);
    _ = tokio::time::timeout(Duration::from_secs(10), connections.shutdown()).await;
    _ = drain.drain(Duration::from_secs(20)).await;
}

/// Does the work. Where the layer applied, it has read the body already.
async fn handle(
    request: Request<RequestBody<Incoming>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let attempt = request.extensions().get().map_or(0, Delivery::attempt);
    let bytes = request.body().bytes().map_or(0, Bytes::len);
    let answer = format!("{bytes} bytes, attempt {attempt}\n");
    Ok(Response::new(Full::from(answer)))
}
