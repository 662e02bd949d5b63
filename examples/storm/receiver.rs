//! The server that receives the storm.

use std::{
    error::Error,
    future::IntoFuture,
    net::SocketAddr,
    panic::resume_unwind,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use axum::{
    Json, Router, extract::State, http::StatusCode, middleware::from_fn_with_state, routing::post,
};
use fastrand::Rng;
use tokio::{
    net::TcpListener,
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tower_webhook_dedup::{
    BoxStore, DrainHandle, Drained, EventId, LeaseStore, Limits, MemoryStore, RedisStore,
    WebhookDedupLayer,
};

use super::{
    Options,
    ledger::Ledger,
    naive,
    plan::{Fault, Payload},
};

/// How long the background work may take after the last request.
const DRAIN: Duration = Duration::from_secs(30);

/// Room for so few that the sender meets the end of it.
const STANDBYS: usize = 128;

pub(crate) struct Receiver {
    address: SocketAddr,
    ledger: Arc<Ledger>,
    server: JoinHandle<std::io::Result<()>>,
    stop: oneshot::Sender<()>,
    /// Where there is a layer.
    drain: Option<DrainHandle>,
}

impl Receiver {
    pub(crate) async fn start(
        options: &Options,
        ledger: Arc<Ledger>,
    ) -> Result<Self, Box<dyn Error>> {
        // Storms on one Redis must not see each other's events.
        let namespace = format!("storm-{:016x}", Rng::new().u64(..));
        let handler = post(handle).with_state(ledger.clone());
        let mut drain = None;
        let handler = if options.without_layer {
            handler
        } else if options.naive {
            let locks = naive::Locks::open(options.redis.as_deref(), namespace).await?;
            handler.layer(from_fn_with_state(locks, naive::guard))
        } else {
            let dedup = dedup(store(options.redis.as_deref())?, &namespace);
            drain = Some(dedup.drain_handle());
            handler.layer(dedup)
        };

        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let server = axum::serve(listener, Router::new().route("/webhook", handler))
            .with_graceful_shutdown(async { _ = stopped.await });
        Ok(Self {
            address,
            ledger,
            server: tokio::spawn(server.into_future()),
            stop,
            drain,
        })
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers what is here, drains, and waits until the handler is at rest.
    pub(crate) async fn stop(self) -> Option<Drained> {
        drop(self.stop);
        _ = timeout(DRAIN, self.server).await;
        let drained = match self.drain {
            Some(drain) => Some(drain.drain(DRAIN).await),
            None => None,
        };
        let rest = Instant::now() + DRAIN;
        while !self.ledger.is_idle() && Instant::now() < rest {
            sleep(Duration::from_millis(10)).await;
        }
        drained
    }
}

fn store(redis: Option<&str>) -> Result<BoxStore, Box<dyn Error>> {
    Ok(match redis {
        Some(url) => RedisStore::open(url)?.boxed(),
        None => MemoryStore::new().boxed(),
    })
}

/// The layer, with times that fit a storm of a few seconds.
fn dedup(store: BoxStore, namespace: &str) -> WebhookDedupLayer<BoxStore> {
    WebhookDedupLayer::new(store, EventId::pointer("/id"))
        .namespace(namespace)
        .lease(Duration::from_secs(4))
        .retention(Duration::from_secs(120))
        .limits(Limits::default().standbys(STANDBYS))
}

/// Does as the event says. What it does counts when it is done, and only then.
async fn handle(State(ledger): State<Arc<Ledger>>, Json(event): Json<Payload>) -> StatusCode {
    let (run, _running) = ledger.begin(&event.id);
    sleep(Duration::from_millis(event.work_ms)).await;
    match event.faults.get(run) {
        Some(Fault::Fail) => {
            ledger.failed.fetch_add(1, Relaxed);
            StatusCode::INTERNAL_SERVER_ERROR
        }
        Some(Fault::Panic) => {
            ledger.panicked.fetch_add(1, Relaxed);
            // A panic like any other, without the message that would fill the screen.
            resume_unwind(Box::new("the event asked for it"));
        }
        None => {
            ledger.complete(&event.id);
            StatusCode::OK
        }
    }
}
