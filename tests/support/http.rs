//! Deliveries, handlers that follow a script, and what came of both.

#![allow(dead_code, reason = "no test uses all of it")]

use std::{
    convert::Infallible,
    fmt::Debug,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Extensions, HeaderMap, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio::{sync::watch, task::JoinHandle, time::Instant};
use tower::{Service, ServiceExt};
use tower_webhook_dedup::{
    AfterWait, Delivery, EventId, InFlight, Key, KeyBy, LeaseStore, Outcome, Refusal, RequestBody,
    WebhookDedupLayer,
};

#[allow(unused_imports, reason = "not all of it is needed everywhere")]
pub(crate) use events::{Events, is};

#[path = "events.rs"]
mod events;

/// `P(id)` of the cases.
pub(crate) fn post(id: &str) -> Request<Full<Bytes>> {
    post_body(&format!(r#"{{"id":"{id}","n":1}}"#))
}

/// A delivery of this body.
pub(crate) fn post_body(body: &str) -> Request<Full<Bytes>> {
    Request::post("/hooks/x")
        .header("content-type", "application/json")
        .body(Full::from(body.to_owned()))
        .unwrap()
}

/// `C0` of the cases.
pub(crate) fn c0<St: LeaseStore>(store: St) -> WebhookDedupLayer<St> {
    WebhookDedupLayer::new(store, EventId::pointer("/id"))
        .namespace("t")
        .lease(secs(2))
        .retention(secs(24 * 3600))
        .store_timeout(millis(300))
        .max_body(64 * 1024)
}

/// `C0` with events told by their id alone, so that a test can hold one from outside.
pub(crate) fn by_id<St: LeaseStore>(store: St) -> WebhookDedupLayer<St> {
    c0(store).key_by(KeyBy::Id)
}

/// The same, but duplicates in flight are refused.
pub(crate) fn refusing<St: LeaseStore>(store: St) -> WebhookDedupLayer<St> {
    by_id(store).in_flight(InFlight::RetryLater)
}

/// Each way to treat duplicates in flight.
pub(crate) fn in_flight_policies() -> [InFlight; 3] {
    let (max, then) = (secs(1), AfterWait::Acknowledge);
    [
        InFlight::Acknowledge,
        InFlight::RetryLater,
        InFlight::Wait { max, then },
    ]
}

/// The key of `e1` there.
pub(crate) fn e1() -> Key {
    Key::new("t", "e1")
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What a test waits for comes within the hour, or it never does.
async fn in_time<T, E: Debug>(event: impl Future<Output = Result<T, E>>) {
    let event = tokio::time::timeout(secs(3600), event).await;
    event.expect("it never happened").unwrap();
}

/// One run, as the handler's script sees it.
pub(crate) struct Run {
    /// 1 for the first run of this handler, whatever the event.
    pub(crate) n: usize,
    pub(crate) request: Request<RequestBody<Full<Bytes>>>,
}

impl Run {
    pub(crate) fn body(&self) -> Bytes {
        self.request.body().bytes().unwrap().clone()
    }

    pub(crate) fn delivery(&self) -> Delivery {
        self.request.extensions().get::<Delivery>().unwrap().clone()
    }
}

/// What a run saw, and when it began.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) body: Bytes,
    pub(crate) headers: HeaderMap,
}

type Act = dyn Fn(Run) -> Pin<Box<dyn Future<Output = u16> + Send>> + Send + Sync;

/// A handler that answers with the status that its script gives.
#[derive(Clone)]
pub(crate) struct Handler {
    act: Arc<Act>,
    seen: Arc<Mutex<Vec<Seen>>>,
    began: watch::Sender<usize>,
    ended: watch::Sender<usize>,
}

impl Handler {
    pub(crate) fn new<F>(act: impl Fn(Run) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = u16> + Send + 'static,
    {
        Self {
            act: Arc::new(move |run| Box::pin(act(run))),
            seen: Arc::default(),
            began: watch::Sender::new(0),
            ended: watch::Sender::new(0),
        }
    }

    /// Answers with 200 at once.
    pub(crate) fn ok() -> Self {
        Self::statuses([200])
    }

    /// Answers with one of these after the other, and with the last one for ever.
    pub(crate) fn statuses<const N: usize>(statuses: [u16; N]) -> Self {
        Self::new(move |run| std::future::ready(statuses[run.n.min(N) - 1]))
    }

    /// The first run takes this long and ends so; the others end at once.
    pub(crate) fn first_then(time: Duration, first: u16, then: u16) -> Self {
        Self::new(move |run| async move {
            if run.n > 1 {
                return then;
            }
            tokio::time::sleep(time).await;
            first
        })
    }

    /// How often the handler was called.
    pub(crate) fn runs(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// How many runs came to their end.
    pub(crate) fn ended(&self) -> usize {
        *self.ended.borrow()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The bodies in the order of their runs.
    pub(crate) fn bodies(&self) -> Vec<String> {
        let text = |seen: &Seen| String::from_utf8_lossy(&seen.body).into_owned();
        self.seen.lock().unwrap().iter().map(text).collect()
    }

    /// Waits until so many runs have begun.
    pub(crate) async fn began(&self, runs: usize) {
        let mut began = self.began.subscribe();
        in_time(began.wait_for(|&began| began >= runs)).await;
    }

    /// Waits until so many runs have come to their end.
    pub(crate) async fn has_ended(&self, runs: usize) {
        let mut ended = self.ended.subscribe();
        in_time(ended.wait_for(|&ended| ended >= runs)).await;
    }
}

impl Service<Request<RequestBody<Full<Bytes>>>> for Handler {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<Full<Bytes>>>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let n = {
                let mut seen = this.seen.lock().unwrap();
                seen.push(Seen {
                    at: Instant::now(),
                    body: request.body().bytes().cloned().unwrap_or_default(),
                    headers: request.headers().clone(),
                });
                seen.len()
            };
            this.began.send_replace(n);
            let status = (this.act)(Run { n, request }).await;
            this.ended.send_modify(|ended| *ended += 1);
            let mut response = Response::new(Full::from("from the handler"));
            *response.status_mut() = status.try_into().unwrap();
            response
                .headers_mut()
                .insert("x-handler", n.to_string().parse().unwrap());
            Ok(response)
        })
    }
}

/// What the sender got.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    pub(crate) extensions: Extensions,
}

impl Answer {
    /// Status and outcome header.
    pub(crate) fn brief(&self) -> (u16, &str) {
        let outcome = self.headers.get("webhook-dedup");
        (self.status, outcome.map_or("", |it| it.to_str().unwrap()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn outcome(&self) -> Outcome {
        self.extensions.get::<Outcome>().unwrap().clone()
    }

    /// Why this duplicate in flight was refused.
    pub(crate) fn refusal(&self) -> Refusal {
        match self.outcome() {
            Outcome::InFlight(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }
}

/// Sends a request and reads the whole answer.
pub(crate) fn send<S, B, R>(
    service: &S,
    request: Request<B>,
) -> impl Future<Output = Answer> + use<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>, Error: Debug> + Clone,
    R: Body<Error: Debug>,
{
    let service = service.clone();
    async move {
        let response = service.oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
            extensions: parts.extensions,
        }
    }
}

/// Sends a request from a task of its own.
pub(crate) fn send_later<S, B, R>(service: &S, request: Request<B>) -> JoinHandle<Answer>
where
    S: Service<Request<B>, Response = Response<R>, Error: Debug> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: Body<Error: Debug, Data: Send> + Send + 'static,
{
    tokio::spawn(send(service, request))
}

/// Polls the future until this has happened, and lets go of it then; as servers do when a sender hangs
/// up.
pub(crate) async fn poll_until(future: impl Future, happened: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        _ = future => panic!("it came to its end"),
        () = happened => {}
    }
}
