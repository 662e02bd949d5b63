//! The layer fits wherever tower layers go.

use std::{
    cell::Cell,
    collections::VecDeque,
    convert::Infallible,
    fmt::Debug,
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    BoxError, Extension, Router,
    error_handling::HandleErrorLayer,
    middleware::{Next, from_fn},
    routing::post,
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures_util::stream;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::MapRequestLayer};
use tower_http::{decompression::RequestDecompressionLayer, map_request_body::MapRequestBodyLayer};
use tower_webhook_dedup::{
    Acquire, AfterWait, Begun, BodyHash, BoxStore, Dedup, DedupEvent, Delivery, DrainHandle,
    Drained, Duplicate, Entry, Error, EventId, InFlight, JsonPointer, Key, KeyBy, Lease, Limits,
    Lost, MissingId, NoId, OnDisconnect, Outcome, Preset, Ran, Record, Refusal, Release,
    RequestBody, ResponseBody, ResponseFuture, StoreFailure, Token, Unprotected, WebhookDedup,
    WebhookDedupLayer,
};

use echo::{DUPLICATE, EVENT, echo, layer, outcome, text};
use front::MemoryStore;

#[path = "support/echo.rs"]
mod echo;
#[path = "support/front.rs"]
mod front;

fn delivery<B>(body: B) -> Request<B> {
    Request::post("/hook").body(body).unwrap()
}

/// One delivery that runs and one that does not, through any service.
async fn runs_once<S, B, R, E>(service: S, body: impl Fn() -> B)
where
    S: Service<Request<B>, Response = Response<R>, Error = E> + Clone,
    R: Body<Error: Debug>,
    E: Debug,
{
    let first = service.clone().oneshot(delivery(body())).await.unwrap();
    assert_eq!(outcome(&first), "run");
    assert_eq!(text(first).await, EVENT);
    let second = service.oneshot(delivery(body())).await.unwrap();
    assert_eq!(outcome(&second), "duplicate");
    assert_eq!(text(second).await, DUPLICATE);
}

#[test]
fn public_types_can_be_shared_cloned_and_printed() {
    fn all<T: Send + Sync + Clone + Debug + 'static>() {}
    fn send<T: Send + Debug>() {}
    fn shared<T: Send + Sync + Debug>() {}

    all::<WebhookDedupLayer<MemoryStore>>();
    all::<WebhookDedupLayer<BoxStore>>();
    all::<WebhookDedup<(), MemoryStore>>();
    all::<Dedup<MemoryStore>>();
    all::<DrainHandle>();
    all::<MemoryStore>();
    all::<BoxStore>();
    all::<Preset>();
    all::<EventId>();
    all::<JsonPointer>();
    all::<NoId>();
    all::<Key>();
    all::<BodyHash>();
    all::<Token>();
    all::<Entry>();
    all::<Record>();
    all::<Acquire>();
    all::<Release>();
    all::<Limits>();
    all::<KeyBy>();
    all::<MissingId>();
    all::<InFlight>();
    all::<AfterWait>();
    all::<Duplicate>();
    all::<StoreFailure>();
    all::<OnDisconnect>();
    all::<Delivery>();
    all::<Outcome>();
    all::<Unprotected>();
    all::<Refusal>();
    all::<DedupEvent>();
    all::<Lost>();
    all::<Error>();
    all::<Ran<()>>();
    shared::<Drained>();
    shared::<Lease<MemoryStore>>();
    shared::<Begun<MemoryStore>>();
    shared::<RequestBody<Full<Bytes>>>();
    shared::<ResponseBody<Full<Bytes>>>();
    send::<RequestBody<axum::body::Body>>();
    send::<ResponseBody<axum::body::Body>>();
    send::<ResponseFuture<Result<Response<ResponseBody<axum::body::Body>>, Infallible>>>();
}

// R67: the error type stays the inner one.

async fn axum_echo(delivery: Extension<Delivery>, body: Bytes) -> Bytes {
    assert_eq!(delivery.event_id(), "e1");
    body
}

#[tokio::test(start_paused = true)]
async fn the_layer_goes_on_a_router() {
    let app = Router::new().route("/hook", post(axum_echo)).layer(layer());
    runs_once(app, || axum::body::Body::from(EVENT)).await;
}

