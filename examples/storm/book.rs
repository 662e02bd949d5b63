//! How a handler writes to the ledger: in the same process, or over HTTP in its parent's.

use std::{
    error::Error,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::HeaderMap,
    routing::post,
};
use bytes::Bytes;
use http::{HeaderName, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use super::ledger::{Incarnation, Ledger, What};

/// Which server wrote or answered this.
pub(crate) const INCARNATION: HeaderName = HeaderName::from_static("storm-incarnation");

pub(crate) struct Book {
    by: Incarnation,
    ledger: Place,
    later: TaskTracker,
    running: AtomicUsize,
}

enum Place {
    Here(Arc<Ledger>),
    There(Box<There>),
}

struct There {
    address: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// The ledger in this process.
pub(crate) fn here(ledger: Arc<Ledger>) -> Arc<Book> {
    Book::new(0, Place::Here(ledger))
}

/// The ledger behind this address.
pub(crate) fn there(address: SocketAddr, by: Incarnation) -> Arc<Book> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    Book::new(by, Place::There(Box::new(There { address, client })))
}

impl Book {
    fn new(by: Incarnation, ledger: Place) -> Arc<Self> {
        Arc::new(Self {
            by,
            ledger,
            later: TaskTracker::new(),
            running: AtomicUsize::new(0),
        })
    }

    pub(crate) const fn incarnation(&self) -> Incarnation {
        self.by
    }

    /// A run begins. Tells how many there were before.
    pub(crate) async fn begin(self: &Arc<Self>, id: &str) -> (usize, Running) {
        self.running.fetch_add(1, Relaxed);
        let running = Running(self.clone());
        (self.write(id, What::Began).await, running)
    }

    /// Returns when it is written down.
    pub(crate) async fn write(&self, id: &str, what: What) -> usize {
        match &self.ledger {
            Place::Here(ledger) => ledger.write(id, self.by, what),
            Place::There(there) => match there.write(id, self.by, what).await {
                Ok(runs) => runs,
                // From here on, nothing that this process does could be judged.
                Err(error) => {
                    eprintln!("the ledger does not answer: {error}");
                    std::process::exit(1);
                }
            },
        }
    }

    /// Writes it down some time soon, for those who cannot wait.
    pub(crate) fn write_later(self: &Arc<Self>, id: &str, what: What) {
        let (book, id) = (self.clone(), id.to_owned());
        self.later.spawn(async move { book.write(&id, what).await });
    }

    /// Waits until all is written down.
    pub(crate) async fn settle(&self) {
        self.later.close();
        self.later.wait().await;
    }

    /// Whether no run goes on.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.load(Relaxed) == 0
    }
}

/// A run that goes on; also when its future is dropped, it is over.
pub(crate) struct Running(Arc<Book>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
    }
}

impl There {
    async fn write(
        &self,
        id: &str,
        by: Incarnation,
        what: What,
    ) -> Result<usize, Box<dyn Error + Send + Sync>> {
        let request = Request::post(format!("http://{}/{id}", self.address))
            .header("content-type", "application/json")
            .header(INCARNATION, by)
            .body(Full::from(serde_json::to_vec(&what)?))?;
        let response = self.client.request(request).await?;
        let runs = response.into_body().collect().await?;
        Ok(serde_json::from_slice(&runs.to_bytes())?)
    }
}

/// Lets other processes write to the ledger, for as long as this one lives.
pub(crate) async fn open(ledger: Arc<Ledger>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = Router::new().route("/{id}", post(write)).with_state(ledger);
    tokio::spawn(async { axum::serve(listener, app).await });
    Ok(address)
}

async fn write(
    State(ledger): State<Arc<Ledger>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(what): Json<What>,
) -> Result<Json<usize>, &'static str> {
    let by = incarnation(&headers).ok_or("who writes this?")?;
    Ok(Json(ledger.write(&id, by, what)))
}

/// Who wrote or answered it.
pub(crate) fn incarnation(headers: &HeaderMap) -> Option<Incarnation> {
    headers.get(INCARNATION)?.to_str().ok()?.parse().ok()
}
