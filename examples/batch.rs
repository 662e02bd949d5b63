//! A server for senders that put several events into one request: SendGrid and HubSpot.
//!
//! ```sh
//! cargo run --release --example batch
//! curl -i localhost:3000/webhooks/sendgrid -d '[{"sg_event_id":"a"},{"sg_event_id":"b"}]'
//! curl -i localhost:3000/webhooks/sendgrid -d '[{"sg_event_id":"b"},{"sg_event_id":"c"}]'
//! ```
//!
//! `REDIS_URL` shares the events among any number of such servers; without it they are kept in
//! memory. `LISTEN` is the address.
//!
//! A layer around the handler can only run a request or not. But of a batch that comes again some
//! elements are done and some are not, and a retry may be cut into other batches. So each element is
//! an event of its own, and the handler runs those that are new, with `Dedup`.

use std::{collections::HashSet, env, error::Error, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
    routing::post,
};
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::{net::TcpListener, time::timeout};
use tokio_util::task::TaskTracker;
use tower_webhook_dedup::{
    BoxStore, Dedup, DrainHandle, Key, LeaseStore, MemoryStore, Ran, RedisStore,
};

/// How many elements of a batch run at once.
const AT_ONCE: usize = 16;

/// Both senders retry for about a day.
const RETENTION: Duration = Duration::from_secs(26 * 3600);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = match env::var("REDIS_URL") {
        Ok(url) => RedisStore::open(&url)?.boxed(),
        Err(_) => MemoryStore::new().boxed(),
    };
    let (app, background) = app(store, |element| async move {
        println!("{element}");
        Ok(())
    });
    let address = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    // A container is sent SIGTERM instead, and a connection that stalls holds this up: see the
    // example `axum`.
    axum::serve(listener, app)
        .with_graceful_shutdown(async { _ = tokio::signal::ctrl_c().await })
        .await?;
    background.end(Duration::from_secs(20)).await;
    Ok(())
}

/// One element, as it was sent.
pub(crate) type Element = Box<RawValue>;

/// The routes. Signatures go outside, as in the example `signature`.
pub(crate) fn app<W, F>(store: BoxStore, work: W) -> (Router, Background)
where
    W: Fn(Element) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let dedup = Dedup::new(store).retention(RETENTION);
    let background = Background {
        batches: TaskTracker::new(),
        drain: dedup.drain_handle(),
    };
    let receiver = Arc::new(Receiver {
        dedup,
        work,
        batches: background.batches.clone(),
    });
    let route = |key_of: KeyOf| {
        post(
            move |State(receiver): State<Arc<Receiver<W>>>, body: Bytes| async move {
                receive(receiver, key_of, &body).await
            },
        )
    };
    let app = Router::new()
        .route("/webhooks/sendgrid", route(sendgrid))
        .route("/webhooks/hubspot", route(hubspot))
        .with_state(receiver);
    (app, background)
}

/// What goes on when the server has stopped.
pub(crate) struct Background {
    batches: TaskTracker,
    drain: DrainHandle,
}

impl Background {
    /// Waits until it is over.
    pub(crate) async fn end(self, limit: Duration) {
        // Those whose senders hung up. They are tasks of our own, which a drain knows nothing of.
        self.batches.close();
        if timeout(limit, self.batches.wait()).await.is_err() {
            eprintln!("{} batches did not end in time", self.batches.len());
        }
        // What the store could not be told yet.
        for key in self.drain.drain(Duration::from_secs(5)).await.unwritten() {
            eprintln!("done, and the store does not know: {key}");
        }
    }
}

struct Receiver<W> {
    dedup: Dedup<BoxStore>,
    work: W,
    batches: TaskTracker,
}

/// Which event an element is; `None` where it does not say.
type KeyOf = fn(&RawValue) -> Option<Key>;

/// SendGrid has an id for each element, which is missing now and then.
/// <https://github.com/sendgrid/docs/blob/develop/content/docs/for-developers/tracking-events/event.md>
fn sendgrid(element: &RawValue) -> Option<Key> {
    #[derive(Deserialize)]
    struct Event {
        sg_event_id: String,
    }
    let event: Event = serde_json::from_str(element.get()).ok()?;
    (!event.sg_event_id.trim().is_empty()).then(|| Key::new("sendgrid", event.sg_event_id))
}

