//! The servers under test. What differs is in a file each; the rest is the same for all.

mod hand_rolled;
mod idempotent;
mod layer;

use std::{hint::black_box, io};

use axum::{Router, body::Bytes, http::StatusCode, routing::post, serve::ListenerExt};
use clap::ValueEnum;
use tokio::{net::TcpListener, runtime::Builder};
use tower_webhook_dedup::{Cached, MemoryStore, RedisStore};
use tracing_subscriber::filter::LevelFilter;

use crate::{Result, lab::Lab, process::Process};

/// A server under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Server {
    /// axum alone; the handler reads the body.
    Bare,
    /// `SET NX EX`, as people write it.
    HandRolled,
    /// This layer on Redis, everything at its default.
    Layer,
    /// The same, with `Cached` around the store.
    Cached,
    /// This layer on `MemoryStore`.
    Memory,
    /// The crate `idempotent`.
    Idempotent,
}

impl Server {
    pub(crate) const ALL: [Self; 6] = [
        Self::Bare,
        Self::HandRolled,
        Self::Layer,
        Self::Cached,
        Self::Memory,
        Self::Idempotent,
    ];

    /// As the tables have it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare axum",
            Self::HandRolled => "hand-rolled SET NX EX",
            Self::Layer => "layer, Redis",
            Self::Cached => "layer, Cached on Redis",
            Self::Memory => "layer, MemoryStore",
            Self::Idempotent => "idempotent 2.0, Redis",
        }
    }

    async fn app(self, redis: &str) -> Result<Router> {
        let app = Router::new()
            .route("/webhook", post(handle))
            .route("/failing", post(fail));
        match self {
            Self::Bare => Ok(app),
            Self::HandRolled => hand_rolled::app(redis).await,
            Self::Layer => Ok(app.layer(layer::layer(RedisStore::open(redis)?))),
            Self::Cached => Ok(app.layer(layer::layer(Cached::new(RedisStore::open(redis)?)))),
            Self::Memory => Ok(app.layer(layer::layer(MemoryStore::new()))),
            Self::Idempotent => Ok(app.layer(idempotent::layer(redis).await?)),
        }
    }
}

async fn handle(body: Bytes) -> &'static str {
    black_box(body.len());
    "ok"
}

async fn fail(body: Bytes) -> StatusCode {
    black_box(body.len());
    StatusCode::INTERNAL_SERVER_ERROR
}

/// Serves on one worker thread, until the process is ended. What is logged costs as in production, and
/// goes nowhere: an answer that is not 2xx is counted.
pub(crate) fn serve(server: Server, redis: &str) -> Result<()> {
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::INFO)
        .with_writer(io::sink)
        .init();
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let app = server.app(redis).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
        Ok(axum::serve(listener, app).await?)
    })
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) process: Process,
    pub(crate) port: u16,
}

impl Running {
    /// Starts the server, and waits until it listens.
    pub(crate) fn start(server: Server, lab: &Lab) -> Result<Self> {
        let name = server.to_possible_value().ok_or("a hidden server")?;
        let role = ["serve", name.get_name(), &lab.redis.url()];
        let mut process = Process::start(lab.cores.map(|cores| cores.server), &role)?;
        let port = process.line()?.parse()?;
        Ok(Self { process, port })
    }
}
