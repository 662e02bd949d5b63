//! Duplicates get the handler's own answer, where that is set, and no more of it than is theirs.

mod bodies;
mod duplicates;
mod headers;
mod pending;

#[path = "../support/http.rs"]
mod http_support;
#[path = "../support/stores.rs"]
mod stores;

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::Service;
use tower_webhook_dedup::{
    Duplicate, Entry, LeaseStore, Outcome, Record, RequestBody, WebhookDedupLayer,
};

use self::http_support::{Answer, by_id, e1, secs};

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
