//! Promise 7: memory is bounded, and each cap says what happens at it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{future::join_all, stream};
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use tokio::time::{Instant, sleep};
use tower::{Layer, service_fn};
use tower_webhook_dedup::{
    AfterWait, Begun, Dedup, EventId, InFlight, Key, KeyBy, Lease, LeaseStore, Limits, Operation,
    Outcome, Record, Refusal, Release, RequestBody, StoreErrorKind, Token, WebhookDedupLayer,
};

use http_support::{Answer, Handler, by_id, c0, e1, millis, post, secs, send, send_later};
use stores::{Call, Fault, Faulty, MemoryStore};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

/// The limit of `C0`.
const LIMIT: usize = 64 * 1024;

/// A JSON body with an id, of exactly this length.
fn json_of(length: usize) -> Bytes {
    let (head, tail) = (r#"{"id":"e1","x":""#, r#""}"#);
    let filling = "x".repeat(length - head.len() - tail.len());
    format!("{head}{filling}{tail}").into()
}

type AnyBody = UnsyncBoxBody<Bytes, io::Error>;

/// A body of these parts, with a pause before each, and how many were asked for.
fn chunked(
    parts: impl Iterator<Item = io::Result<Bytes>> + Send + 'static,
    pause: Duration,
) -> (AnyBody, Arc<AtomicUsize>) {
    let polled = Arc::new(AtomicUsize::new(0));
    let counted = polled.clone();
    let stream = futures_util::stream::unfold(parts, move |mut parts| {
        let counted = counted.clone();
        async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            counted.fetch_add(1, Ordering::Relaxed);
            Some((parts.next()?.map(Frame::data), parts))
        }
    });
    (UnsyncBoxBody::new(StreamBody::new(stream)), polled)
}

/// Sends a body through `C0` to a handler that must get all of it, and tells how often that ran.
async fn send_body(request: Request<AnyBody>, store: &Faulty) -> (Answer, usize) {
    let runs = Arc::new(AtomicUsize::new(0));
    let service = c0(store.clone()).layer(counting(&runs));
    let answer = send(&service, request).await;
    (answer, runs.load(Ordering::Relaxed))
}

fn counting(
    runs: &Arc<AtomicUsize>,
) -> impl tower::Service<
    Request<RequestBody<AnyBody>>,
    Response = Response<Full<Bytes>>,
    Error = io::Error,
    Future: Send,
> + Clone
+ Send
+ 'static {
    let runs = runs.clone();
    service_fn(move |request: Request<RequestBody<AnyBody>>| {
        runs.fetch_add(1, Ordering::Relaxed);
        async move {
            request.into_body().collect().await?;
            Ok(Response::new(Full::default()))
        }
    })
}

fn assert_too_large((answer, runs): &(Answer, usize), store: &Faulty) {
    assert_eq!(answer.brief(), (413, "refused"));
    let Outcome::Refused(Refusal::BodyTooLarge { limit: LIMIT }) = answer.outcome() else {
        panic!("{:?}", answer.outcome());
    };
    assert_eq!(*runs, 0);
    assert!(store.calls().is_empty());
}

/// R39
#[tokio::test(start_paused = true)]
async fn a_body_declared_too_long_is_refused_unread() {
    let store = Faulty::new();
    let (body, polled) = chunked([Ok(json_of(LIMIT + 1))].into_iter(), Duration::ZERO);
    let request = Request::post("/hooks/x")
        .header("content-length", LIMIT + 1)
        .body(body)
        .unwrap();
    assert_too_large(&send_body(request, &store).await, &store);
    assert_eq!(polled.load(Ordering::Relaxed), 0);

    // Known without a header: HTTP/2, say.
    let body = Full::new(json_of(LIMIT + 1)).map_err(|never| match never {});
    let request = Request::post("/hooks/x")
        .body(UnsyncBoxBody::new(body))
        .unwrap();
    assert_too_large(&send_body(request, &store).await, &store);
}

