//! Duplicates get the handler's own answer, where that is set, and no more of it than is theirs.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Ready, ready},
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::time::sleep;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_webhook_dedup::{
    AfterWait, Duplicate, Entry, InFlight, LeaseStore, Limits, Operation, Outcome, Record,
    RequestBody, WebhookDedupLayer,
};

use http_support::{Answer, by_id, e1, post, post_body, secs, send, send_later};
use stores::{Fault, Faulty, MemoryStore, cached};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

const MOST: usize = 1024;
const TWIML: &str = "<Response><Message>Thanks!</Message></Response>";
const PLAIN: &str = r#"{"status":"success","message":"Duplicate request ignored."}"#;

fn replaying<St: LeaseStore>(store: St) -> WebhookDedupLayer<St> {
    by_id(store)
        .lease(secs(3600))
        .duplicate(Duplicate::Replay { max_body: MOST })
}

/// A handler that makes each answer so, and counts them.
#[derive(Clone)]
struct Answering<F> {
    make: F,
    runs: Arc<AtomicUsize>,
}

fn answering<F, R>(make: F) -> Answering<F>
where
    F: Fn(usize) -> Response<R>,
{
    let runs = Arc::default();
    Answering { make, runs }
}

impl<F> Answering<F> {
    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

impl<F, R> Service<Request<RequestBody<Full<Bytes>>>> for Answering<F>
where
    F: Fn(usize) -> Response<R>,
{
    type Response = Response<R>;
    type Error = Infallible;
    type Future = Ready<Result<Response<R>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<RequestBody<Full<Bytes>>>) -> Self::Future {
        let run = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        ready(Ok((self.make)(run)))
    }
}

/// Which run it was stands in the answer.
fn twiml(run: usize) -> Response<Full<Bytes>> {
    Response::builder()
        .status(201)
        .header("content-type", "text/xml")
        .header("x-run", run)
        .body(Full::from(TWIML))
        .unwrap()
}

async fn record<St: LeaseStore>(layer: &WebhookDedupLayer<St>) -> Record {
    match layer.dedup().inspect(&e1()).await.unwrap() {
        Some(Entry::Done { record, .. }) => record,
        other => panic!("not done: {other:?}"),
    }
}

#[track_caller]
fn assert_replayed(answer: &Answer) {
    assert_eq!(answer.brief(), (201, "duplicate"));
    assert_eq!(answer.header("content-type"), Some("text/xml"));
    assert_eq!(answer.header("x-run"), Some("1"));
    assert_eq!(answer.body, TWIML);
    assert!(matches!(answer.outcome(), Outcome::Duplicate { .. }));
}

