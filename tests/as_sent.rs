//! Promise 6: the inner service sees the request as it was sent, and is asked as it wants to be.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version, request::Parts};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::{
    Layer, Service, ServiceExt, buffer::BufferLayer, limit::ConcurrencyLimitLayer,
    load_shed::LoadShedLayer, service_fn,
};
use tower_webhook_dedup::{
    BodyHash, Delivery, EventId, InFlight, Key, MissingId, NoId, Outcome, Refusal, RequestBody,
    Unprotected,
};

use http_support::{
    Events, Handler, Run, by_id, c0, is, millis, post, post_body, secs, send, send_later,
};
use stores::Faulty;

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

type AnyBody = UnsyncBoxBody<Bytes, io::Error>;

fn whole(body: impl Into<Bytes>) -> AnyBody {
    UnsyncBoxBody::new(Full::new(body.into()).map_err(|never| match never {}))
}

fn framed(frames: Vec<Frame<Bytes>>) -> AnyBody {
    let frames = futures_util::stream::iter(frames.into_iter().map(Ok));
    UnsyncBoxBody::new(StreamBody::new(frames))
}

/// A request as a handler got it.
#[derive(Debug)]
struct Got {
    parts: Parts,
    data: Bytes,
    trailers: Option<HeaderMap>,
    buffered: bool,
}

/// An inner service that keeps what it gets.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<Vec<Got>>>);

impl Keeper {
    fn take(&self) -> Vec<Got> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn one(&self) -> Got {
        let mut got = self.take();
        assert_eq!(got.len(), 1);
        got.remove(0)
    }
}

impl<B> Service<Request<RequestBody<B>>> for Keeper
where
    B: Body<Error: std::fmt::Debug> + Send + 'static,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<B>>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let buffered = body.bytes().is_some();
            let body = body.collect().await.unwrap();
            let trailers = body.trailers().cloned();
            let data = body.to_bytes();
            this.0.lock().unwrap().push(Got {
                parts,
                data,
                trailers,
                buffered,
            });
            Ok(Response::new(Full::from("kept")))
        })
    }
}

/// R27: what a signature was made over.
#[tokio::test(start_paused = true)]
async fn the_bytes_of_a_body_come_through_unchanged() {
    let tricky = "{ \"id\" : \"e1\",  \"v\":1.0, \"v\":2, \"s\":\"\\u00e9\\/é\" }\n";
    let bodies: [Vec<u8>; 6] = [
        tricky.into(),
        format!("\u{feff}{tricky}").into(),
        b"\r\n\t {\"id\":12345678901234567890123,\"x\":1e400}".to_vec(),
        b"{\"id\":\"\\u0065\\u0031\"}".to_vec(),
        b"{\"s\":\"\xff\xfe\",\"id\":\"e1\"}".to_vec(),
        b"{\"id\":\"e1\",\"deep\":[[[[{\"id\":\"e2\"}]]]]}\0".to_vec(),
    ];
    let keeper = Keeper::default();
    let service = c0(Faulty::new())
        .missing_id(MissingId::Forward)
        .layer(keeper.clone());
    for body in bodies {
        let request = Request::post("/hooks/x").body(whole(body.clone())).unwrap();
        assert_eq!(send(&service, request).await.status, 200);
        let got = keeper.one();
        assert_eq!(got.data, body);
        if let Some(delivery) = got.parts.extensions.get::<Delivery>() {
            assert_eq!(delivery.body_hash(), BodyHash::of(&body));
        }
    }
}

/// R27: however the body was cut up on its way.
#[tokio::test(start_paused = true)]
async fn a_body_in_many_frames_comes_through_whole() {
    let body = Bytes::from("\u{feff}{ \"id\" : \"e1\", \"s\" : \"é\\u00e9\" }\n");
    for at in 0..=body.len() {
        let keeper = Keeper::default();
        let service = c0(Faulty::new()).layer(keeper.clone());
        let frames = [
            body.slice(..at),
            Bytes::new(),
            body.slice(at..),
            Bytes::new(),
        ];
        let frames = frames.into_iter().map(Frame::data).collect();
        let request = Request::post("/").body(framed(frames)).unwrap();
        assert_eq!(send(&service, request).await.brief(), (200, "run"));
        let got = keeper.one();
        assert_eq!(got.data, body);
        // One frame with data is not copied, whatever is around it.
        let is_whole = [0, body.len()].contains(&at);
        assert_eq!(got.data.as_ptr() == body.as_ptr(), is_whole);
        let delivery = got.parts.extensions.get::<Delivery>().unwrap();
        assert_eq!(delivery.event_id(), "e1");
        assert_eq!(delivery.body_hash(), BodyHash::of(&body));
        // Cut up or not, it is the same event.
        let request = Request::post("/").body(whole(body.clone())).unwrap();
        assert_eq!(send(&service, request).await.brief(), (200, "duplicate"));
    }
}

