//! How often the layer allocates over Redis, on our side, over what the bare service does.
//!
//! The connection is driven on the same thread, so that what the client allocates counts too.

mod support;

use std::convert::Infallible;

use allocation_counter::measure;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::runtime::Builder;
use tower::{Layer, Service, service_fn};
use tower_webhook_dedup::{EventId, RedisStore, RequestBody, WebhookDedupLayer};

use self::support::RedisServer;

/// What was measured, and may not grow by more than one.
const DUPLICATE: u64 = 14;
const FIRST: u64 = 26;

/// Uncounted requests, while connection and scripts come about, and counted ones.
const WARM: usize = 20;
const COUNTED: usize = 201;

/// The median of what one request allocates.
fn allocations<S>(mut service: S, id: impl Fn(usize) -> usize) -> u64
where
    S: Service<Request<Full<Bytes>>, Error = Infallible>,
{
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut counts = Vec::with_capacity(COUNTED);
    for n in 0..WARM + COUNTED {
        let body = Bytes::from(format!(r#"{{"data":[1,2,3],"id":"evt_{:013}"}}"#, id(n)));
        let info = measure(|| {
            let request = Request::post("/webhooks").body(Full::new(body.clone()));
            let answer = runtime.block_on(service.call(request.unwrap()));
            drop(answer.unwrap());
        });
        if n >= WARM {
            counts.push(info.count_total);
        }
    }
    counts.sort_unstable();
    counts[COUNTED / 2]
}

/// What the layer adds.
fn over_bare(id: impl Fn(usize) -> usize) -> u64 {
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url()).unwrap();
    let layer = WebhookDedupLayer::new(store, EventId::pointer("/id"));
    let layered = layer.layer(service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    let bare = service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let layered = allocations(layered, &id);
    layered - allocations(bare, &id)
}

#[test]
fn a_duplicate_allocates_little() {
    let duplicate = over_bare(|_| 0);
    println!("allocations over bare, duplicate through Redis: {duplicate}");
    assert!(duplicate <= DUPLICATE + 1, "{duplicate}");
}

#[test]
fn a_first_delivery_allocates_little() {
    let first = over_bare(|n| n);
    println!("allocations over bare, first delivery through Redis: {first}");
    assert!(first <= FIRST + 1, "{first}");
}
