//! The server that receives the storm.

use std::{
    error::Error, future::IntoFuture, net::SocketAddr, panic::resume_unwind, sync::Arc,
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    middleware::{from_fn_with_state, map_response},
    response::Response,
    routing::post,
};
use tokio::{
    net::TcpListener,
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tower_webhook_dedup::{
    BoxStore, DedupEvent, DrainHandle, EventId, Key, LeaseStore, Limits, Lost, MemoryStore,
    RedisStore, WebhookDedupLayer,
};

use super::{
    book::{Book, INCARNATION},
    ledger::What,
    naive,
    options::Guard,
    plan::{Fault, Payload},
};

/// How long the background work may take after the last request.
pub(crate) const DRAIN: Duration = Duration::from_secs(30);

/// Room for so few that the sender meets the end of it.
const STANDBYS: usize = 128;

pub(crate) struct Receiver {
    address: SocketAddr,
    book: Arc<Book>,
    server: JoinHandle<std::io::Result<()>>,
    stop: oneshot::Sender<()>,
    /// Where there is a layer.
    drain: Option<DrainHandle>,
}

impl Receiver {
    pub(crate) async fn start(
        guard: Guard,
        redis: Option<&str>,
        namespace: String,
        book: Arc<Book>,
    ) -> Result<Self, Box<dyn Error>> {
        let handler = post(handle).with_state(book.clone());
        let mut drain = None;
        let handler = match guard {
            Guard::Nothing => handler,
            Guard::Naive => {
                let locks = naive::Locks::open(redis, namespace).await?;
                handler.layer(from_fn_with_state(locks, naive::guard))
            }
            Guard::Layer => {
                let dedup = dedup(store(redis)?, &namespace, book.clone());
                drain = Some(dedup.drain_handle());
                handler.layer(dedup)
            }
        };
        let by = book.incarnation();
        let handler = handler.layer(map_response(move |mut response: Response| async move {
            response.headers_mut().insert(INCARNATION, by.into());
            response
        }));

        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let server = axum::serve(listener, Router::new().route("/webhook", handler))
            .with_graceful_shutdown(async { _ = stopped.await });
        Ok(Self {
            address,
            book,
            server: tokio::spawn(server.into_future()),
            stop,
            drain,
        })
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers what is here, drains, and waits until the handler is at rest. Tells whether draining
    /// left nothing over.
    pub(crate) async fn stop(self) -> bool {
        drop(self.stop);
        _ = timeout(DRAIN, self.server).await;
        let drained = match self.drain {
            Some(drain) => drain.drain(DRAIN).await.is_complete(),
            None => true,
        };
        let rest = Instant::now() + DRAIN;
        while !self.book.is_idle() && Instant::now() < rest {
            sleep(Duration::from_millis(10)).await;
        }
        self.book.settle().await;
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
fn dedup(store: BoxStore, namespace: &str, book: Arc<Book>) -> WebhookDedupLayer<BoxStore> {
    WebhookDedupLayer::new(store, EventId::pointer("/id"))
        .namespace(namespace)
        .lease(Duration::from_secs(4))
        .retention(Duration::from_secs(120))
        .limits(Limits::default().standbys(STANDBYS))
        .on_event(move |event| match event {
            DedupEvent::Completed { key, .. } => book.write_later(id(key), What::Recorded),
            DedupEvent::Lost(Lost { key, .. }) => book.write_later(id(key), What::Lost),
            _ => {}
        })
}

/// `webhook:lock:{namespace}:{event id}:{hash}`; the ids of a storm need no encoding.
fn id(key: &Key) -> &str {
    key.as_str().split(':').nth(3).unwrap_or_default()
}

/// Does as the event says. What it does counts when it is done, and only then.
async fn handle(State(book): State<Arc<Book>>, Json(event): Json<Payload>) -> StatusCode {
    let (run, _running) = book.begin(&event.id).await;
    sleep(Duration::from_millis(event.work_ms)).await;
    match event.faults.get(run) {
        Some(Fault::Fail) => {
            book.write(&event.id, What::Failed).await;
            StatusCode::INTERNAL_SERVER_ERROR
        }
        Some(Fault::Panic) => {
            book.write(&event.id, What::Panicked).await;
            // A panic like any other, without the message that would fill the screen.
            resume_unwind(Box::new("the event asked for it"));
        }
        None => {
            book.write(&event.id, What::Completed { run }).await;
            StatusCode::OK
        }
    }
}
