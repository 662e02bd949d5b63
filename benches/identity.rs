//! What it costs to tell which event a request carries: the whole layer answering a duplicate,
//! against the parse, the pointer and the hash as they are usually written.
//!
//! `cargo bench --bench identity`

use std::{convert::Infallible, hint::black_box};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput};
use http::{Request, Response};
use http_body_util::Full;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::runtime::Builder;
use tower::{Layer, Service, service_fn};
use tower_webhook_dedup::{EventId, MemoryStore, RequestBody, WebhookDedupLayer};

/// A body of about this many bytes, its id at the end.
fn body(bytes: usize) -> Bytes {
    let item = r#"{"object":"charge","amount":15900,"paid":true,"tags":["a","b\n"],"note":null},"#;
    let items = item.repeat(bytes / item.len());
    format!(r#"{{"data":{{"list":[{items}0]}},"id":"evt_1FxTurePaY0000000000001"}}"#).into()
}

/// The key, as it is usually made.
fn usual_key(body: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let id = value.pointer("/id")?.as_str()?;
    let hash = hex::encode(Sha256::digest(body));
    Some(format!("webhook:lock:{id}:{hash}"))
}

fn identity(criterion: &mut Criterion) {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"));
    let mut service = layer.layer(service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    let mut group = criterion.benchmark_group("identity");
    for bytes in [1024, 8 * 1024, 64 * 1024, 1024 * 1024] {
        let body = body(bytes);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_with_input(BenchmarkId::new("whole layer", bytes), &body, |b, body| {
            b.iter(|| {
                let request = Request::post("/hook").body(Full::new(body.clone()));
                runtime.block_on(service.call(request.unwrap())).unwrap()
            });
        });
        group.bench_with_input(BenchmarkId::new("usual key", bytes), &body, |b, body| {
            b.iter(|| usual_key(black_box(body)).unwrap());
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    identity(&mut criterion);
    criterion.final_summary();
}