/// R57: what cannot be read is not ours to judge.
#[tokio::test(start_paused = true)]
async fn a_compressed_body_is_forwarded_as_it_was_sent() {
    let gzip: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xabV\xcaLQ\xb2RJ5T\xaa\x05\0";
    let (keeper, store) = (Keeper::default(), Faulty::new());
    let service = c0(store.clone())
        .missing_id(MissingId::Forward)
        .layer(keeper.clone());
    let request = Request::post("/hooks/x")
        .header("content-encoding", "gzip")
        .body(whole(gzip))
        .unwrap();
    let answer = send(&service, request).await;
    assert_eq!(answer.brief(), (200, "unprotected"));
    let Outcome::Unprotected(Unprotected::NoEventId(NoId::Malformed)) = answer.outcome() else {
        panic!("{:?}", answer.outcome());
    };
    let got = keeper.one();
    assert_eq!(got.data, gzip);
    assert_eq!(got.parts.headers["content-encoding"], "gzip");
    assert!(store.calls().is_empty());
}

#[derive(Clone, Debug, PartialEq)]
struct ConnectInfo(u16);

/// All that a request can carry.
fn laden() -> Request<AnyBody> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    trailers.append("x-sum", HeaderValue::from_static("a"));
    trailers.append("x-sum", HeaderValue::from_static("b"));
    let mut request = Request::post("http://example.com/hooks/x?a=b&a=%20c&d")
        .version(Version::HTTP_2)
        .header("x-twice", "1")
        .header("x-other", "o")
        .header("x-twice", "2")
        .header("x-bytes", HeaderValue::from_bytes(b"\xff\xfe").unwrap())
        .header("content-type", "application/json")
        .extension(ConnectInfo(4711))
        .body(framed(vec![
            Frame::data(Bytes::from(r#"{"id":"e1""#)),
            Frame::data(Bytes::from(r#","n":1}"#)),
            Frame::trailers(trailers),
        ]))
        .unwrap();
    let mut secret = HeaderValue::from_static("s3cret");
    secret.set_sensitive(true);
    request.headers_mut().insert("authorization", secret);
    request
}

fn assert_laden(got: &Got) {
    let expected = laden().into_parts().0;
    let Parts {
        method,
        uri,
        version,
        headers,
        extensions,
        ..
    } = &got.parts;
    assert_eq!(method, expected.method);
    assert_eq!(uri, &expected.uri);
    assert_eq!(*version, Version::HTTP_2);
    assert_eq!(headers, &expected.headers);
    let twice: Vec<_> = headers.get_all("x-twice").iter().collect();
    assert_eq!(twice, ["1", "2"]);
    assert_eq!(headers["x-bytes"].as_bytes(), b"\xff\xfe");
    assert!(headers["authorization"].is_sensitive());
    assert_eq!(extensions.get(), Some(&ConnectInfo(4711)));
    assert_eq!(got.data, r#"{"id":"e1","n":1}"#);
    let trailers = got.trailers.as_ref().unwrap();
    assert_eq!(trailers.len(), 3);
    assert_eq!(trailers["grpc-status"], "0");
}

/// R41
#[tokio::test(start_paused = true)]
async fn every_part_of_a_request_comes_through() {
    let keeper = Keeper::default();
    let service = c0(Faulty::new()).layer(keeper.clone());
    assert_eq!(send(&service, laden()).await.brief(), (200, "run"));
    let got = keeper.one();
    assert_laden(&got);
    assert!(got.buffered);
    assert_eq!(got.parts.extensions.len(), 2, "and the delivery");
}

/// R41 without an id.
#[tokio::test(start_paused = true)]
async fn every_part_of_a_request_without_an_id_comes_through() {
    let keeper = Keeper::default();
    let service = c0(Faulty::new())
        .missing_id(MissingId::Forward)
        .layer(keeper.clone());
    let mut request = laden();
    let absent = &br#"{"no":"e1"}"#[..];
    *request.body_mut() = whole(absent);
    assert_eq!(send(&service, request).await.brief(), (200, "unprotected"));
    let got = keeper.one();
    assert_eq!(got.parts.headers, laden().into_parts().0.headers);
    assert_eq!(got.data, absent);
    assert!(got.parts.extensions.get::<Delivery>().is_none());
}

/// R41, run by a standby.
#[tokio::test(start_paused = true)]
async fn every_part_of_a_request_that_was_stood_by_for_comes_through_each_time() {
    let keeper = Keeper::default();
    let store = Faulty::new();
    let failing = {
        let keeper = keeper.clone();
        service_fn(move |request: Request<RequestBody<AnyBody>>| {
            let kept = keeper.clone().call(request);
            let tries = keeper.0.lock().unwrap().len();
            async move {
                let mut answer = kept.await?;
                if tries < 2 {
                    *answer.status_mut() = 500.try_into().unwrap();
                }
                Ok::<_, Infallible>(answer)
            }
        })
    };
    store.hold(&Key::new("t", "e1"), millis(500)).await;
    let layer = by_id(store);
    let service = layer.layer(failing);
    assert_eq!(send(&service, laden()).await.brief(), (200, "standby"));
    assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    let got = keeper.take();
    assert_eq!(got.len(), 3);
    got.iter().for_each(assert_laden);
}

/// R40
#[tokio::test(start_paused = true)]
async fn what_the_layer_does_not_apply_to_passes_untouched() {
    let store = Faulty::new();
    let handler = Handler::new(|run: Run| async move {
        assert!(run.request.body().bytes().is_none(), "it streams");
        assert!(run.request.extensions().get::<Delivery>().is_none());
        200
    });
    let service = c0(store.clone()).layer(handler.clone());
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT] {
        for _ in 0..2 {
            let mut request = post("e1");
            *request.method_mut() = method.clone();
            *request.uri_mut() = "/hooks/x?hub.challenge=123".parse().unwrap();
            let answer = send(&service, request).await;
            assert_eq!((answer.brief(), answer.headers.len()), ((200, ""), 1));
            assert_eq!(answer.body, "from the handler");
            assert!(answer.extensions.get::<Outcome>().is_none());
        }
    }
    assert_eq!(handler.runs(), 8);
    assert!(store.calls().is_empty());
}

/// R40
#[tokio::test(start_paused = true)]
async fn a_body_that_the_layer_does_not_apply_to_streams_through() {
    let (frames, mut to_come) = mpsc::unbounded_channel::<Bytes>();
    let (seen, mut handler_saw) = mpsc::unbounded_channel::<Bytes>();
    let inner = service_fn(move |request: Request<RequestBody<AnyBody>>| {
        let seen = seen.clone();
        async move {
            let mut body = request.into_body();
            let mut trailers = None;
            while let Some(frame) = body.frame().await {
                match frame.unwrap().into_data() {
                    Ok(data) => seen.send(data).unwrap(),
                    Err(frame) => trailers = frame.into_trailers().ok(),
                }
            }
            let sum = trailers.unwrap()["x-sum"].clone();
            let response = Response::builder().header("x-sum", sum);
            Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).unwrap())
        }
    });
    // Beyond the limit on bodies, too.
    let service = c0(Faulty::new()).max_body(1).layer(inner);
    let stream = futures_util::stream::poll_fn(move |cx| {
        to_come
            .poll_recv(cx)
            .map(|data| data.map(|data| Ok(Frame::data(data))))
    });
    let trailers = HeaderMap::from_iter([(
        http::HeaderName::from_static("x-sum"),
        HeaderValue::from_static("s"),
    )]);
    let end = futures_util::stream::iter([Ok(Frame::trailers(trailers))]);
    let stream = futures_util::StreamExt::chain(stream, end);
    let request = Request::get("/")
        .body(UnsyncBoxBody::new(StreamBody::new(stream)))
        .unwrap();
    let answer = send_later(&service, request);
    for part in ["one", "two", "three"] {
        frames.send(part.into()).unwrap();
        let saw = timeout(secs(60), handler_saw.recv()).await;
        assert_eq!(saw.expect("it streams").unwrap(), part);
    }
    drop(frames);
    assert_eq!(answer.await.unwrap().header("x-sum"), Some("s"));
}

#[tokio::test(start_paused = true)]
async fn what_the_layer_applies_to_is_the_users_choice() {
    let handler = Handler::ok();
    let service = c0(Faulty::new())
        .applies_to(|parts| parts.headers.contains_key("x-event"))
        .layer(handler.clone());
    for brief in [(200, ""), (200, "")] {
        assert_eq!(send(&service, post("e1")).await.brief(), brief);
    }
    for brief in [(200, "run"), (200, "duplicate")] {
        let mut request = post("e1");
        *request.method_mut() = Method::PUT;
        let headers = request.headers_mut();
        headers.insert("x-event", HeaderValue::from_static("1"));
        assert_eq!(send(&service, request).await.brief(), brief);
    }
}

/// R40: a challenge comes without an id.
#[tokio::test(start_paused = true)]
async fn a_verification_challenge_reaches_the_handler_each_time() {
    let handler = Handler::ok();
    let service = c0(Faulty::new())
        .missing_id(MissingId::Forward)
        .layer(handler.clone());
    for _ in 0..2 {
        let challenge = post_body(r#"{"type":"url_verification","challenge":"c"}"#);
        let answer = send(&service, challenge).await;
        assert_eq!(answer.body, "from the handler");
        assert_eq!(answer.brief(), (200, "unprotected"));
    }
    assert_eq!(handler.runs(), 2);
}

const WITHOUT_ID: [&str; 6] = [
    r#"{"n":1}"#,
    r#"{"id":null}"#,
    r#"{"id":""}"#,
    r#"{"id":"  "}"#,
    r#"{"id":{}}"#,
    r#"{"id":[]}"#,
];

/// R6
#[tokio::test(start_paused = true)]
async fn requests_without_an_id_are_refused_by_default_and_share_no_key() {
    let (store, events, handler) = (Faulty::new(), Events::default(), Handler::ok());
    let service = c0(store.clone())
        .on_event(events.hook())
        .layer(handler.clone());
    for body in WITHOUT_ID {
        let answer = send(&service, post_body(body)).await;
        assert_eq!(answer.brief(), (400, "refused"));
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json")
        );
        assert!(answer.body.contains(r#""status":400"#), "{}", answer.body);
        let Outcome::Refused(Refusal::NoEventId(_)) = answer.outcome() else {
            panic!("{:?}", answer.outcome());
        };
    }
    assert_eq!(handler.runs(), 0);
    assert!(store.calls().is_empty());
    assert_eq!(events.count(is!(NoEventId)), 6);
}

/// R6, R29: an array has no `/id` either.
#[tokio::test(start_paused = true)]
async fn requests_without_an_id_are_all_forwarded_where_that_is_asked_for() {
    let (store, events, handler) = (Faulty::new(), Events::default(), Handler::ok());
    let service = c0(store.clone())
        .missing_id(MissingId::Forward)
        .on_event(events.hook())
        .layer(handler.clone());
    let batches = [r#"[{"id":"1"},{"id":"2"}]"#, r#"[{"id":"2"},{"id":"3"}]"#];
    for body in WITHOUT_ID.into_iter().chain(batches) {
        let answer = send(&service, post_body(body)).await;
        assert_eq!(answer.brief(), (200, "unprotected"));
    }
    assert_eq!(handler.bodies()[..6], WITHOUT_ID);
    assert_eq!(handler.runs(), 8);
    assert!(store.calls().is_empty());
    assert_eq!(events.count(is!(NoEventId)), 8);
}

/// R16
#[tokio::test(start_paused = true)]
async fn equal_bodies_without_an_id_run_each_time_unless_the_body_may_stand_for_it() {
    for (policy, runs) in [(MissingId::Forward, 6), (MissingId::UseBodyHash, 2)] {
        let handler = Handler::ok();
        let service = c0(Faulty::new()).missing_id(policy).layer(handler.clone());
        let mut last = None;
        for body in ["", r#"{"event":"ping"}"#] {
            for _ in 0..3 {
                last = Some(send(&service, post_body(body)).await);
            }
        }
        assert_eq!(handler.runs(), runs);
        let last = last.unwrap();
        if policy == MissingId::UseBodyHash {
            assert_eq!(last.brief(), (200, "duplicate"));
            assert_eq!(
                last.body,
                r#"{"status":"success","message":"Duplicate request ignored: its body was seen before."}"#
            );
            let Outcome::Duplicate { by_body: true, .. } = last.outcome() else {
                panic!("{:?}", last.outcome());
            };
        }
    }
}

/// R16: method, path, query and content type count, too.
#[tokio::test(start_paused = true)]
async fn a_body_stands_for_an_id_only_within_the_same_request_line_and_type() {
    let handler = Handler::new(|run: Run| async move {
        assert!(run.delivery().is_by_body());
        200
    });
    let service = c0(Faulty::new())
        .missing_id(MissingId::UseBodyHash)
        .applies_to(|_| true)
        .layer(handler.clone());
    let changes: [fn(&mut Request<Full<Bytes>>); 5] = [
        |_| {},
        |request| *request.method_mut() = Method::PUT,
        |request| *request.uri_mut() = "/hooks/y".parse().unwrap(),
        |request| *request.uri_mut() = "/hooks/x?a".parse().unwrap(),
        |request| {
            let text = HeaderValue::from_static("text/plain");
            request.headers_mut().insert("content-type", text);
        },
    ];
    for change in changes {
        for outcome in ["run", "duplicate"] {
            let mut request = post_body("ping");
            change(&mut request);
            assert_eq!(send(&service, request).await.brief(), (200, outcome));
        }
    }
    assert_eq!(handler.runs(), 5);
}

/// R26 (a): panics when it is called without having been asked first.
struct Probe {
    ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        Self {
            ready: false,
            calls: self.calls.clone(),
        }
    }
}

impl<B> Service<Request<RequestBody<B>>> for Probe {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if !self.ready {
            self.ready = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<RequestBody<B>>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called unready");
        self.calls.fetch_add(1, Ordering::Relaxed);
        ready(Ok(Response::default()))
    }
}

fn probe() -> Probe {
    Probe {
        ready: false,
        calls: Arc::default(),
    }
}

/// R26 (a)
#[tokio::test(start_paused = true)]
async fn the_inner_service_is_called_only_after_it_said_that_it_is_ready() {
    let probe = probe();
    let store = Faulty::new();
    store.hold(&Key::new("t", "standby"), secs(2)).await;
    let layer = by_id(store).missing_id(MissingId::Forward);
    let mut service = layer.layer(probe.clone());
    for n in 0..20 {
        let request = match n % 4 {
            0 => post_body("{}"),
            1 => Request::get("/").body(Full::default()).unwrap(),
            _ => post(&format!("e{n}")),
        };
        let ready = ServiceExt::<Request<Full<Bytes>>>::ready(&mut service)
            .await
            .unwrap();
        ready.call(request).await.unwrap();
    }
    send(&service, post("standby")).await;
    let twins = [service.clone(), service.clone()].map(|twin| send_later(&twin, post("twin")));
    for twin in twins {
        twin.await.unwrap();
    }
    assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    assert_eq!(probe.calls.load(Ordering::Relaxed), 20 + 1 + 1);
}

/// R26 (b)
#[tokio::test(start_paused = true)]
async fn a_concurrency_limit_inside_holds_and_duplicates_do_not_wait_for_it() {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = Handler::new({
        let (running, most) = (running.clone(), most.clone());
        move |_| {
            let (running, most) = (running.clone(), most.clone());
            async move {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                sleep(secs(1)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                200
            }
        }
    });
    let service = c0(Faulty::new())
        .in_flight(InFlight::RetryLater)
        .layer(ConcurrencyLimitLayer::new(1).layer(handler.clone()));
    let mut answers = JoinSet::new();
    for n in 0..20 {
        answers.spawn(send(&service, post(&format!("e{n}"))));
    }
    handler.began(2).await;
    sleep(millis(1)).await;
    let asked = tokio::time::Instant::now();
    let bodies = handler.bodies();
    let [done, runs] = [0, 1].map(|n| send(&service, post_body(&bodies[n])));
    assert_eq!(done.await.brief(), (200, "duplicate"));
    assert_eq!(runs.await.brief(), (503, "in-flight"));
    assert!(asked.elapsed().is_zero());
    let answers = answers.join_all().await;
    assert!(answers.iter().all(|it| it.brief() == (200, "run")));
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

/// R26 (c)
#[tokio::test(start_paused = true)]
async fn a_buffer_of_one_inside_serves_all() {
    let handler = Handler::ok();
    let service = c0(Faulty::new()).layer(BufferLayer::new(1).layer(handler.clone()));
    let mut answers = JoinSet::new();
    for n in 0..20 {
        answers.spawn(send(&service, post(&format!("e{n}"))));
    }
    let answers = answers.join_all().await;
    assert!(answers.iter().all(|it| it.brief() == (200, "run")));
    assert_eq!(handler.runs(), 20);
}

/// Ready for nothing until told otherwise.
#[derive(Clone)]
struct Unready(Arc<AtomicBool>);

#[derive(Debug, PartialEq)]
struct NotReady;

impl<B> Service<Request<RequestBody<B>>> for Unready {
    type Response = Response<Full<Bytes>>;
    type Error = NotReady;
    type Future = Ready<Result<Self::Response, NotReady>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), NotReady>> {
        Poll::Ready(if self.0.load(Ordering::SeqCst) {
            Ok(())
        } else {
            Err(NotReady)
        })
    }

    fn call(&mut self, _: Request<RequestBody<B>>) -> Self::Future {
        ready(Ok(Response::default()))
    }
}

/// R26
#[tokio::test(start_paused = true)]
async fn an_error_of_readiness_comes_out_of_the_future_and_the_event_stays_runnable() {
    let inner = Unready(Arc::default());
    let mut service = c0(Faulty::new()).layer(inner.clone());
    let ready = ServiceExt::<Request<Full<Bytes>>>::ready(&mut service).await;
    assert!(ready.is_ok());
    let error: NotReady = service.call(post("e1")).await.unwrap_err();
    assert_eq!(error, NotReady);
    inner.0.store(true, Ordering::SeqCst);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

/// R26: a full inner service that sheds its load.
#[tokio::test(start_paused = true)]
async fn load_that_is_shed_inside_is_a_failed_run() {
    let handler = Handler::first_then(secs(1), 200, 200);
    let inner = LoadShedLayer::new().layer(ConcurrencyLimitLayer::new(1).layer(handler.clone()));
    let service = c0(Faulty::new()).layer(inner);
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    let shed = service.clone().oneshot(post("e2")).await.unwrap_err();
    assert!(shed.is::<tower::load_shed::error::Overloaded>());
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    assert_eq!(send(&service, post("e2")).await.brief(), (200, "run"));
}

/// The inner answer, too, comes out as it went in.
#[tokio::test(start_paused = true)]
async fn the_inner_answer_comes_out_with_its_trailers() {
    let service =
        c0(Faulty::new()).layer(service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
            let trailers = HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                HeaderValue::from_static("7"),
            )]);
            let body = framed(vec![
                Frame::data(Bytes::from("one")),
                Frame::data(Bytes::from("two")),
                Frame::trailers(trailers),
            ]);
            Ok::<_, Infallible>(Response::new(body))
        }));
    let answer = service.oneshot(post("e1")).await.unwrap();
    assert_eq!(answer.headers()["webhook-dedup"], "run");
    let body = answer.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "7");
    assert_eq!(body.to_bytes(), "onetwo");
}

/// Ids from elsewhere than the body leave it alone, whatever it is.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_json_comes_through_where_the_id_is_in_a_header() {
    let keeper = Keeper::default();
    let service =
        tower_webhook_dedup::WebhookDedupLayer::new(Faulty::new(), EventId::header("x-delivery"))
            .layer(keeper.clone());
    for outcome in ["run", "duplicate"] {
        let request = Request::post("/")
            .header("x-delivery", "d1")
            .body(whole(&b"\x00\xffnot json"[..]))
            .unwrap();
        assert_eq!(send(&service, request).await.brief(), (200, outcome));
    }
    assert_eq!(keeper.one().data, &b"\x00\xffnot json"[..]);
}