#[tokio::test(start_paused = true)]
async fn the_layer_goes_on_one_method_route() {
    let route = post(axum_echo).layer(layer()).get(|| async { "alive" });
    let app = Router::new().route("/hook", route);
    runs_once(app.clone(), || axum::body::Body::from(EVENT)).await;
    let probe = Request::get("/hook").body(axum::body::Body::empty());
    let answer = app.oneshot(probe.unwrap()).await.unwrap();
    assert_eq!(text(answer).await, "alive");
}

#[tokio::test(start_paused = true)]
async fn the_layer_goes_on_a_nested_router_and_a_route_layer() {
    let hooks = Router::new()
        .route("/hook", post(axum_echo))
        .route_layer(layer().namespace("hooks"));
    let app = Router::new().nest("/v1", hooks);
    let request = || {
        let body = axum::body::Body::from(EVENT);
        Request::post("/v1/hook").body(body).unwrap()
    };
    let first = app.clone().oneshot(request()).await.unwrap();
    assert_eq!(outcome(&first), "run");
    let second = app.oneshot(request()).await.unwrap();
    assert_eq!(outcome(&second), "duplicate");
}

async fn timed_out(_: BoxError) -> StatusCode {
    StatusCode::GATEWAY_TIMEOUT
}

#[tokio::test(start_paused = true)]
async fn the_layer_goes_under_a_timeout_and_an_error_handler() {
    let stack = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(timed_out))
        .timeout(Duration::from_secs(1))
        .layer(layer());
    let app = Router::new().route("/hook", post(axum_echo)).layer(stack);
    runs_once(app, || axum::body::Body::from(EVENT)).await;
}

#[tokio::test(start_paused = true)]
async fn a_timeout_under_the_layer_leaves_the_event_runnable() {
    let hangs = Arc::new(AtomicUsize::new(1));
    let hanging = hangs.clone();
    let handler = move |body: Bytes| async move {
        if hanging.fetch_sub(1, Ordering::SeqCst) == 1 {
            std::future::pending::<()>().await;
        }
        body
    };
    let stack = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(timed_out))
        .layer(layer())
        .timeout(Duration::from_secs(1));
    let app = Router::new().route("/hook", post(handler)).layer(stack);
    let request = || delivery(axum::body::Body::from(EVENT));
    let first = app.clone().oneshot(request()).await.unwrap();
    // It is the error handler's answer, outside the layer.
    assert_eq!(first.status(), StatusCode::GATEWAY_TIMEOUT);
    assert!(!first.headers().contains_key("webhook-dedup"));
    let second = app.clone().oneshot(request()).await.unwrap();
    assert_eq!(outcome(&second), "run");
    let third = app.oneshot(request()).await.unwrap();
    assert_eq!(outcome(&third), "duplicate");
}

/// An error that is nothing else.
struct Odd(Cell<u32>);

#[tokio::test(start_paused = true)]
async fn an_error_of_the_inner_service_comes_out_as_it_is() {
    let failing = service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Err::<Response<Full<Bytes>>, _>(Odd(Cell::new(7)))
    });
    let service = layer().layer(failing);
    for _ in 0..2 {
        let request = delivery(Full::from(EVENT));
        let Err(Odd(cell)) = service.clone().oneshot(request).await else {
            panic!("an answer");
        };
        assert_eq!(cell.get(), 7);
    }
    // Refusals are answers all the same.
    let request = delivery(Full::from("{}"));
    let Ok(refused) = service.oneshot(request).await else {
        panic!("an error");
    };
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
}

// R68: any body, on both sides.

