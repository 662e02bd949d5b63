//! How much of a body is read, and for how long.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use tokio::time::{Instant, sleep};
use tower::{Layer, service_fn};
use tower_webhook_dedup::{Outcome, Refusal, RequestBody};

use crate::{
    http_support::{Answer, c0, millis, secs, send, send_later},
    stores::Faulty,
};

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
