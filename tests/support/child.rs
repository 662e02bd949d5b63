//! A server in a process of its own, which can be killed. What its handler does is written down
//! in Redis, by a connection that has nothing to do with the store, so that it outlives the
//! process.

#![allow(dead_code, reason = "no test uses all of it")]

use std::{
    env, io,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use redis::{AsyncCommands as _, aio::MultiplexedConnection};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep, timeout},
};
use tower_webhook_dedup::{DedupEvent, EventId, InFlight, WebhookDedupLayer};

pub(crate) use crate::support::Answer;
use crate::support::{Front, PATIENCE, RedisServer, store_at, until};

/// The test that is a server in a child process, and nothing otherwise.
const SERVER: &str = "child_server";

const STORE: &str = "CHILD_SERVER_STORE";
const LEDGER: &str = "CHILD_SERVER_LEDGER";
const NAME: &str = "CHILD_SERVER_NAME";
const LEASE: &str = "CHILD_SERVER_LEASE_MS";
const RETRY_LATER: &str = "CHILD_SERVER_RETRY_LATER";
const DRAIN: &str = "CHILD_SERVER_DRAIN_MS";

/// How a child is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) lease: Duration,
    pub(crate) retry_later: bool,
    /// For how long it drains at the end.
    pub(crate) drain: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(2),
            retry_later: false,
            drain: PATIENCE,
        }
    }
}

/// Serves until it is told to stop; in a process that is not a child, does nothing.
pub(crate) fn serve() {
    let Ok(store) = env::var(STORE) else { return };
    // Whoever started it is gone: so must it be, however that came about.
    thread::spawn(|| {
        drop(io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(1);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(&store));
    std::process::exit(0);
}

async fn run(store: &str) {
    let number = |name| env::var(name).unwrap().parse().unwrap();
    let lease = Duration::from_millis(number(LEASE));
    let in_flight = match &*env::var(RETRY_LATER).unwrap() {
        "true" => InFlight::RetryLater,
        _ => InFlight::Acknowledge,
    };
    let store = Front::of(store_at(store));
    let layer = WebhookDedupLayer::new(store, EventId::pointer("/id"))
        .namespace("t")
        .lease(lease)
        .store_timeout(lease / 4)
        .in_flight(in_flight)
        .on_event(|event| match event {
            DedupEvent::Detached { key } => println!("detached: {key}"),
            DedupEvent::LeaseLost { key } => println!("lease lost: {key}"),
            _ => {}
        });
    let drain = layer.drain_handle();
    let client = redis::Client::open(env::var(LEDGER).unwrap()).unwrap();
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let ledger = client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap();
    let app = Router::new()
        .route("/hooks/x", post(handle))
        .layer(layer)
        .with_state(ledger);

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut stop = signal(SignalKind::terminate()).unwrap();
    println!("listening on {}", listener.local_addr().unwrap());
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            stop.recv().await;
        })
        .await
        .unwrap();
    let drained = drain.drain(Duration::from_millis(number(DRAIN))).await;
    println!("drained: complete={}", drained.is_complete());
    for lost in drained.lost() {
        let body = String::from_utf8_lossy(lost.request.body());
        println!("lost: {body}");
    }
}

/// Obeys `x-sleep-ms` and `x-status`, and writes down when it begins and when it has completed.
async fn handle(
    State(mut ledger): State<MultiplexedConnection>,
    headers: HeaderMap,
    body: String,
) -> StatusCode {
    let number = |name| -> Option<u64> { headers.get(name)?.to_str().unwrap().parse().ok() };
    let id = body.split('"').nth(3).unwrap();
    let name = env::var(NAME).unwrap();
    let begun: redis::RedisResult<i64> = ledger.rpush(format!("started:{id}"), &name).await;
    begun.unwrap();
    if let Some(millis) = number("x-sleep-ms") {
        sleep(Duration::from_millis(millis)).await;
    }
    let status = number("x-status").map_or(StatusCode::OK, |status| {
        StatusCode::from_u16(u16::try_from(status).unwrap()).unwrap()
    });
    if status.is_success() {
        let ended: redis::RedisResult<i64> = ledger.rpush(format!("completed:{id}"), &name).await;
        ended.unwrap();
    }
    status
}