/// R39
#[tokio::test(start_paused = true)]
async fn a_body_that_turns_out_too_long_is_refused() {
    for chunk in [1_000, 4_096, LIMIT, LIMIT + 1] {
        for length in [None, Some("10"), Some("0"), Some("nonsense")] {
            let store = Faulty::new();
            let body = json_of(LIMIT + 1);
            let chunks: Vec<_> = body.chunks(chunk).map(Bytes::copy_from_slice).collect();
            let (body, _) = chunked(chunks.into_iter().map(Ok), Duration::ZERO);
            let mut request = Request::post("/hooks/x").body(body).unwrap();
            if let Some(length) = length {
                let length = length.parse().unwrap();
                request.headers_mut().insert("content-length", length);
            }
            assert_too_large(&send_body(request, &store).await, &store);
        }
    }
}

/// R39
#[tokio::test(start_paused = true)]
async fn a_body_without_end_is_read_up_to_the_limit() {
    let store = Faulty::new();
    let chunk = Bytes::from(vec![b' '; 1_000]);
    let (body, polled) = chunked(
        std::iter::repeat_with(move || Ok(chunk.clone())),
        Duration::ZERO,
    );
    let request = Request::post("/hooks/x").body(body).unwrap();
    assert_too_large(&send_body(request, &store).await, &store);
    assert_eq!(polled.load(Ordering::Relaxed), LIMIT / 1_000 + 1);
}

/// R39
#[tokio::test(start_paused = true)]
async fn a_body_of_exactly_the_limit_runs() {
    for chunk in [1_000, LIMIT] {
        let body = json_of(LIMIT);
        let chunks: Vec<_> = body.chunks(chunk).map(Bytes::copy_from_slice).collect();
        let (body, _) = chunked(chunks.into_iter().map(Ok), Duration::ZERO);
        let request = Request::post("/hooks/x")
            .header("content-length", LIMIT)
            .body(body)
            .unwrap();
        let (answer, runs) = send_body(request, &Faulty::new()).await;
        assert_eq!((answer.brief(), runs), ((200, "run"), 1));
    }
}

