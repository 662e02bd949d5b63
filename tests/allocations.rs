//! How often the layer allocates, over what the bare service does, is known and does not creep up.

use std::{convert::Infallible, future::Future};

use allocation_counter::measure;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body_util::Full;
use tokio::runtime::{Builder, Runtime};
use tower::{Layer, Service, service_fn};
use tower_webhook_dedup::{EventId, MemoryStore, RequestBody, WebhookDedupLayer};

/// What was measured, and may not grow by more than one.
const DUPLICATE: u64 = 6;
const FIRST: u64 = 15;

/// The bytes that were measured, over the bare service, and may not grow by a tenth.
const DUPLICATE_BYTES: u64 = 2_972;
const FIRST_BYTES: u64 = 7_107;

/// Requests that are not counted, and those that are.
type Requests = (usize, usize);

/// For new events, so that the maps of the store have grown.
const MANY: Requests = (500, 501);

/// For the same event again and again.
const FEW: Requests = (10, 11);

/// Objects, arrays, strings and numbers, with the id at the end.
fn body(id: usize, bytes: usize) -> Bytes {
    let item = r#"{"object":"charge","amount":15900,"paid":true,"tags":["a","b\n"],"note":null},"#;
    let items = item.repeat(bytes / item.len());
    let body = format!(r#"{{"data":{{"list":[{items}0]}},"id":"evt_1FxTurePaY{id:013}"}}"#);
    body.into()
}

fn request(body: &Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body.clone()));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = http::Uri::from_static("/webhooks/billing");
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(CONTENT_TYPE, json);
    request
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

/// The allocations of each request after the first few, in ascending order.
fn allocations<S, F>(
    mut service: S,
    (warm, counted): Requests,
    bodies: impl Fn(usize) -> Bytes,
) -> Vec<u64>
where
    S: Service<Request<Full<Bytes>>, Future = F, Error = Infallible>,
    F: Future<Output = Result<S::Response, Infallible>>,
{
    let runtime = runtime();
    let mut counts = Vec::with_capacity(counted);
    for n in 0..warm + counted {
        let body = bodies(n);
        let info = measure(|| {
            let answer = runtime.block_on(async { service.call(request(&body)).await });
            drop(answer.unwrap());
        });
        if n >= warm {
            counts.push(info.count_total);
        }
    }
    counts.sort_unstable();
    counts
}

/// Allocations of the bare service.
fn bare(requests: Requests, bodies: impl Fn(usize) -> Bytes) -> Vec<u64> {
    let service = service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    allocations(service, requests, bodies)
}

/// Allocations of the same service under the layer.
fn layered(requests: Requests, bodies: impl Fn(usize) -> Bytes) -> Vec<u64> {
    let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"));
    let service = layer.layer(service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    allocations(service, requests, bodies)
}

/// Prints, and gives the median, since the maps of the store grow now and then.
fn over(what: &str, bare: &[u64], layered: &[u64]) -> u64 {
    let least = layered[0] - bare[0];
    let (middle, last) = (bare.len() / 2, bare.len() - 1);
    let median = layered[middle] - bare[middle];
    let most = layered[last] - bare[last];
    println!("allocations over bare, {what}: {median} (least {least}, most {most})");
    median
}

#[test]
fn a_duplicate_allocates_little_over_the_bare_service() {
    let same = |_| body(0, 1024);
    let duplicate = over("duplicate", &bare(FEW, same), &layered(FEW, same));
    assert!(duplicate <= DUPLICATE + 1, "{duplicate}");
}

#[test]
fn a_first_delivery_allocates_little_over_the_bare_service() {
    let fresh = |n| body(n, 1024);
    let first = over("first delivery", &bare(MANY, fresh), &layered(MANY, fresh));
    assert!(first <= FIRST + 1, "{first}");
}

#[test]
fn allocations_do_not_grow_with_the_body() {
    let of = |bytes| {
        let same = body(0, bytes);
        let same = move |_| same.clone();
        let what = format!("duplicate of {bytes} bytes");
        over(&what, &bare(FEW, &same), &layered(FEW, &same))
    };
    let small = of(1024);
    assert_eq!(of(64 * 1024), small);
    assert_eq!(of(1024 * 1024), small);
}