/// A child, which ends with this.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    sender: Sender,
    output: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// Starts a child with a layer over this server, and waits until it listens.
    pub(crate) async fn start(server: &RedisServer, name: &str) -> Self {
        Self::with(server, name, Setup::default()).await
    }

    pub(crate) async fn with(server: &RedisServer, name: &str, setup: Setup) -> Self {
        Self::over(&server.url(), server, name, setup).await
    }

    /// The same with the store at this URL.
    pub(crate) async fn over(store: &str, ledger: &RedisServer, name: &str, setup: Setup) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", SERVER, "--nocapture", "--test-threads=1"])
            .env(STORE, store)
            .env(LEDGER, ledger.url())
            .env(NAME, name)
            .env(LEASE, setup.lease.as_millis().to_string())
            .env(RETRY_LATER, setup.retry_later.to_string())
            .env(DRAIN, setup.drain.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = Arc::<Mutex<Vec<String>>>::default();
        let (stdout, lines) = (child.stdout.take().unwrap(), output.clone());
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        let mut process = Self {
            child,
            sender: Sender(([127, 0, 0, 1], 0).into()),
            output,
        };
        // The line begins with what the test harness has to say.
        until("the child listens", async || {
            process.line("listening on ").is_some()
        })
        .await;
        process.sender = Sender(process.line("listening on ").unwrap().parse().unwrap());
        process
    }

    /// The rest of the first line that has this in it.
    pub(crate) fn line(&self, start: &str) -> Option<String> {
        let output = self.output.lock().unwrap();
        let mut lines = output.iter().filter_map(|line| line.split_once(start));
        lines.next().map(|(_, rest)| rest.to_owned())
    }

    /// Ends the process where it is, without a goodbye (`SIGKILL`).
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop, as a supervisor does.
    pub(crate) fn terminate(&self) {
        self.signal("-TERM");
    }

    /// Stops the process where it is, to go on later.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(status.unwrap().success(), "kill {signal}");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let end = Instant::now() + 2 * PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the child does not end");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Stops it, and expects that it leaves nothing open.
    pub(crate) async fn stop(mut self) {
        self.terminate();
        assert!(self.ended().await.success());
        until("all is read", async || self.line("drained: ").is_some()).await;
        assert_eq!(self.line("drained: ").unwrap(), "complete=true");
    }

    pub(crate) const fn sender(&self) -> Sender {
        self.sender
    }

    pub(crate) async fn send(&self, id: &str, headers: &[(&str, &str)]) -> Answer {
        self.sender.send(id, headers).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Who delivers events to a child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender(SocketAddr);

impl Sender {
    /// Delivers the event over a connection of its own.
    pub(crate) async fn send(self, id: &str, headers: &[(&str, &str)]) -> Answer {
        let start = Instant::now();
        let mut stream = self.begin(id, headers).await.unwrap();
        let mut text = String::new();
        let read = timeout(PATIENCE, stream.read_to_string(&mut text));
        read.await.expect("an answer in time").unwrap();
        Answer::parse(&text, start.elapsed()).expect("an answer")
    }

    /// Delivers the event, and does not wait for the answer.
    pub(crate) async fn begin(self, id: &str, headers: &[(&str, &str)]) -> io::Result<TcpStream> {
        let body = format!(r#"{{"id":"{id}","n":1}}"#);
        let mut text = format!(
            "POST /hooks/x HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        );
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += &format!("\r\n{body}");
        let mut stream = TcpStream::connect(self.0).await?;
        stream.write_all(text.as_bytes()).await?;
        Ok(stream)
    }
}

impl Answer {
    fn parse(text: &str, took: Duration) -> Option<Self> {
        let (head, _) = text.split_once("\r\n\r\n")?;
        let header = |name: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(": "));
            let mut found = lines.filter(|(other, _)| other.eq_ignore_ascii_case(name));
            Some(found.next()?.1.to_owned())
        };
        Some(Self {
            status: head.split(' ').nth(1)?.parse().ok()?,
            outcome: header("webhook-dedup").unwrap_or_default(),
            retry_after: header("retry-after").map(|it| it.parse().unwrap()),
            took,
        })
    }
}
