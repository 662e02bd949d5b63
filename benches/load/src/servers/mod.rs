//! The servers under test. What differs is in a file each; the rest is the same for all.

mod axum_idempotent;
mod hand_rolled;
mod idempotent;
mod layer;

use std::{
    hint::black_box,
    io::{self, Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::Bytes,
    http::StatusCode,
    routing::{get, post},
    serve::ListenerExt,
};
use clap::ValueEnum;
use tokio::{net::TcpListener, runtime::Builder};
use tower_webhook_dedup::{MemoryStore, RedisStore};
use tracing_subscriber::filter::LevelFilter;

use crate::{Result, lab::Lab, process::Process, redis_server::RedisServer};

/// A server under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Server {
    /// axum alone; the handler reads the body.
    Bare,
    /// `SET NX EX`, as people write it.
    HandRolled,
    /// This layer on Redis, everything at its default.
    Layer,
    /// The same, and the connection does not sleep while a reply is awaited.
    BusyPoll,
    /// This layer on Redis, with `Cached` around the store.
    Cached,
    /// The same, and the layer recognises recent bodies.
    Recent,
    /// This layer on `MemoryStore`.
    Memory,
    /// The crate `idempotent`.
    Idempotent,
    /// The crate `axum-idempotent`.
    AxumIdempotent,
}

impl Server {
    pub(crate) const ALL: [Self; 9] = [
        Self::Bare,
        Self::HandRolled,
        Self::Layer,
        Self::BusyPoll,
        Self::Cached,
        Self::Recent,
        Self::Memory,
        Self::Idempotent,
        Self::AxumIdempotent,
    ];

    /// As the tables have it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare axum",
            Self::HandRolled => "hand-rolled SET NX EX",
            Self::Layer => "layer, Redis",
            Self::BusyPoll => "layer, Redis, busy_poll",
            Self::Cached => "layer, Cached on Redis",
            Self::Recent => "layer, Cached, recent bodies",
            Self::Memory => "layer, MemoryStore",
            Self::Idempotent => "idempotent 2.0, Redis",
            Self::AxumIdempotent => "axum-idempotent 0.6, Redis",
        }
    }

    /// Why it cannot be measured on this Redis.
    pub(crate) fn obstacle(self, redis: &mut RedisServer) -> Result<Option<&'static str>> {
        if self == Self::AxumIdempotent && !redis.knows("HEXPIRE")? {
            return Ok(Some(
                "it needs HEXPIRE, which came with Redis 7.4 and Valkey 9.0",
            ));
        }
        Ok(None)
    }

    async fn app(self, redis: &str) -> Result<Router> {
        let app = Router::new()
            .route("/webhook", post(handle))
            .route("/failing", post(fail));
        match self {
            Self::Bare => Ok(app),
            Self::HandRolled => hand_rolled::app(redis).await,
            Self::Layer => Ok(app.layer(layer::layer(RedisStore::open(redis)?))),
            Self::BusyPoll => Ok(app.layer(layer::busy_poll(redis)?)),
            Self::Cached => Ok(app.layer(layer::cached(redis)?)),
            Self::Recent => Ok(app.layer(layer::cached(redis)?.recent_bodies(64))),
            Self::Memory => Ok(app.layer(layer::layer(MemoryStore::new()))),
            Self::Idempotent => Ok(app.layer(idempotent::layer(redis).await?)),
            Self::AxumIdempotent => axum_idempotent::around(app, redis).await,
        }
    }
}

/// How often the handler ran.
static RUNS: AtomicUsize = AtomicUsize::new(0);

async fn handle(body: Bytes) -> &'static str {
    RUNS.fetch_add(1, Ordering::Relaxed);
    black_box(body.len());
    "ok"
}

async fn fail(body: Bytes) -> StatusCode {
    black_box(body.len());
    StatusCode::INTERNAL_SERVER_ERROR
}

async fn runs() -> String {
    RUNS.load(Ordering::Relaxed).to_string()
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
        // Past every layer.
        let app = server.app(redis).await?.route("/runs", get(runs));
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
    /// How often its handler ran.
    pub(crate) fn runs(&self) -> Result<usize> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.write_all(b"GET /runs HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.rsplit("\r\n").next().unwrap_or_default().parse()?)
    }
}
