//! Events of a batch run once, each of them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Body};
use futures_util::FutureExt;
use http::{Request, StatusCode};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Semaphore};
use tower::ServiceExt;
use tower_webhook_dedup::{BoxStore, LeaseStore, MemoryStore};

use crate::{
    fixtures::fixture,
    support::until,
    web::{Answer, Web},
};

#[expect(dead_code, reason = "the test starts the server in its own way")]
#[path = "../../examples/batch.rs"]
mod example;

/// What is done with the elements, by their ids.
#[derive(Clone, Default)]
struct Work(Arc<Mutex<Done>>);

#[derive(Default)]
struct Done {
    runs: BTreeMap<String, usize>,
    /// These fail.
    bad: Vec<String>,
}

impl Work {
    fn run(&self, element: &Value) -> Result<(), String> {
        let id = ["sg_event_id", "eventId"].map(|name| &element[name]);
        let id = match id {
            [Value::String(id), _] => id.clone(),
            [_, Value::Number(id)] => id.to_string(),
            _ => "-".to_owned(),
        };
        let mut done = self.0.lock().unwrap();
        *done.runs.entry(id.clone()).or_default() += 1;
        if done.bad.contains(&id) {
            return Err(format!("{id} is bad"));
        }
        Ok(())
    }

    fn fail(&self, bad: &[&str]) {
        self.0.lock().unwrap().bad = bad.iter().map(ToString::to_string).collect();
    }

    fn runs(&self) -> Vec<(String, usize)> {
        self.0.lock().unwrap().runs.clone().into_iter().collect()
    }
}

async fn serve(app: Router) -> Web {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let web = Web::new(listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, app).into_future());
    web
}

fn store() -> BoxStore {
    MemoryStore::new().boxed()
}

async fn start() -> (Web, Work) {
    let work = Work::default();
    let worker = work.clone();
    let (app, _background) = example::app(store(), move |element| {
        let ran = worker.run(&serde_json::from_str(element.get()).unwrap());
        async { ran }
    });
    (serve(app).await, work)
}

/// Each element waits for a permit.
fn gated(store: &MemoryStore) -> (Router, example::Background, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let waiting = gate.clone();
    let (app, background) = example::app(store.clone().boxed(), move |_| {
        let gate = waiting.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(())
        }
    });
    (app, background, gate)
}

async fn deliver(web: &Web, path: &str, fixture_name: &str) -> Answer {
    let fixture = fixture(fixture_name);
    let body = str::from_utf8(&fixture.body).unwrap();
    web.post(path, body).await
}

fn settled(completed: usize, duplicates: usize, failed: usize, in_flight: usize) -> Value {
    json!({
        "completed": completed,
        "duplicates": duplicates,
        "failed": failed,
        "in_flight": in_flight,
    })
}

const SENDGRID: &str = "/webhooks/sendgrid";
const HUBSPOT: &str = "/webhooks/hubspot";

fn ids(runs: &[(String, usize)]) -> Vec<(&str, usize)> {
    let last = |id: &str| id.len().saturating_sub(5);
    runs.iter().map(|(id, n)| (&id[last(id)..], *n)).collect()
}

// R29
#[tokio::test]
async fn of_batches_that_overlap_each_element_runs_once() {
    let (web, work) = start().await;
    let first = deliver(&web, SENDGRID, "sendgrid").await;
    assert_eq!(first.status, StatusCode::OK);
    assert_eq!(first.json(), settled(3, 0, 0, 0));
    let second = deliver(&web, SENDGRID, "sendgrid_rebatched").await;
    assert_eq!(second.status, StatusCode::OK);
    assert_eq!(second.json(), settled(1, 1, 0, 0));
    let expected = [("00001", 1), ("00002", 1), ("00003", 1), ("00004", 1)];
    assert_eq!(ids(&work.runs()), expected);
}

