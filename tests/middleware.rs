//! The layer among the middleware of tower and tower-http: whatever is above and below, an event runs
//! once, and its answer comes out.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::CONTENT_ENCODING};
use http_body_util::Full;
use tokio::{sync::mpsc::unbounded_channel, task_local, time::sleep};
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt,
    balance::p2c::Balance,
    buffer::Buffer,
    discover::ServiceList,
    load::Constant,
    retry::{Policy, RetryLayer},
    service_fn,
    spawn_ready::SpawnReadyLayer,
    util::MapRequestLayer,
};
use tower_http::{
    catch_panic::CatchPanicLayer, compression::CompressionLayer, decompression::DecompressionLayer,
    limit::RequestBodyLimitLayer, normalize_path::NormalizePathLayer, timeout::TimeoutLayer,
    trace::TraceLayer,
};
use tower_webhook_dedup::{Duplicate, RequestBody};

use echo::{answer, echo, layer, outcome, text};

#[path = "support/echo.rs"]
mod echo;
#[path = "support/front.rs"]
mod front;

/// Long enough to be worth compressing.
const EVENT: &str = r#"{"id":"e1","text":"one two three four five six seven eight nine ten"}"#;

fn delivery() -> Request<Full<Bytes>> {
    Request::post("/hook").body(Full::from(EVENT)).unwrap()
}

fn timeout() -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_secs(60))
}

#[tokio::test(start_paused = true)]
async fn the_layer_goes_below_the_middleware_of_tower_http() {
    let service = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(CatchPanicLayer::new())
        .layer(RequestBodyLimitLayer::new(1000))
        .layer(CompressionLayer::new())
        .layer(NormalizePathLayer::trim_trailing_slash())
        .layer(timeout())
        .layer(layer())
        .service(echo());
    let first = service.clone().oneshot(delivery()).await.unwrap();
    assert_eq!(outcome(&first), "run");
    assert_eq!(text(first).await, EVENT);
    let mut second = delivery();
    *second.uri_mut() = "/hook/".parse().unwrap();
    second
        .headers_mut()
        .insert("accept-encoding", "gzip".parse().unwrap());
    let second = service.oneshot(second).await.unwrap();
    assert_eq!(outcome(&second), "duplicate");
    assert_eq!(second.headers()[CONTENT_ENCODING], "gzip");
}

#[tokio::test(start_paused = true)]
async fn the_layer_goes_above_the_middleware_of_tower_http() {
    let service = ServiceBuilder::new()
        .layer(layer().duplicate(Duplicate::Replay { max_body: 1000 }))
        .layer(TraceLayer::new_for_http())
        .layer(CatchPanicLayer::new())
        .layer(RequestBodyLimitLayer::new(1000))
        .layer(CompressionLayer::new())
        .layer(DecompressionLayer::new())
        .layer(NormalizePathLayer::trim_trailing_slash())
        .layer(timeout())
        .service(echo());
    for expected in ["run", "duplicate"] {
        let answer = service.clone().oneshot(delivery()).await.unwrap();
        assert_eq!(outcome(&answer), expected);
        // The answer of the run each time, as far as it has a length.
        assert_eq!(text(answer).await, EVENT);
    }
}

/// Tries again, up to so many times, what was not answered with success.
#[derive(Clone)]
struct Again(usize);

impl<B: Clone, R, E> Policy<Request<B>, Response<R>, E> for Again {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut Request<B>,
        answer: &mut Result<Response<R>, E>,
    ) -> Option<Ready<()>> {
        let failed = !answer.as_ref().is_ok_and(|it| it.status().is_success());
        self.0 = self.0.checked_sub(1).filter(|_| failed)?;
        Some(ready(()))
    }

    fn clone_request(&mut self, request: &Request<B>) -> Option<Request<B>> {
        Some(request.clone())
    }
}

/// Fails twice, and counts.
fn failing<B: Send + 'static>(
    runs: &Arc<AtomicUsize>,
) -> impl Service<Request<B>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ use<B> {
    let runs = runs.clone();
    service_fn(move |_: Request<B>| {
        let mut answer = Response::new(Full::default());
        if runs.fetch_add(1, Ordering::SeqCst) < 2 {
            *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        }
        ready(Ok(answer))
    })
}

#[tokio::test(start_paused = true)]
async fn retries_below_are_one_run_and_retries_above_are_one_each() {
    let runs = Arc::new(AtomicUsize::new(0));
    let below = ServiceBuilder::new()
        .layer(layer())
        .layer(MapRequestLayer::new(
            |request: Request<RequestBody<Full<Bytes>>>| {
                request.map(|body| Full::new(body.bytes().unwrap().clone()))
            },
        ))
        .layer(RetryLayer::new(Again(5)))
        .service(failing(&runs));
    let answer = below.clone().oneshot(delivery()).await.unwrap();
    assert_eq!((answer.status(), outcome(&answer)), (StatusCode::OK, "run"));
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    let answer = below.oneshot(delivery()).await.unwrap();
    assert_eq!(outcome(&answer), "duplicate");

    let runs = Arc::new(AtomicUsize::new(0));
    let above = RetryLayer::new(Again(5)).layer(layer().layer(failing(&runs)));
    for expected in ["run", "duplicate"] {
        let answer = above.clone().oneshot(delivery()).await.unwrap();
        assert_eq!(outcome(&answer), expected);
        assert_eq!(runs.load(Ordering::SeqCst), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn the_layer_goes_between_buffers_over_a_balance_of_services() {
    let runs = Arc::new(AtomicUsize::new(0));
    let one = || {
        let runs = runs.clone();
        SpawnReadyLayer::new().layer(service_fn(move |request: Request<RequestBody<_>>| {
            runs.fetch_add(1, Ordering::SeqCst);
            answer::<_, BoxError>(request)
        }))
    };
    let services = ServiceList::new([1, 1].map(|load| Constant::new(one(), load)));
    let inner = Buffer::new(Balance::new(services), 2);
    let service = Buffer::new(layer().layer(inner), 2);
    for expected in ["run", "duplicate"] {
        for n in 0..20 {
            let request = Request::post("/hook").body(format!(r#"{{"id":"e{n}"}}"#));
            let answer = service.clone().oneshot(request.unwrap()).await.unwrap();
            assert_eq!(outcome(&answer), expected);
        }
    }
    assert_eq!(runs.load(Ordering::SeqCst), 20);
}

task_local! {
    static TENANT: &'static str;
}

/// What a layer outside puts around the future of a request is not around what is left of it, once
/// its sender has hung up.
#[tokio::test(start_paused = true)]
async fn task_locals_from_outside_are_not_there_in_a_run_without_its_sender() {
    let (tell, mut told) = unbounded_channel();
    let handler = service_fn(move |_: Request<RequestBody<Full<Bytes>>>| {
        let tell = tell.clone();
        async move {
            tell.send(TENANT.try_with(|it| *it).ok()).unwrap();
            sleep(Duration::from_secs(1)).await;
            tell.send(TENANT.try_with(|it| *it).ok()).unwrap();
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }
    });
    let layer = layer();
    let request = TENANT.scope("a", layer.layer(handler).oneshot(delivery()));
    tokio::select! {
        _ = request => panic!("it takes long"),
        inside = told.recv() => assert_eq!(inside, Some(Some("a"))),
    }
    assert_eq!(told.recv().await, Some(None));
    let drained = layer.drain_handle().drain(Duration::from_secs(60)).await;
    assert!(drained.is_complete());
}
