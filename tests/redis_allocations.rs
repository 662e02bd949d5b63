//! How often the layer allocates over Redis, on our side, over what the bare service does.
//!
//! The connection is driven on the same thread, so that what the client allocates counts too.

mod support;

use std::convert::Infallible;

use allocation_counter::measure;
use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::Full;
use tokio::runtime::Builder;
use tower::{Layer, Service, service_fn};
use tower_webhook_dedup::{EventId, RedisStore, RequestBody, WebhookDedupLayer};

use self::support::RedisServer;

/// Uncounted rounds, while connection and scripts come about, and counted ones.
const WARM: usize = 20;
const COUNTED: usize = 201;

/// What a request allocates where so many come at once: the median of the rounds.
fn allocations<S>(mut service: S, at_once: usize, id: impl Fn(usize) -> usize) -> f64
where
    S: Service<Request<Full<Bytes>>, Error = Infallible>,
{
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut counts = Vec::with_capacity(COUNTED);
    for round in 0..WARM + COUNTED {
        let bodies: Vec<_> = (0..at_once)
            .map(|n| id(round * at_once + n))
            .map(|id| Bytes::from(format!(r#"{{"data":[1,2,3],"id":"evt_{id:013}"}}"#)))
            .collect();
        let info = measure(|| {
            let calls = bodies.iter().map(|body| {
                let request = Request::post("/webhooks").body(Full::new(body.clone()));
                service.call(request.unwrap())
            });
            for answer in runtime.block_on(join_all(calls)) {
                drop(answer.unwrap());
            }
        });
        if round >= WARM {
            counts.push(info.count_total);
        }
    }
    counts.sort_unstable();
    counts[COUNTED / 2] as f64 / at_once as f64
}

/// What the layer adds.
fn over_bare(at_once: usize, id: impl Fn(usize) -> usize) -> f64 {
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url()).unwrap();
    let layer = WebhookDedupLayer::new(store, EventId::pointer("/id"));
    let layered = layer.layer(service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    let bare = service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let layered = allocations(layered, at_once, &id);
    layered - allocations(bare, at_once, &id)
}

/// What was measured for requests that come one at a time, and sixteen at once, whose commands go out
/// in one write. It may not grow by more than one.
#[track_caller]
fn check(what: &str, alone: f64, among_others: f64, id: impl Fn(usize) -> usize) {
    for (at_once, measured) in [(1, alone), (16, among_others)] {
        let now = over_bare(at_once, &id);
        println!("allocations over bare, {what} through Redis, {at_once} at once: {now:.1}");
        assert!(now <= measured + 1.0, "{now}");
    }
}

#[test]
fn a_duplicate_allocates_little() {
    check("duplicate", 9.0, 9.0, |_| 0);
}

#[test]
fn a_first_delivery_allocates_little() {
    check("first delivery", 16.0, 16.0, |n| n);
}