#[tokio::test]
async fn of_a_batch_that_failed_in_part_only_that_runs_again() {
    let (web, work) = start().await;
    work.fail(&["Zml4dHVyZS1ldmVudC00002"]);
    let first = deliver(&web, SENDGRID, "sendgrid").await;
    assert_eq!(first.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(first.headers.contains_key("retry-after"));
    assert_eq!(first.json(), settled(2, 0, 1, 0));

    work.fail(&[]);
    let retry = deliver(&web, SENDGRID, "sendgrid").await;
    assert_eq!(retry.status, StatusCode::OK);
    assert_eq!(retry.json(), settled(1, 2, 0, 0));
    assert_eq!(
        ids(&work.runs()),
        [("00001", 1), ("00002", 2), ("00003", 1)]
    );
}

#[tokio::test]
async fn a_retry_with_other_attempt_numbers_is_the_same_batch() {
    let (web, work) = start().await;
    work.fail(&["410200302"]);
    let first = deliver(&web, HUBSPOT, "hubspot").await;
    assert_eq!(first.status, StatusCode::SERVICE_UNAVAILABLE);
    work.fail(&[]);
    for expected in [settled(1, 1, 0, 0), settled(0, 2, 0, 0)] {
        let retry = deliver(&web, HUBSPOT, "hubspot_retry").await;
        assert_eq!(retry.status, StatusCode::OK);
        assert_eq!(retry.json(), expected);
    }
    assert_eq!(ids(&work.runs()), [("00301", 1), ("00302", 2)]);
}

#[tokio::test]
async fn an_id_that_is_used_again_for_another_change_is_another_event() {
    let (web, work) = start().await;
    let event = |occurred_at| json!([{ "eventId": 1, "subscriptionId": 2, "objectId": 3, "occurredAt": occurred_at }]);
    for occurred_at in [10, 11, 10] {
        web.post(HUBSPOT, &event(occurred_at).to_string()).await;
    }
    assert_eq!(work.runs(), [("1".to_owned(), 2)]);
}

#[tokio::test]
async fn elements_without_an_id_run_each_time_and_equal_ones_of_a_batch_once() {
    let (web, work) = start().await;
    let body = r#"[{"event":"open"},{"sg_event_id":""},{"sg_event_id":"a"},{"sg_event_id":"a"}]"#;
    for expected in [settled(3, 1, 0, 0), settled(2, 2, 0, 0)] {
        assert_eq!(web.post(SENDGRID, body).await.json(), expected);
    }
    let runs = work.runs();
    assert!(runs.contains(&("a".to_owned(), 1)), "{runs:?}");
    let empty = web.post(SENDGRID, "[]").await;
    assert_eq!(empty.status, StatusCode::OK);
    let broken = web.post(SENDGRID, "[{").await;
    assert_eq!(broken.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn an_element_that_another_request_is_running_is_asked_for_again() {
    let store = MemoryStore::new();
    let (app, _background, gate) = gated(&store);
    let web = serve(app).await;
    let body = r#"[{"sg_event_id":"a"}]"#;
    let first = tokio::spawn({
        let web = web.clone();
        async move { web.post(SENDGRID, body).await }
    });
    until("the first is running", async || store.len() == 1).await;
    let second = web.post(SENDGRID, body).await;
    assert_eq!(second.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(second.json(), settled(0, 0, 0, 1));
    gate.add_permits(1);
    assert_eq!(first.await.unwrap().json(), settled(1, 0, 0, 0));
    assert_eq!(web.post(SENDGRID, body).await.json(), settled(0, 1, 0, 0));
}

/// More than run at once.
const MANY: usize = 20;

#[tokio::test(start_paused = true)]
async fn a_batch_whose_sender_hung_up_is_waited_for_at_the_end() {
    let store = MemoryStore::new();
    let (app, background, gate) = gated(&store);
    let elements: Vec<_> = (0..MANY)
        .map(|n| json!({ "sg_event_id": n.to_string() }))
        .collect();
    let body = Value::from(elements).to_string();
    let deliver = |body: &str| {
        let request = Request::post(SENDGRID).body(Body::from(body.to_owned()));
        tokio::spawn(app.clone().oneshot(request.unwrap()))
    };
    let first = deliver(&body);
    until("it is running", async || !store.is_empty()).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());

    let mut end = Box::pin(background.end(Duration::from_secs(20)));
    assert!((&mut end).now_or_never().is_none());
    gate.add_permits(MANY);
    end.await;
    // Without a permit, nothing runs again.
    let retry = deliver(&body).await.unwrap().unwrap();
    assert_eq!(retry.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_does_not_end_is_not_waited_for_for_ever() {
    let store = MemoryStore::new();
    let (app, background, _gate) = gated(&store);
    let request = Request::post(SENDGRID).body(Body::from(r#"[{"sg_event_id":"a"}]"#));
    let batch = tokio::spawn(app.oneshot(request.unwrap()));
    until("it is running", async || !store.is_empty()).await;
    background.end(Duration::from_secs(20)).await;
    assert!(!batch.is_finished());
}
