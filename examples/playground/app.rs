//! The routes: a handler that does as it is told, and what it did so far.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Extension, Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode},
    routing::{any, get},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tower_webhook_dedup::{BoxStore, Delivery, WebhookDedupLayer};

use super::orders::Orders;

/// The routes, with the layer around the one that needs it. `/runs` tells of that many events.
pub(crate) fn app(dedup: WebhookDedupLayer<BoxStore>, keep_runs: usize) -> Router {
    Router::new()
        .route("/webhooks/demo", any(demo).layer(dedup))
        .route("/runs", get(runs))
        .route("/stats", get(stats))
        .route("/healthz", get(|| async { "ok\n" }))
        // Axum's own limit is off, so that the layer's is the one that answers.
        .layer(DefaultBodyLimit::disable())
        .with_state(Runs::new(keep_runs))
}

/// Sleeps, panics and answers as the headers tell.
async fn demo(
    State(runs): State<Runs>,
    delivery: Option<Extension<Delivery>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, String) {
    let orders = match Orders::read(&headers) {
        Ok(orders) => orders,
        Err(why) => return (StatusCode::BAD_REQUEST, why),
    };
    let event_id = event_id(delivery.as_deref());
    runs.started(event_id, &body);
    tokio::time::sleep(orders.sleep).await;
    assert!(!orders.panic, "the request asked for it");
    if orders.status.is_success() {
        runs.completed(event_id);
    }
    (orders.status, format!("the handler ran for {event_id}\n"))
}

/// The id as the request has it; `-` where it has none.
fn event_id(delivery: Option<&Delivery>) -> &str {
    match delivery {
        Some(delivery) if !delivery.is_by_body() => delivery.event_id(),
        _ => "-",
    }
}

async fn runs(State(runs): State<Runs>) -> Json<Value> {
    Json(runs.to_json())
}

/// What a soak watches, and `/proc` does not tell.
async fn stats() -> Json<Value> {
    let tasks = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    Json(json!({ "tasks": tasks }))
}

/// What the handler did with the latest events.
#[derive(Clone)]
struct Runs(Arc<Mutex<Latest>>);

struct Latest {
    by_id: BTreeMap<String, Run>,
    /// The oldest first.
    ids: VecDeque<String>,
    keep: usize,
}

#[derive(Default)]
struct Run {
    started: u64,
    completed: u64,
    /// Of the last body that the handler saw.
    sha256: String,
}

impl Runs {
    fn new(keep: usize) -> Self {
        Self(Arc::new(Mutex::new(Latest {
            by_id: BTreeMap::new(),
            ids: VecDeque::new(),
            keep,
        })))
    }

    fn started(&self, event_id: &str, body: &[u8]) {
        self.update(event_id, |run| {
            run.started += 1;
            run.sha256 = hex::encode(Sha256::digest(body));
        });
    }

    fn completed(&self, event_id: &str) {
        self.update(event_id, |run| run.completed += 1);
    }

    fn update(&self, event_id: &str, update: impl FnOnce(&mut Run)) {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !runs.by_id.contains_key(event_id) {
            runs.ids.push_back(event_id.to_owned());
            if runs.ids.len() > runs.keep
                && let Some(oldest) = runs.ids.pop_front()
            {
                runs.by_id.remove(&oldest);
            }
        }
        update(runs.by_id.entry(event_id.to_owned()).or_default());
    }

    fn to_json(&self) -> Value {
        let runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let run = |(id, run): (&String, &Run)| {
            let run = json!({
                "started": run.started,
                "completed": run.completed,
                "sha256": run.sha256,
            });
            (id.clone(), run)
        };
        runs.by_id.iter().map(run).collect()
    }
}
