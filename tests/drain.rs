//! Draining, and what must not slip past it.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{EventId, MemoryStore, RequestBody, WebhookDedupLayer};

fn delivery(id: &str) -> Request<Full<Bytes>> {
    let body = format!(r#"{{"id":"{id}"}}"#);
    Request::post("/hook").body(Full::from(body)).unwrap()
}

/// Axum reports its server stopped a moment before it drops its last connections.
#[tokio::test(start_paused = true)]
async fn draining_does_not_miss_a_run_whose_sender_hangs_up_just_then() {
    let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"));
    let (seen, mut runs) = tokio::sync::mpsc::unbounded_channel();
    let service = layer.layer(service_fn(move |_: Request<RequestBody<Full<Bytes>>>| {
        let seen = seen.clone();
        async move {
            seen.send(()).unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }
    }));
    let mut first = Box::pin(service.clone().oneshot(delivery("e1")));
    tokio::select! {
        _ = &mut first => panic!("it takes long"),
        _ = runs.recv() => {}
    }
    let drain = layer.drain_handle();
    let draining = tokio::spawn(async move { drain.drain(Duration::from_secs(60)).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(first);
    assert!(draining.await.unwrap().is_complete());
    let second = service.oneshot(delivery("e1")).await.unwrap();
    assert_eq!(second.headers()["webhook-dedup"], "duplicate");
    assert!(runs.try_recv().is_err());
}