#[track_caller]
fn assert_plain(answer: &Answer) {
    assert_eq!(answer.brief(), (200, "duplicate"));
    assert_eq!(answer.body, PLAIN);
    assert_eq!(answer.header("x-run"), None);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_gets_the_answer_of_the_run() {
    let handler = answering(twiml);
    let layer = replaying(MemoryStore::new());
    let service = layer.layer(handler.clone());
    let first = send(&service, post("e1")).await;
    assert_eq!((first.brief(), &*first.body), ((201, "run"), TWIML));
    for _ in 0..3 {
        assert_replayed(&send(&service, post("e1")).await);
    }
    assert_eq!(handler.runs(), 1);
    let record = record(&layer).await;
    let answer = record.answer().unwrap();
    assert_eq!((record.status(), answer.body()), (Some(201), &TWIML.into()));
    assert_eq!(answer.headers().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_stored_unless_it_is_set() {
    for duplicate in [
        Duplicate::Acknowledge,
        Duplicate::Reply(Response::new("[accepted]".into())),
    ] {
        let layer = replaying(MemoryStore::new()).duplicate(duplicate);
        let service = layer.layer(answering(twiml));
        assert_eq!(send(&service, post("e1")).await.status, 201);
        assert!(record(&layer).await.answer().is_none());
        assert_eq!(send(&service, post("e1")).await.status, 200);
        // Set later, it finds nothing.
        let later = layer.duplicate(Duplicate::Replay { max_body: MOST });
        let service = later.layer(answering(twiml));
        assert_plain(&send(&service, post("e1")).await);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_costs_no_store_call() {
    let store = Faulty::new();
    let service = replaying(store.clone()).layer(answering(twiml));
    send(&service, post("e1")).await;
    send(&service, post("e1")).await;
    let calls: Vec<_> = store.calls().iter().map(|call| call.operation).collect();
    let run = [Operation::Acquire, Operation::Complete];
    let duplicate: &[_] = if cached() { &[] } else { &[Operation::Acquire] };
    assert_eq!(calls, [&run, duplicate].concat());
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_that_waited_gets_it_too() {
    let service = service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        sleep(secs(2)).await;
        Ok::<_, Infallible>(twiml(1))
    });
    let layer = replaying(MemoryStore::new()).in_flight(InFlight::Wait {
        max: secs(60),
        then: AfterWait::RetryLater,
    });
    let service = layer.layer(service);
    let first = send_later(&service, post("e1"));
    sleep(secs(1)).await;
    assert_replayed(&send(&service, post("e1")).await);
    assert_eq!(first.await.unwrap().brief(), (201, "run"));
}

#[tokio::test(start_paused = true)]
async fn the_answer_of_a_run_without_a_sender_is_stored() {
    let handler = answering(|run| {
        let mut response = twiml(1);
        if run == 1 {
            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        }
        response
    });
    let inner = handler.clone();
    let inner = service_fn(move |request| {
        let answer = inner.clone().oneshot(request);
        async move {
            sleep(secs(2)).await;
            answer.await
        }
    });
    let layer = replaying(MemoryStore::new());
    let service = layer.layer(inner);
    let first = send_later(&service, post("e1"));
    sleep(secs(1)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    assert_eq!(first.await.unwrap().brief(), (500, "run"));
    assert!(layer.drain_handle().drain(secs(600)).await.is_complete());
    assert_eq!(handler.runs(), 2);
    assert_replayed(&send(&service, post("e1")).await);
}

#[tokio::test(start_paused = true)]
async fn only_the_same_request_gets_it() {
    let layer = replaying(MemoryStore::new()).applies_to(|_| true);
    let service = layer.layer(answering(twiml));
    let request = |method: Method, uri: &str, body: &str| {
        let mut request = post_body(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri.parse().unwrap();
        request
    };
    let body = r#"{"id":"e1","n":1}"#;
    let first = request(Method::POST, "/hooks/x?a=1", body);
    assert_eq!(send(&service, first).await.brief(), (201, "run"));
    for (method, uri, body) in [
        (Method::PUT, "/hooks/x?a=1", body),
        (Method::POST, "/hooks/y?a=1", body),
        (Method::POST, "/hooks/x?a=2", body),
        (Method::POST, "/hooks/x?", body),
        (Method::POST, "/hooks/x", body),
        (Method::POST, "/hooks/x?a=1", r#"{"id":"e1","n":2}"#),
    ] {
        assert_plain(&send(&service, request(method, uri, body)).await);
    }
    let again = request(Method::POST, "/hooks/x?a=1", body);
    assert_replayed(&send(&service, again).await);
    // Another namespace is another event.
    let other = layer.namespace("other").layer(answering(twiml));
    let elsewhere = request(Method::POST, "/hooks/x?a=1", body);
    assert_eq!(send(&other, elsewhere).await.brief(), (201, "run"));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_complete_the_event_is_not_kept() {
    let handler = answering(|run| {
        let mut response = twiml(run);
        if run == 1 {
            *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    });
    let layer = replaying(MemoryStore::new());
    let service = layer.clone().layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (201, "run"));
    assert_eq!(handler.runs(), 2);
    // Nor is one that ends it for want of a better.
    let service = layer.give_up_after(1).layer(answering(|_| {
        let mut response = twiml(1);
        *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        response
    }));
    assert_eq!(send(&service, post("e2")).await.brief(), (200, "gave-up"));
    assert_plain(&send(&service, post("e2")).await);
}

#[tokio::test(start_paused = true)]
async fn credentials_and_headers_of_the_connection_are_never_kept() {
    const NEVER: [&str; 22] = [
        "authentication-control",
        "authentication-info",
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "date",
        "keep-alive",
        "optional-www-authenticate",
        "proxy-authenticate",
        "proxy-authentication-info",
        "proxy-authorization",
        "proxy-connection",
        "set-cookie",
        "set-cookie2",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "www-authenticate",
        "x-hop",
        "x-other-hop",
    ];
    let layer = replaying(MemoryStore::new());
    let service = layer.layer(answering(|_| {
        let mut response = twiml(1);
        let headers = response.headers_mut();
        for name in NEVER {
            headers.append(name, HeaderValue::from_static("secret"));
            headers.append(name, HeaderValue::from_static("secret, too"));
        }
        headers.insert("connection", HeaderValue::from_static("close, X-Hop ,,"));
        headers.append("connection", HeaderValue::from_static("x-other-hop"));
        let mut token = HeaderValue::from_static("secret");
        token.set_sensitive(true);
        headers.append("x-token", token);
        headers.append("x-kept", HeaderValue::from_static("one"));
        headers.append("x-kept", HeaderValue::from_static("two"));
        response
    }));
    let first = send(&service, post("e1")).await;
    for name in NEVER {
        assert!(first.headers.contains_key(name), "the sender gets {name}");
    }
    let answer = send(&service, post("e1")).await;
    assert_replayed(&answer);
    let kept: Vec<_> = answer.headers.get_all("x-kept").iter().collect();
    assert_eq!(kept, ["one", "two"]);
    let mut expected = HeaderMap::new();
    for (name, value) in [("content-type", "text/xml"), ("x-run", "1")] {
        expected.insert(name, HeaderValue::from_static(value));
    }
    for value in ["one", "two"] {
        expected.append("x-kept", HeaderValue::from_static(value));
    }
    let record = record(&layer).await;
    assert_eq!(record.answer().unwrap().headers(), &expected);
}

/// What a body does when it is polled.
#[derive(Clone, Debug)]
enum Step {
    Data(&'static str),
    Trailers,
    /// It is not there yet.
    Later,
    Breaks,
}

/// A body that does as it is told, and says that it has so many bytes.
#[derive(Clone)]
struct Scripted {
    steps: VecDeque<Step>,
    left: Option<u64>,
}

impl Scripted {
    fn new(left: Option<u64>, steps: &[Step]) -> Self {
        Self {
            steps: steps.iter().cloned().collect(),
            left,
        }
    }
}

impl Body for Scripted {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(match self.steps.pop_front() {
            None => None,
            Some(Step::Data(data)) => {
                self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                Some(Ok(Frame::data(data.into())))
            }
            Some(Step::Trailers) => {
                let mut trailers = HeaderMap::new();
                trailers.insert("x-trailer", HeaderValue::from_static("last"));
                Some(Ok(Frame::trailers(trailers)))
            }
            Some(Step::Later) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Some(Step::Breaks) => Some(Err(io::Error::other("it broke off"))),
        })
    }

    fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// What the sender gets, frame by frame; and how long the body says that it is.
async fn frames<B>(body: B) -> (Option<u64>, Vec<String>)
where
    B: Body<Data = Bytes, Error: ToString>,
{
    let mut body = std::pin::pin!(body);
    let exact = body.size_hint().exact();
    let mut frames = Vec::new();
    while let Some(frame) = body.frame().await {
        frames.push(match frame {
            Err(error) => error.to_string(),
            Ok(frame) => match frame.into_data() {
                Ok(data) => String::from_utf8(data.to_vec()).unwrap(),
                Err(frame) => format!("{:?}", frame.into_trailers().unwrap()),
            },
        });
    }
    (exact, frames)
}

async fn sent_and_kept(body: Scripted) -> bool {
    let bare = frames(body.clone()).await;
    let layer = replaying(MemoryStore::new());
    let copy = body.clone();
    let service = layer.layer(answering(move |_| Response::new(copy.clone())));
    let first = service.clone().oneshot(post("e1")).await.unwrap();
    assert_eq!(
        frames(first.into_body()).await,
        bare,
        "as without the layer"
    );
    let kept = record(&layer).await.answer().map(|it| it.body().clone());
    let answer = send(&service, post("e1")).await;
    assert_eq!(answer.brief(), (200, "duplicate"));
    match &kept {
        Some(kept) => assert_eq!(answer.body, *kept),
        None => assert_plain(&answer),
    }
    kept.is_some()
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_all_there_is_kept_however_it_is_cut() {
    use Step::Data;
    for (length, steps) in [
        (0, &[][..]),
        (0, &[Data("")]),
        (5, &[Data("hello")]),
        (5, &[Data("he"), Data(""), Data("llo")]),
    ] {
        let kept = sent_and_kept(Scripted::new(Some(length), steps)).await;
        assert!(kept, "{steps:?}");
    }
    let most: &'static str = Box::leak("x".repeat(MOST).into());
    assert!(sent_and_kept(Scripted::new(Some(MOST as u64), &[Data(most)])).await);
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_not_kept_and_goes_out_as_it_is() {
    use Step::{Breaks, Data, Later, Trailers};
    for (length, steps) in [
        // Of unknown length.
        (None, &[Data("hello")][..]),
        (None, &[]),
        // Too long.
        (Some(MOST as u64 + 1), &[Data("hello")]),
        (Some(u64::MAX), &[Data("hello")]),
        // Not there yet.
        (Some(5), &[Later, Data("hello")]),
        (Some(5), &[Data("he"), Later, Data("llo")]),
        (Some(5), &[Data("hello"), Later]),
        // It breaks off.
        (Some(5), &[Breaks]),
        (Some(5), &[Data("he"), Breaks]),
        (Some(5), &[Data("hello"), Breaks]),
        // With trailers, which would be missing.
        (Some(5), &[Data("hello"), Trailers]),
        // It lied.
        (Some(5), &[Data("he")]),
        (Some(5), &[Data("hello"), Data("!")]),
        (Some(5), &[Data("hello!")]),
    ] {
        let kept = sent_and_kept(Scripted::new(length, steps)).await;
        assert!(!kept, "{length:?}, {steps:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_of_many_pieces_is_read_no_further_than_a_stream() {
    // It never ends, and is always there.
    let endless = stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::new())));
    let (length, most) = (AtomicUsize::new(0), 100_000);
    let counted = Arc::new(length);
    let polled = counted.clone();
    let service = replaying(MemoryStore::new()).layer(answering(move |_| {
        let polled = polled.clone();
        let endless = futures_util::StreamExt::inspect(endless.clone(), move |_| {
            polled.fetch_add(1, Ordering::SeqCst);
        });
        Response::new(Sized(StreamBody::new(endless)))
    }));
    let response = service.oneshot(post("e1")).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(counted.load(Ordering::SeqCst) < most);
}

/// A body that says that it has one byte.
struct Sized<B>(B);

impl<B: Body + Unpin> Body for Sized<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(1)
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_with_too_many_headers_is_not_kept() {
    for (length, kept) in [(8 * 1024 - 64, true), (8 * 1024, false)] {
        let value = HeaderValue::from_str(&"x".repeat(length)).unwrap();
        let layer = replaying(MemoryStore::new());
        let service = layer.layer(answering(move |_| {
            let mut response = twiml(1);
            response.headers_mut().insert("x-long", value.clone());
            response
        }));
        assert_eq!(send(&service, post("e1")).await.status, 201);
        assert_eq!(record(&layer).await.answer().is_some(), kept, "{length}");
        let answer = send(&service, post("e1")).await;
        if kept {
            assert_replayed(&answer);
        } else {
            assert_plain(&answer);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_not_written_yet_has_its_answer() {
    let fault = Fault::UNREACHABLE;
    let store = Faulty::broken(Operation::Complete, fault);
    let layer = replaying(store.clone());
    let service = layer.layer(answering(twiml));
    assert_eq!(send(&service, post("e1")).await.brief(), (201, "run"));
    assert_replayed(&send(&service, post("e1")).await);
    store.heal();
    assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    assert!(record(&layer).await.answer().is_some());
    assert_replayed(&send(&service, post("e1")).await);
}

#[tokio::test(start_paused = true)]
async fn without_room_for_its_answer_a_record_is_written_later_without() {
    let fault = Fault::UNREACHABLE;
    let store = Faulty::broken(Operation::Complete, fault);
    let layer = replaying(store.clone()).limits(Limits::default().bytes(600));
    let service = layer.layer(answering(|_| twiml(1)));
    // There is room for one.
    for (id, replayed) in [("e2", true), ("e1", false)] {
        assert_eq!(send(&service, post(id)).await.brief(), (201, "run"));
        let answer = send(&service, post(id)).await;
        if replayed {
            assert_replayed(&answer);
        } else {
            assert_plain(&answer);
        }
    }
    store.heal();
    assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    assert!(record(&layer).await.answer().is_none());
    // The room is given back.
    store.breaks(Operation::Complete, fault);
    assert_eq!(send(&service, post("e3")).await.brief(), (201, "run"));
    assert_replayed(&send(&service, post("e3")).await);
}

#[tokio::test(start_paused = true)]
async fn any_bytes_are_given_back() {
    let bytes: Bytes = (0..=255).collect::<Vec<u8>>().into();
    let body = bytes.clone();
    let layer = replaying(MemoryStore::new());
    let service = layer.layer(answering(move |_| {
        Response::new(Full::<Bytes>::from(body.clone()))
    }));
    for _ in 0..2 {
        let answer = service.clone().oneshot(post("e1")).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, bytes);
    }
}
