//! The layer over Redis, around a handler that does as the requests tell it.

#![allow(dead_code, reason = "no test uses all of it")]

use std::{
    collections::HashMap,
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::{sync::Semaphore, task::JoinHandle, time::Instant};
use tower::{Layer, Service, ServiceExt};
use tower_webhook_dedup::{
    DedupEvent, Delivery, Entry, EventId, InFlight, LeaseStore, RedisStore, RequestBody,
    StoreErrorKind, WebhookDedup, WebhookDedupLayer,
};

pub(crate) use crate::support::{Answer, keys};
use crate::support::{Front, PATIENCE, RedisServer, cached, store_at, until};

/// How long a call to the store may take.
pub(crate) const DEADLINE: Duration = Duration::from_millis(400);

/// How late an answer may be on a busy machine.
const SLACK: Duration = Duration::from_millis(1400);

/// Headers that have the handler fail.
pub(crate) const FAIL: &[(&str, &str)] = &[("x-status", "500")];

/// One process, as it were: a layer, and the service that it makes.
#[derive(Clone)]
pub(crate) struct Hook<St: LeaseStore = RedisStore> {
    pub(crate) layer: WebhookDedupLayer<Front<St>>,
    pub(crate) handler: Handler,
    service: WebhookDedup<Handler, Front<St>>,
    events: Arc<Mutex<Vec<DedupEvent>>>,
}

impl Hook {
    /// With a lease that no test waits for.
    pub(crate) fn over(server: &RedisServer) -> Self {
        Self::with(&server.url(), |layer| layer)
    }

    /// The same, but duplicates in flight are refused.
    pub(crate) fn refusing(server: &RedisServer) -> Self {
        Self::refusing_at(&server.url())
    }

    pub(crate) fn refusing_at(url: &str) -> Self {
        Self::with(url, |layer| layer.in_flight(InFlight::RetryLater))
    }

    pub(crate) fn with(
        url: &str,
        set: impl FnOnce(WebhookDedupLayer<Front<RedisStore>>) -> WebhookDedupLayer<Front<RedisStore>>,
    ) -> Self {
        Self::with_store(store_at(url), set)
    }
}

impl<St: LeaseStore + Clone> Hook<St> {
    pub(crate) fn with_store(
        store: St,
        set: impl FnOnce(WebhookDedupLayer<Front<St>>) -> WebhookDedupLayer<Front<St>>,
    ) -> Self {
        let events = Arc::<Mutex<Vec<_>>>::default();
        let seen = events.clone();
        let layer = WebhookDedupLayer::new(Front::of(store), EventId::pointer("/id"))
            .namespace("t")
            .lease(Duration::from_secs(60))
            .retention(Duration::from_secs(24 * 3600))
            .store_timeout(DEADLINE)
            .on_event(move |event| seen.lock().unwrap().push(event.clone()));
        let layer = set(layer);
        let handler = Handler::default();
        Self {
            service: layer.layer(handler.clone()),
            layer,
            handler,
            events,
        }
    }

    /// Delivers the event; the handler answers 200 at once.
    pub(crate) async fn send(&self, id: &str) -> Answer {
        self.send_with(id, &[]).await
    }

    /// Delivers the event, and tells the handler what to do by `x-status`, `x-gate` (wait for
    /// [`Handler::open`]) and `x-block` (block the thread until [`Handler::unblock`]).
    pub(crate) async fn send_with(&self, id: &str, headers: &[(&str, &str)]) -> Answer {
        self.send_to("/hooks/x", id, headers).await
    }

    pub(crate) async fn send_to(&self, path: &str, id: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::post(path).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = format!(r#"{{"id":"{id}","n":1}}"#);
        let request = request.body(Full::<Bytes>::from(body)).unwrap();
        let start = Instant::now();
        let response = self.service.clone().oneshot(request).await.unwrap();
        let header = |name| {
            let value = response.headers().get(name)?;
            Some(value.to_str().unwrap().to_owned())
        };
        Answer {
            status: response.status().as_u16(),
            outcome: header("webhook-dedup").expect("every answer is marked"),
            retry_after: header("retry-after").map(|it| it.parse().unwrap()),
            took: start.elapsed(),
        }
    }

    /// Delivers an event again that this process completed, while the store does not answer: a cache
    /// does.
    pub(crate) async fn send_known(&self, id: &str) {
        let answer = self.send(id).await;
        if cached() {
            answer.is(200, "duplicate");
        } else {
            answer.is_refused();
        }
    }

    /// Delivers the event and waits until its handler runs and waits for the gate.
    pub(crate) async fn begin(&self, id: &str, headers: &[(&str, &str)]) -> JoinHandle<Answer> {
        let before = self.handler.calls();
        let (hook, id) = (self.clone(), id.to_owned());
        let mut all = vec![("x-gate".to_owned(), "1".to_owned())];
        all.extend(headers.iter().map(|(k, v)| ((*k).into(), (*v).into())));
        let sending = tokio::spawn(async move {
            let all: Vec<_> = all.iter().map(|(k, v)| (&**k, &**v)).collect();
            hook.send_with(&id, &all).await
        });
        until("the handler runs", async || self.handler.calls() > before).await;
        sending
    }

    /// How often the event got as far as the work: past the verification of the signature.
    pub(crate) fn runs(&self, id: &str) -> u32 {
        *self.handler.runs.lock().unwrap().get(id).unwrap_or(&0)
    }

    /// The same, for all events.
    pub(crate) fn all_runs(&self) -> u32 {
        self.handler.runs.lock().unwrap().values().sum()
    }

    /// Whether something of this kind happened.
    pub(crate) fn saw(&self, is: impl Fn(&DedupEvent) -> bool) -> bool {
        self.events.lock().unwrap().iter().any(is)
    }

    /// The troubles with the store so far.
    pub(crate) fn troubles(&self) -> Vec<StoreErrorKind> {
        let events = self.events.lock().unwrap();
        let kind = |event: &DedupEvent| match event {
            DedupEvent::StoreFailed { error, .. } => Some(error.kind()),
            _ => None,
        };
        events.iter().filter_map(kind).collect()
    }

    /// Waits for everything that goes on in the background.
    pub(crate) async fn drain(&self) {
        let drain = self.layer.drain_handle();
        let drained = drain.drain(PATIENCE).await;
        assert!(drained.is_complete(), "{drained:?}");
    }
}

impl Answer {
    /// 503, and when to come again; not later than the deadline of one call to the store.
    #[track_caller]
    pub(crate) fn is_refused(&self) {
        self.is(503, "refused");
        assert!(self.retry_after.is_some_and(|it| it >= 1), "{self:?}");
        self.is_in_time();
    }

    /// 503 at once, since another attempt is running.
    #[track_caller]
    pub(crate) fn is_in_flight(&self) {
        self.is(503, "in-flight");
        assert!(self.retry_after.is_some_and(|it| it >= 1), "{self:?}");
        self.is_in_time();
    }

    #[track_caller]
    pub(crate) fn is_in_time(&self) {
        assert!(self.took <= DEADLINE + SLACK, "{self:?}");
    }
}

/// Does as the headers of a request tell it.
#[derive(Clone)]
pub(crate) struct Handler {
    calls: Arc<AtomicUsize>,
    runs: Arc<Mutex<HashMap<String, u32>>>,
    gate: Arc<Semaphore>,
    unblocked: Arc<AtomicBool>,
    /// Requests without `x-signature` get 401.
    pub(crate) verifies: Arc<AtomicBool>,
}

impl Default for Handler {
    fn default() -> Self {
        Self {
            calls: Arc::default(),
            runs: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            unblocked: Arc::default(),
            verifies: Arc::default(),
        }
    }
}

impl Handler {
    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Lets one run that waits for the gate go on, now or later.
    pub(crate) fn open(&self) {
        self.gate.add_permits(1);
    }

    /// Lets all runs that block their threads go on.
    pub(crate) fn unblock(&self) {
        self.unblocked.store(true, Ordering::SeqCst);
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
        let handler = self.clone();
        Box::pin(async move {
            let header = |name| {
                let value = request.headers().get(name)?;
                Some(value.to_str().unwrap().to_owned())
            };
            let verified =
                !handler.verifies.load(Ordering::SeqCst) || header("x-signature").is_some();
            if verified {
                let delivery = request.extensions().get::<Delivery>().unwrap();
                let id = delivery.event_id().to_owned();
                *handler.runs.lock().unwrap().entry(id).or_default() += 1;
            }
            handler.calls.fetch_add(1, Ordering::SeqCst);
            if header("x-gate").is_some() {
                handler.gate.acquire().await.unwrap().forget();
            }
            while header("x-block").is_some() && !handler.unblocked.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let status = if verified {
                header("x-status").map_or(200, |it| it.parse().unwrap())
            } else {
                401
            };
            let mut response = Response::new(Full::default());
            *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
            Ok(response)
        })
    }
}

pub(crate) fn entry(server: &RedisServer, id: &str) -> Option<Entry> {
    let value = server.text(&["GET", keys(server, id).first()?]);
    (!value.is_empty()).then(|| value.parse().unwrap())
}

pub(crate) fn is_done(server: &RedisServer, id: &str) -> bool {
    matches!(entry(server, id), Some(Entry::Done { .. }))
}

/// Delivers the event, as a sender does, until it is not refused.
pub(crate) async fn send_until_taken<St: LeaseStore>(hook: &Hook<St>, id: &str) -> Answer {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = hook.send(id).await;
        if answer.status != 503 {
            return answer;
        }
        assert!(answer.retry_after.is_some(), "{answer:?}");
        assert!(Instant::now() < end, "{id} is refused for ever: {answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// That nothing was given up as failed, or lost.
pub(crate) fn assert_nothing_was_given_up<St: LeaseStore>(hook: &Hook<St>) {
    let given_up = |event: &DedupEvent| {
        matches!(
            event,
            DedupEvent::Failed { .. }
                | DedupEvent::Abandoned { .. }
                | DedupEvent::LeaseLost { .. }
                | DedupEvent::CompletionDropped { .. }
                | DedupEvent::Lost(_)
        )
    };
    assert!(!hook.saw(given_up));
}