#[tokio::test(start_paused = true)]
async fn bodies_of_any_kind_go_through() {
    runs_once(layer().layer(echo()), || Full::<Bytes>::from(EVENT)).await;
    runs_once(layer().layer(echo()), || EVENT.to_owned()).await;
    runs_once(layer().layer(echo()), || axum::body::Body::from(EVENT)).await;
    runs_once(layer().layer(echo()), || {
        tonic::body::Body::new(Full::<Bytes>::from(EVENT))
    })
    .await;
    runs_once(layer().layer(echo()), || {
        Full::<Bytes>::from(EVENT).boxed_unsync()
    })
    .await;
    runs_once(layer().layer(echo()), || Full::<Bytes>::from(EVENT).boxed()).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_whose_data_is_not_bytes_goes_through() {
    // A ring that wraps around: its bytes are in two places.
    let ring = |text: &str| {
        let mut ring: VecDeque<u8> = VecDeque::with_capacity(text.len());
        ring.extend(vec![0; ring.capacity() / 2]);
        while ring.pop_front().is_some() {}
        ring.extend(text.bytes());
        assert!(!ring.as_slices().1.is_empty());
        ring
    };
    runs_once(layer().layer(echo()), || Full::new(ring(EVENT))).await;
    runs_once(layer().layer(echo()), || {
        let (head, tail) = EVENT.split_at(5);
        let frames = [ring(head), VecDeque::new(), ring(tail)].map(Frame::data);
        StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)))
    })
    .await;

    // Streaming, too.
    let get = Request::get("/hook").body(Full::new(ring(EVENT))).unwrap();
    let answer = layer().layer(echo()).oneshot(get).await.unwrap();
    assert_eq!(text(answer).await, EVENT);
}

#[tokio::test(start_paused = true)]
async fn trailers_of_a_request_reach_the_handler() {
    let handler = service_fn(|request: Request<RequestBody<_>>| async move {
        let collected = request.into_body().collect().await.unwrap();
        let trailers: HeaderMap = collected.trailers().cloned().unwrap();
        let body = collected.to_bytes();
        let mut response = Response::new(Full::new(body));
        *response.headers_mut() = trailers;
        Ok::<_, Infallible>(response)
    });
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", "abc".parse().unwrap());
    let frames = [Frame::data(Bytes::from(EVENT)), Frame::trailers(trailers)];
    let body = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
    let answer = layer()
        .layer(handler)
        .oneshot(delivery(body))
        .await
        .unwrap();
    assert_eq!(answer.headers()["x-checksum"], "abc");
    assert_eq!(text(answer).await, EVENT);
}

#[tokio::test(start_paused = true)]
async fn an_answer_whose_body_is_not_sync_goes_through() {
    let service = service_fn(|request: Request<RequestBody<Full<Bytes>>>| async move {
        let body = request.into_body().bytes().cloned().unwrap();
        // A `Cell` can be sent and not shared.
        let once = Cell::new(Some(body));
        let frames =
            std::iter::from_fn(move || Some(Ok::<_, Infallible>(Frame::data(once.take()?))));
        let body = StreamBody::new(stream::iter(frames));
        Ok::<_, Infallible>(Response::new(body))
    });
    runs_once(layer().layer(service), || Full::from(EVENT)).await;

    let tonic = service_fn(
        |request: Request<RequestBody<tonic::body::Body>>| async move {
            let body = tonic::body::Body::new(request.into_body());
            Ok::<_, Infallible>(Response::new(body))
        },
    );
    runs_once(layer().layer(tonic), || {
        tonic::body::Body::new(Full::<Bytes>::from(EVENT))
    })
    .await;
}

async fn pass(request: axum::extract::Request, next: Next) -> axum::response::Response {
    let mut response = next.run(request).await;
    response
        .headers_mut()
        .insert("x-passed", "yes".parse().unwrap());
    response
}

#[tokio::test(start_paused = true)]
async fn the_layer_goes_under_and_over_a_middleware_function() {
    let route = || Router::new().route("/hook", post(axum_echo));
    let body = || axum::body::Body::from(EVENT);

    let under = ServiceBuilder::new().layer(from_fn(pass)).layer(layer());
    runs_once(route().layer(under), body).await;

    let over = ServiceBuilder::new()
        .layer(layer())
        .layer(MapRequestBodyLayer::new(axum::body::Body::new))
        .layer(from_fn(pass));
    runs_once(route().layer(over), body).await;

    // In two calls of `Router::layer`, nothing is needed between.
    let over = route().layer(from_fn(pass)).layer(layer());
    runs_once(over.clone(), body).await;
    let duplicate = over.oneshot(delivery(body())).await.unwrap();
    assert!(!duplicate.headers().contains_key("x-passed"));
}

// R57: compressed bodies.

