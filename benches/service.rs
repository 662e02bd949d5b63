//! What a delivery costs in one process, without a network: the layer on the memory store, and what
//! is usually written by hand, on a map behind a lock.
//!
//! `cargo bench --bench service`

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use criterion::{BatchSize, Criterion};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::runtime::{Builder, Runtime};
use tower::{Layer, Service, service_fn};
use tower_webhook_dedup::{Cached, EventId, MemoryStore, RequestBody, WebhookDedupLayer};

type Body = Full<Bytes>;

/// 1 KiB of JSON, the id at the end; a new event each time, or always the same.
fn request(id: u64) -> Request<Body> {
    let item = r#"{"object":"charge","amount":15900,"paid":true,"tags":["a","b\n"],"note":null},"#;
    let items = item.repeat(1024 / item.len());
    let body = format!(r#"{{"data":{{"list":[{items}0]}},"id":"evt_1FxTurePaY{id:013}"}}"#);
    let request = Request::post("/hook").header("content-type", "application/json");
    request.body(Body::from(body)).unwrap()
}

fn new_event() -> Request<Body> {
    static ID: AtomicU64 = AtomicU64::new(1);
    request(ID.fetch_add(1, Ordering::Relaxed))
}

fn same_event() -> Request<Body> {
    request(0)
}

async fn handle(request: Request<RequestBody<Body>>) -> Result<Response<Body>, Infallible> {
    drop(request);
    Ok(Response::new(Body::default()))
}

/// The pattern as it is usually written.
async fn by_hand(
    seen: &Mutex<HashMap<String, String>>,
    request: Request<Body>,
) -> Result<Response<Body>, Infallible> {
    let body = request.into_body().collect().await?.to_bytes();
    let value: Value = serde_json::from_slice(&body).unwrap();
    let id = value["id"].as_str().unwrap();
    let hash = hex::encode(Sha256::digest(&body));
    let key = format!("webhook:lock:{id}:{hash}");
    let before = seen.lock().unwrap().insert(key, "locked".to_owned());
    let answer = match before {
        None => Body::default(),
        Some(_) => {
            let duplicate = serde_json::json!({ "status": "success" });
            Body::from(duplicate.to_string())
        }
    };
    Ok(Response::new(answer))
}

fn bench<S>(criterion: &mut Criterion, runtime: &Runtime, name: &str, mut service: S)
where
    S: Service<Request<Body>, Error = Infallible>,
{
    for (delivery, make) in [
        ("first", new_event as fn() -> Request<Body>),
        ("duplicate", same_event),
    ] {
        criterion.bench_function(&format!("{name}/{delivery}"), |bencher| {
            // The response is dropped outside the time, as the request is made.
            let call = |request| runtime.block_on(service.call(request)).ok();
            bencher.iter_batched(make, call, BatchSize::SmallInput);
        });
    }
}

fn main() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(40)
        .configure_from_args();
    let bare = service_fn(|request: Request<Body>| async {
        drop(request);
        Ok(Response::new(Body::default()))
    });
    let id = || EventId::pointer("/id");
    let layered = WebhookDedupLayer::new(MemoryStore::new(), id());
    let cached = WebhookDedupLayer::new(Cached::new(MemoryStore::new()), id());
    let seen = Mutex::default();
    let criterion = &mut criterion;
    bench(criterion, &runtime, "bare", bare);
    bench(
        criterion,
        &runtime,
        "layer",
        layered.layer(service_fn(handle)),
    );
    bench(
        criterion,
        &runtime,
        "layer, cached",
        cached.layer(service_fn(handle)),
    );
    let by_hand = service_fn(|request| by_hand(&seen, request));
    bench(criterion, &runtime, "by hand", by_hand);
    criterion.final_summary();
}
