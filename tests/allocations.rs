//! How often the layer allocates, over what the bare service does, is known and does not creep up.

use std::{convert::Infallible, future::Future, time::Duration};

use allocation_counter::measure;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body_util::Full;
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep},
};
use tower::{Layer, Service, service_fn};
use tower_webhook_dedup::{
    BodyHash, Cached, Dedup, EventId, Key, LeaseStore, MemoryStore, Record, RequestBody, Token,
    WebhookDedupLayer,
};

use engine::{acquired, e, paused_runtime};

#[path = "support/engine.rs"]
mod engine;
#[path = "support/stores.rs"]
mod stores;

/// What was measured, and may not grow by more than one.
const DUPLICATE: u64 = 6;
const FIRST: u64 = 15;

/// The bytes that were measured, and may not grow by a fifth.
const DUPLICATE_BYTES: u64 = 3_020;
const FIRST_BYTES: u64 = 7_955;

const DAY: Duration = Duration::from_secs(24 * 3600);

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

/// The allocations of each request after the first few, and their bytes, in ascending order.
fn allocations<S, F>(
    mut service: S,
    (warm, counted): Requests,
    bodies: impl Fn(usize) -> Bytes,
) -> Vec<(u64, u64)>
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
            counts.push((info.count_total, info.bytes_total));
        }
    }
    counts.sort_unstable();
    counts
}

/// Allocations of the bare service.
fn bare(requests: Requests, bodies: impl Fn(usize) -> Bytes) -> Vec<(u64, u64)> {
    let service = service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    allocations(service, requests, bodies)
}

/// Allocations of the same service under the layer.
fn layered(requests: Requests, bodies: impl Fn(usize) -> Bytes) -> Vec<(u64, u64)> {
    let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"));
    let service = layer.layer(service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    allocations(service, requests, bodies)
}

/// Prints, and gives the median, since the maps of the store grow now and then.
fn over(what: &str, bare: &[(u64, u64)], layered: &[(u64, u64)]) -> (u64, u64) {
    let at = |n: usize| (layered[n].0 - bare[n].0, layered[n].1 - bare[n].1);
    let (least, median, most) = (at(0).0, at(bare.len() / 2), at(bare.len() - 1).0);
    let (count, bytes) = median;
    println!("allocations over bare, {what}: {count} (least {least}, most {most}), {bytes} bytes");
    median
}

#[test]
fn a_duplicate_allocates_little_over_the_bare_service() {
    let same = |_| body(0, 1024);
    let (count, bytes) = over("duplicate", &bare(FEW, same), &layered(FEW, same));
    assert!(count <= DUPLICATE + 1, "{count}");
    assert!(bytes <= DUPLICATE_BYTES + DUPLICATE_BYTES / 5, "{bytes}");
}

#[test]
fn a_first_delivery_allocates_little_over_the_bare_service() {
    let fresh = |n| body(n, 1024);
    let (count, bytes) = over("first delivery", &bare(MANY, fresh), &layered(MANY, fresh));
    assert!(count <= FIRST + 1, "{count}");
    assert!(bytes <= FIRST_BYTES + FIRST_BYTES / 5, "{bytes}");
}

/// The estimate behind [`Cached::max_bytes`] is not below what is used.
#[test]
fn a_remembered_event_takes_no_more_than_is_counted_for_it() {
    // Just above a power of two in each of 64 shards: there is most room to spare.
    const EVENTS: usize = 66_000;
    let store = MemoryStore::with_capacity(1);
    let cached = Cached::new(store).max_entries(2 * EVENTS);
    let cached = cached.max_bytes(usize::MAX);
    let (runtime, record) = (runtime(), Record::new(Some(200), Some(BodyHash::of(b""))));
    let info = measure(|| {
        for n in 0..EVENTS {
            let key = Key::with_hash(
                "billing",
                format!("evt_1FxTurePaY{n:013}"),
                BodyHash::of(b""),
            );
            let by = Instant::now();
            let completed = cached.complete(&key, Token::random(), &record, DAY, by);
            assert!(runtime.block_on(completed).unwrap());
        }
    });
    assert_eq!(cached.len(), EVENTS);
    let each = usize::try_from(info.bytes_current).unwrap() / EVENTS;
    println!("bytes of a remembered event: {each}");
    let key = "webhook:lock:billing:evt_1FxTurePaY0000000000000:".len() + 64;
    assert!(each <= 250 + 2 * key, "{each}");
}

/// To look at all leases for each that is renewed takes a while where there are many, and more than
/// their time where there are very many.
#[test]
fn a_renewal_allocates_no_more_beside_many_leases_than_beside_few() {
    let of = |leases: usize| {
        let (runtime, lease) = (paused_runtime(), Duration::from_secs(30));
        let dedup = Dedup::new(MemoryStore::new()).lease(lease);
        let held: Vec<_> = (0..leases)
            .map(|n| runtime.block_on(acquired(&dedup, &e(n))))
            .collect();
        let rest = |time| runtime.block_on(async move { sleep(time).await });
        // Each of them is renewed once in a third of its time.
        rest(lease / 2);
        let info = measure(|| rest(lease));
        let each = info.bytes_total / (3 * leases as u64);
        println!("bytes that a renewal allocates beside {leases} leases: {each}");
        runtime.block_on(async { assert!(held.iter().all(|lease| !lease.is_lost())) });
        each
    };
    let few = of(100);
    let many = of(10_000);
    assert!(many <= 2 * few, "{many}");
}

#[test]
fn allocations_do_not_grow_with_the_body() {
    let of = |bytes| {
        let same = body(0, bytes);
        let same = move |_| same.clone();
        let what = format!("duplicate of {bytes} bytes");
        over(&what, &bare(FEW, &same), &layered(FEW, &same)).0
    };
    let small = of(1024);
    assert_eq!(of(64 * 1024), small);
    assert_eq!(of(1024 * 1024), small);
}