fn gzip(body: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap().into()
}

fn gzipped(body: Bytes) -> Request<Full<Bytes>> {
    let mut request = delivery(Full::new(body));
    let headers = request.headers_mut();
    headers.insert("content-encoding", "gzip".parse().unwrap());
    request
}

#[tokio::test(start_paused = true)]
async fn a_compressed_body_alone_has_no_id_and_is_forwarded_untouched() {
    let refusing = layer().layer(echo());
    let refused = refusing.oneshot(gzipped(gzip(EVENT.as_bytes()))).await;
    assert_eq!(refused.unwrap().status(), StatusCode::BAD_REQUEST);

    let handler = service_fn(|request: Request<RequestBody<Full<Bytes>>>| async move {
        assert_eq!(request.headers()["content-encoding"], "gzip");
        let body = request.into_body().bytes().cloned().unwrap();
        Ok::<_, Infallible>(Response::new(Full::new(body)))
    });
    let forwarding = layer().missing_id(MissingId::Forward).layer(handler);
    let compressed = gzip(EVENT.as_bytes());
    let answer = forwarding.oneshot(gzipped(compressed.clone())).await;
    let answer = answer.unwrap();
    assert_eq!(outcome(&answer), "unprotected");
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, compressed);
}

#[tokio::test(start_paused = true)]
async fn under_a_decompressing_layer_compressed_events_are_told_apart() {
    let service = ServiceBuilder::new()
        .layer(RequestDecompressionLayer::new())
        .layer(layer())
        .service(echo());
    let first = service.clone().oneshot(gzipped(gzip(EVENT.as_bytes())));
    let first = first.await.unwrap();
    assert_eq!(outcome(&first), "run");
    assert_eq!(text(first).await, EVENT);
    // It is the event that counts, not how it was packed.
    let second = service.clone().oneshot(delivery(Full::from(EVENT)));
    assert_eq!(outcome(&second.await.unwrap()), "duplicate");

    // What breaks off inside is refused.
    let packed = gzip(EVENT.replace("e1", "e2").as_bytes());
    let cut = gzipped(packed.slice(..packed.len() - 12));
    let answer = service.oneshot(cut).await.unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn a_bomb_under_a_decompressing_layer_is_too_large() {
    let service = ServiceBuilder::new()
        .layer(RequestDecompressionLayer::new())
        .layer(layer())
        .service(echo());
    let bomb = gzip(&vec![0; 10_000_000]);
    assert!(bomb.len() < 20_000);
    let answer = service.oneshot(gzipped(bomb)).await.unwrap();
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

// R24
#[tokio::test(start_paused = true)]
async fn another_body_under_the_same_id_is_a_duplicate_only_by_id() {
    let first = r#"{"id":"e1","createdAt":"10:00","attempt":1}"#;
    let second = r#"{"id":"e1","createdAt":"10:05","attempt":2}"#;
    for (key_by, expected) in [(KeyBy::Id, "duplicate"), (KeyBy::IdAndBody, "run")] {
        let service = layer().key_by(key_by).layer(echo());
        let answer = service.clone().oneshot(delivery(first.to_owned())).await;
        assert_eq!(outcome(&answer.unwrap()), "run");
        let answer = service.oneshot(delivery(second.to_owned())).await.unwrap();
        assert_eq!(outcome(&answer), expected);
        if let Some(Outcome::Duplicate { record, .. }) = answer.extensions().get() {
            // Which body was handled can be told.
            let handled = BodyHash::of(first.as_bytes());
            assert_eq!(record.body_hash(), Some(handled));
            assert_eq!(record.status(), Some(200));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stack_may_change_the_request_on_its_way_in() {
    let service = ServiceBuilder::new()
        .layer(MapRequestLayer::new(|mut request: Request<String>| {
            *request.method_mut() = http::Method::POST;
            request
        }))
        .layer(layer())
        .service(echo());
    let put = || Request::put("/hook").body(EVENT.to_owned()).unwrap();
    let first = service.clone().oneshot(put()).await.unwrap();
    assert_eq!(outcome(&first), "run");
    let second = service.oneshot(put()).await.unwrap();
    assert_eq!(outcome(&second), "duplicate");
}