/// R65
#[tokio::test(start_paused = true)]
async fn a_body_that_takes_too_long_is_refused_and_holds_nobody_up() {
    let (store, runs) = (Faulty::new(), Arc::new(AtomicUsize::new(0)));
    let service = c0(store.clone()).layer(counting(&runs));
    let slow = json_of(60)
        .into_iter()
        .map(|byte| Ok(Bytes::from(vec![byte])));
    let (body, _) = chunked(slow, secs(1));
    let begun = Instant::now();
    let slow = send_later(&service, Request::post("/hooks/x").body(body).unwrap());
    sleep(secs(10)).await;
    assert!(store.calls().is_empty());

    let (body, _) = chunked([Ok(json_of(60))].into_iter(), Duration::ZERO);
    let normal = send(&service, Request::post("/hooks/x").body(body).unwrap()).await;
    assert_eq!(normal.brief(), (200, "run"));
    let calls = store.calls().len();

    let slow = slow.await.unwrap();
    assert_eq!(slow.brief(), (408, "refused"));
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert_eq!(store.calls().len(), calls);
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

/// On the real clock: the paused one stands still while there is something to do.
#[tokio::test]
async fn a_body_of_nothing_without_end_is_refused_in_its_time() {
    let data = || Frame::data(Bytes::new());
    let trailers = || Frame::trailers(HeaderMap::new());
    for frame in [data, trailers] {
        let (store, mut frames) = (Faulty::new(), 0_u64);
        let body = StreamBody::new(stream::repeat_with(move || {
            frames += 1;
            assert!(frames < 20_000_000, "nobody looks at the time");
            Ok(frame())
        }));
        let service = c0(store.clone())
            .body_timeout(millis(20))
            .layer(counting(&Arc::default()));
        let request = Request::post("/hooks/x").body(UnsyncBoxBody::new(body));
        let answer = send(&service, request.unwrap()).await;
        assert_eq!(answer.brief(), (408, "refused"));
        assert!(store.calls().is_empty());
    }
}

/// R65
#[tokio::test(start_paused = true)]
async fn half_a_body_is_never_forwarded() {
    let store = Faulty::new();
    let broken = || io::Error::from(io::ErrorKind::ConnectionReset);
    let whole = json_of(60);
    // Even where what came is a body of its own.
    for part in [whole.slice(..30), whole] {
        let (body, _) = chunked([Ok(part), Err(broken())].into_iter(), secs(1));
        let request = Request::post("/hooks/x").body(body).unwrap();
        let (answer, runs) = send_body(request, &store).await;
        assert_eq!(answer.brief(), (400, "refused"));
        let Outcome::Refused(Refusal::BodyBroken) = answer.outcome() else {
            panic!("{:?}", answer.outcome());
        };
        assert_eq!(runs, 0);
    }
    assert!(store.calls().is_empty());
}

/// R50
#[tokio::test(start_paused = true)]
async fn the_memory_store_stays_within_its_cap() {
    let store = MemoryStore::with_capacity(20_000);
    let by = Instant::now();
    for n in 0..200_000 {
        let (key, token) = (Key::new("t", format!("e{n}")), Token::random());
        store.acquire(&key, token, secs(30), by).await.unwrap();
        let release = Release::Failed { status: Some(500) };
        let ended = if n % 2 == 0 {
            let record = Record::new(Some(200), None);
            store.complete(&key, token, &record, secs(3600), by).await
        } else {
            store.release(&key, token, release, secs(3600), by).await
        };
        assert!(ended.unwrap());
        assert!(n % 1_000 > 0 || store.len() <= 20_000);
    }
    assert!(store.len() > 19_000);
}

/// R50: nothing else sweeps.
#[tokio::test(start_paused = true)]
async fn what_ran_out_goes_as_the_memory_store_is_used() {
    const EVENTS: usize = 300;
    let store = MemoryStore::with_capacity(1_000);
    let by = Instant::now();
    let acquire = async |name: &str| {
        for n in 0..EVENTS {
            let (key, token) = (Key::new("t", format!("{name}{n}")), Token::random());
            store.acquire(&key, token, secs(30), by).await.unwrap();
            match n % 3 {
                0 => {
                    let record = Record::new(Some(200), None);
                    let completed = store.complete(&key, token, &record, secs(30), by).await;
                    completed.unwrap();
                }
                1 => {
                    let release = Release::Failed { status: None };
                    let released = store.release(&key, token, release, secs(30), by).await;
                    released.unwrap();
                }
                _ => {}
            }
        }
    };
    acquire("old").await;
    sleep(secs(31)).await;
    acquire("new").await;
    assert_eq!(store.len(), EVENTS);
}

/// R50: through the layer, and with what is done outliving what failed.
#[tokio::test(start_paused = true)]
async fn at_the_cap_failed_events_are_forgotten_first() {
    let store = MemoryStore::with_capacity(1_000);
    let failing = c0(store.clone()).layer(Handler::statuses([500]));
    let working = c0(store.clone()).layer(Handler::ok());
    for n in 0..500 {
        send(&working, post(&format!("done{n}"))).await;
    }
    for n in 0..2_000 {
        let answer = send(&failing, post(&format!("failed{n}"))).await;
        assert_eq!(answer.brief(), (500, "run"));
    }
    assert!(store.len() <= 1_000);
    for n in 0..500 {
        let answer = send(&working, post(&format!("done{n}"))).await;
        assert_eq!(answer.brief(), (200, "duplicate"));
    }
}

/// R50: an event that was only cut off leaves nothing.
#[tokio::test(start_paused = true)]
async fn an_event_that_was_cut_off_takes_no_room() {
    let store = MemoryStore::new();
    let by = Instant::now();
    for n in 0..100 {
        let (key, token) = (Key::new("t", format!("e{n}")), Token::random());
        store.acquire(&key, token, secs(30), by).await.unwrap();
        let released = store.release(&key, token, Release::Abandoned, secs(60), by);
        released.await.unwrap();
    }
    assert!(store.is_empty());
}

/// R50
#[tokio::test(start_paused = true)]
async fn running_events_are_never_displaced_and_beyond_them_the_store_is_full() {
    let store = MemoryStore::with_capacity(10);
    let handler = Handler::first_then(Duration::ZERO, 200, 200);
    let slow = Handler::new(|_| async {
        sleep(secs(60)).await;
        200
    });
    let layer = c0(store.clone());
    let (service, busy) = (layer.layer(handler.clone()), layer.layer(slow.clone()));
    for n in 0..10 {
        send_later(&busy, post(&format!("e{n}")));
    }
    slow.began(10).await;
    let refused = send(&service, post("one more")).await;
    assert_eq!(refused.brief(), (503, "refused"));
    let Outcome::Refused(Refusal::StoreFailed { error, .. }) = refused.outcome() else {
        panic!("{:?}", refused.outcome());
    };
    assert_eq!(error.kind(), StoreErrorKind::OutOfMemory);
    assert_eq!(store.len(), 10);
    slow.has_ended(10).await;
    sleep(millis(1)).await;
    assert_eq!(send(&service, post("one more")).await.brief(), (200, "run"));
    assert_eq!(slow.ended(), 10);
}

/// Standbys, waiters and detached runs share one purse.
#[tokio::test(start_paused = true)]
async fn what_is_held_for_any_reason_counts_against_the_same_bytes() {
    let big = |id: &str| {
        let body = format!(r#"{{"id":"{id}","x":"{}"}}"#, "x".repeat(10_000));
        http_support::post_body(&body)
    };
    let store = Faulty::new();
    let handler = Handler::new(|_| async {
        sleep(secs(20)).await;
        200
    });
    let waiting = InFlight::Wait {
        max: secs(5),
        then: AfterWait::RetryLater,
    };
    let layer = by_id(store.clone()).limits(Limits::default().bytes(25_000));
    let service = layer.clone().layer(handler.clone());
    let waiters = layer.clone().in_flight(waiting).layer(handler.clone());

    let detached = send_later(&service, big("run"));
    handler.began(1).await;
    detached.abort();
    sleep(millis(1)).await;
    for id in ["wait", "stand"] {
        store.hold(&Key::new("t", id), secs(3600)).await;
    }
    let waiter = send_later(&waiters, big("wait"));
    sleep(millis(1)).await;
    let answer = send(&service, big("stand")).await;
    assert_eq!(answer.brief(), (503, "in-flight"));
    let asked = Instant::now();
    assert_eq!(send(&waiters, big("wait")).await.status, 503);
    assert!(asked.elapsed().is_zero(), "no place to wait");

    // And is given back.
    assert_eq!(waiter.await.unwrap().status, 503);
    handler.has_ended(1).await;
    sleep(millis(1)).await;
    for n in 0..2 {
        let id = format!("again{n}");
        store.hold(&Key::new("t", &id), secs(3600)).await;
        assert_eq!(send(&service, big(&id)).await.brief(), (200, "standby"));
    }
}

/// What is kept of a request is not its body alone.
#[tokio::test(start_paused = true)]
async fn a_long_target_and_long_headers_count_against_the_bytes() {
    let store = Faulty::new();
    store.hold(&e1(), secs(3600)).await;
    let service = by_id(store)
        .limits(Limits::default().bytes(10_000))
        .layer(Handler::ok());
    let long = "x".repeat(10_000);
    let mut target = post("e1");
    *target.uri_mut() = format!("/hooks/x?{long}").parse().unwrap();
    let mut headers = post("e1");
    headers.headers_mut().insert("x", long.parse().unwrap());
    for request in [target, headers] {
        assert_eq!(send(&service, request).await.brief(), (503, "in-flight"));
    }
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
}

/// It is kept next to the request, where it is no part of the body.
#[tokio::test(start_paused = true)]
async fn a_long_id_counts_against_the_bytes() {
    let long = "x".repeat(10_000);
    for (bytes, answer) in [(10_000, (503, "in-flight")), (12_000, (200, "standby"))] {
        let store = Faulty::new();
        store.hold(&Key::new("t", &long), secs(3600)).await;
        let id = long.clone();
        let service = WebhookDedupLayer::new(store, EventId::custom(move |_, _| Some(id.clone())))
            .namespace("t")
            .key_by(KeyBy::Id)
            .limits(Limits::default().bytes(bytes))
            .layer(Handler::ok());
        assert_eq!(send(&service, post("e1")).await.brief(), answer);
    }
}

/// More than a `HeaderMap` lets anybody make room for at once.
#[tokio::test(start_paused = true)]
async fn a_request_with_very_many_headers_is_stood_by_for() {
    let store = Faulty::new();
    store.hold(&e1(), secs(2)).await;
    let handler = Handler::ok();
    let service = by_id(store).layer(handler.clone());
    let mut request = post("e1");
    for _ in 0..25_000 {
        request.headers_mut().append("x", "y".parse().unwrap());
    }
    let headers = request.headers().clone();
    assert_eq!(send(&service, request).await.brief(), (200, "standby"));
    handler.has_ended(1).await;
    assert!(handler.seen()[0].headers == headers);
}

/// How long a call takes: not all equally, so that some end while others go on.
fn time(call: &Call) -> Duration {
    millis(if call.n.is_multiple_of(3) { 150 } else { 100 })
}

/// How many of these calls were under way at the same time.
fn at_once(calls: impl Iterator<Item = Call>) -> usize {
    let mut changes: Vec<_> = calls
        .flat_map(|call| [(call.at, 1), (call.at + time(&call), -1)])
        .collect();
    changes.sort_unstable();
    let at_once = changes.iter().scan(0, |at_once, (_, change)| {
        *at_once += change;
        Some(*at_once)
    });
    at_once.max().unwrap_or(0).try_into().unwrap()
}

/// So many leases of one layer's engine.
async fn leases(store: &Faulty, many: usize) -> Vec<Lease<Faulty>> {
    let dedup = Dedup::new(store.clone());
    let mut leases = Vec::new();
    for n in 0..many {
        match dedup.begin(&Key::new("t", n.to_string())).await.unwrap() {
            Begun::Acquired(lease) => leases.push(lease),
            other => panic!("{other:?}"),
        }
    }
    leases
}

#[tokio::test(start_paused = true)]
async fn at_most_64_leases_are_renewed_at_once() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Renew => Fault::Delay(time(call)),
        _ => Fault::None,
    });
    let leases = leases(&store, 300).await;
    sleep(secs(15)).await;
    let renewals = store.of(Operation::Renew);
    assert_eq!((renewals.len(), at_once(renewals.into_iter())), (300, 64));
    assert!(leases.iter().all(|lease| !lease.is_lost()));
}

#[tokio::test(start_paused = true)]
async fn at_most_64_releases_are_sent_at_once() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Release => Fault::Delay(time(call)),
        _ => Fault::None,
    });
    drop(leases(&store, 300).await);
    sleep(secs(5)).await;
    let releases = store.of(Operation::Release);
    assert_eq!((releases.len(), at_once(releases.into_iter())), (300, 64));
    assert_eq!(store.inner.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn at_most_64_pending_completions_are_written_at_once() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Complete if call.n <= 300 => Fault::FULL,
        Operation::Complete => Fault::Delay(time(call)),
        _ => Fault::None,
    });
    let leases = leases(&store, 300).await;
    let completing = leases
        .into_iter()
        .map(|lease| lease.complete(Record::new(None, None)));
    let written = join_all(completing).await;
    assert!(written.iter().all(|written| !written));
    sleep(secs(5)).await;
    let again = store.of(Operation::Complete).split_off(300);
    assert_eq!((again.len(), at_once(again.into_iter())), (300, 64));
}