/// HubSpot does not promise that `eventId` is unique; `attemptNumber` counts up.
/// <https://developers.hubspot.com/docs/api/webhooks>
fn hubspot(element: &RawValue) -> Option<Key> {
    // As raw text: ids can be longer than a float is exact.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Event<'a> {
        #[serde(borrow)]
        subscription_id: &'a RawValue,
        #[serde(borrow)]
        object_id: &'a RawValue,
        #[serde(borrow)]
        event_id: &'a RawValue,
        #[serde(borrow)]
        occurred_at: &'a RawValue,
    }
    let event: Event<'_> = serde_json::from_str(element.get()).ok()?;
    let parts = [
        event.subscription_id,
        event.object_id,
        event.event_id,
        event.occurred_at,
    ];
    Some(Key::new("hubspot", parts.map(RawValue::get).join("|")))
}

/// What became of the elements.
#[derive(Debug, Default, Serialize)]
struct Settled {
    completed: usize,
    duplicates: usize,
    failed: usize,
    /// Another request is running them.
    in_flight: usize,
}

/// Runs the elements that are new, and answers so that the sender sends the batch again if one of them
/// is not done. No sender of these can be told which: all come again, and those that are done do not
/// run.
async fn receive<W, F>(receiver: Arc<Receiver<W>>, key_of: KeyOf, body: &[u8]) -> Response
where
    W: Fn(Element) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let Ok(elements) = serde_json::from_slice::<Vec<Element>>(body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    // A task of its own, which goes on when the sender hangs up: some wait for 5 seconds only. What
    // it completes, the retry need not run again.
    let batches = receiver.batches.clone();
    let settled = batches.spawn(settle(receiver, key_of, elements)).await;
    let Ok(settled) = settled else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    if settled.failed + settled.in_flight == 0 {
        return Json(settled).into_response();
    }
    // Not 2xx, even for one: this sender's next batch may never have it again. And not 4xx, which
    // some senders take for the end.
    let retry = [(RETRY_AFTER, "5")];
    (StatusCode::SERVICE_UNAVAILABLE, retry, Json(settled)).into_response()
}

async fn settle<W, F>(receiver: Arc<Receiver<W>>, key_of: KeyOf, elements: Vec<Element>) -> Settled
where
    W: Fn(Element) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let mut settled = Settled::default();
    // The same element twice in one batch would meet itself in flight.
    let mut seen = HashSet::new();
    let mut new = Vec::new();
    for element in elements {
        let key = key_of(&element);
        if key.as_ref().is_none_or(|key| seen.insert(key.clone())) {
            new.push((key, element));
        } else {
            settled.duplicates += 1;
        }
    }
    let runs = stream::iter(new).map(|(key, element)| run(&receiver, key, element));
    let mut runs = runs.buffer_unordered(AT_ONCE);
    while let Some(ran) = runs.next().await {
        match ran {
            Ok(Ran::Completed(())) => settled.completed += 1,
            Ok(Ran::Done(_)) => settled.duplicates += 1,
            Ok(Ran::InFlight { .. }) => settled.in_flight += 1,
            Err(error) => {
                eprintln!("{error}");
                settled.failed += 1;
            }
        }
    }
    settled
}

/// Runs one element unless it is running or done.
async fn run<W, F>(
    receiver: &Receiver<W>,
    key: Option<Key>,
    element: Element,
) -> Result<Ran<()>, Box<dyn Error + Send + Sync>>
where
    W: Fn(Element) -> F + Send + Sync,
    F: Future<Output = Result<(), String>> + Send,
{
    match key {
        Some(key) => {
            let ran = receiver.dedup.run(&key, || (receiver.work)(element)).await;
            // What failed, and why: the error of the work, or of the store.
            ran.map_err(|error| format!("{key}: {error:?}").into())
        }
        // Each time it comes: two elements without an id are not one.
        None => Ok(Ran::Completed((receiver.work)(element).await?)),
    }
}
