//! What clients do with their connections, before a server as it is in the field.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Router, routing::post};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::{
        Semaphore,
        mpsc::{UnboundedReceiver, unbounded_channel},
    },
    task::JoinSet,
    time::timeout,
};
use tower_webhook_dedup::{DedupEvent, Duplicate, EventId, WebhookDedupLayer};

use connection::{LONG, http2, rest, until, write};
use events::is;
use front::MemoryStore;

#[path = "support/connection.rs"]
mod connection;
#[path = "support/events.rs"]
mod events;
#[path = "support/front.rs"]
mod front;

const EVENT: &str = r#"{"id":"e1"}"#;

/// Axum, with a handler that waits for leave to answer with this status.
struct Server {
    address: SocketAddr,
    layer: WebhookDedupLayer<MemoryStore>,
    runs: Arc<AtomicUsize>,
    leave: Arc<Semaphore>,
    events: UnboundedReceiver<DedupEvent>,
}

impl Server {
    async fn start(
        status: StatusCode,
        set: impl FnOnce(WebhookDedupLayer<MemoryStore>) -> WebhookDedupLayer<MemoryStore>,
    ) -> Self {
        let (event, events) = unbounded_channel();
        let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"))
            .on_event(move |happened| _ = event.send(happened.clone()));
        let layer = set(layer);
        let (runs, leave) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let (counted, wait) = (runs.clone(), leave.clone());
        let handler = move || async move {
            counted.fetch_add(1, Ordering::SeqCst);
            wait.acquire().await.unwrap().forget();
            status
        };
        let app = Router::new()
            .route("/hook", post(handler))
            .layer(layer.clone());
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            address,
            layer,
            runs,
            leave,
            events,
        }
    }

    /// The same, and the handler answers at once.
    async fn quick() -> Self {
        let server = Self::start(StatusCode::OK, |layer| layer).await;
        server.leave.add_permits(1000);
        server
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// What the server says to this until it closes the connection, in lower case.
    async fn answer(&self, request: &str) -> String {
        rest(write(self.address, request).await)
            .await
            .to_lowercase()
    }
}

/// A delivery to this target, with these headers.
fn delivery(target: &str, headers: &str) -> String {
    let length = EVENT.len();
    format!("POST {target} HTTP/1.1\r\n{headers}content-length: {length}\r\n\r\n{EVENT}")
}

const HOST: &str = "host: localhost\r\n";
const LAST: &str = "host: localhost\r\nconnection: close\r\n";

fn outcomes(answers: &str) -> Vec<&str> {
    let lines = answers.lines();
    lines
        .filter_map(|line| line.strip_prefix("webhook-dedup: "))
        .collect()
}

#[tokio::test]
async fn deliveries_in_a_pipeline_run_once() {
    let server = Server::quick().await;
    let (one, last) = (delivery("/hook", HOST), delivery("/hook", LAST));
    let answers = server.answer(&format!("{one}{one}{last}")).await;
    assert_eq!(outcomes(&answers), ["run", "duplicate", "duplicate"]);
    assert_eq!(server.runs(), 1);
}

/// Servers may take that for a hang-up, as hyper does unless it is told otherwise.
#[tokio::test]
async fn a_sender_that_closes_its_half_of_the_connection_has_its_event_completed() {
    let mut server = Server::start(StatusCode::OK, |layer| layer).await;
    let mut stream = write(server.address, &delivery("/hook", HOST)).await;
    until(&mut server.events, is!(Acquired)).await;
    stream.shutdown().await.unwrap();
    rest(stream).await;
    server.leave.add_permits(1);
    until(&mut server.events, is!(Completed)).await;
    let answer = server.answer(&delivery("/hook", LAST)).await;
    assert_eq!(outcomes(&answer), ["duplicate"]);
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_sender_that_asks_first_is_told_to_go_on_unless_its_body_is_too_long() {
    let server = Server::start(StatusCode::OK, |layer| layer.max_body(EVENT.len())).await;
    server.leave.add_permits(1);
    let (head, body) = (delivery("/hook", LAST), EVENT.len());
    let ask = head.replace("content-length", "expect: 100-continue\r\ncontent-length");
    let (ask, _) = ask.split_at(ask.len() - body);

    let mut stream = write(server.address, ask).await;
    let mut go_on = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    let read = timeout(LONG, stream.read_exact(&mut go_on)).await;
    read.unwrap().unwrap();
    assert!(go_on.starts_with(b"HTTP/1.1 100 "));
    stream.write_all(EVENT.as_bytes()).await.unwrap();
    assert_eq!(outcomes(&rest(stream).await.to_lowercase()), ["run"]);

    let too_long = ask.replace(&format!("length: {body}"), &format!("length: {}", body + 1));
    let answer = server.answer(&too_long).await;
    assert!(answer.starts_with("http/1.1 413 "), "{answer}");
}

#[tokio::test]
async fn however_the_target_is_written_it_is_the_same_event() {
    let server = Server::quick().await;
    let first = server.answer(&delivery("/hook", LAST)).await;
    assert_eq!(outcomes(&first), ["run"]);
    let long = format!("/hook?{}", "q".repeat(50_000));
    for (target, headers) in [
        ("http://localhost/hook", LAST),
        ("http://other.example:81/hook?a", LAST),
        ("/hook", "connection: close\r\n"),
        ("/hook", "host: a\r\nupgrade: b\r\nconnection: close\r\n"),
        (
            "/hook",
            "x-a: 1\r\nx-a: 1\r\nx-a: \u{e9}\r\nconnection: close\r\n",
        ),
        (&long, LAST),
    ] {
        let answer = server.answer(&delivery(target, headers)).await;
        assert_eq!(outcomes(&answer), ["duplicate"], "{headers}");
    }
    // An older version, in which a connection is closed after its answer.
    let old = delivery("/hook", "").replace("HTTP/1.1", "HTTP/1.0");
    let answer = server.answer(&old).await;
    assert!(answer.starts_with("http/1.0 200 "), "{answer}");
    assert_eq!(outcomes(&answer), ["duplicate"]);
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_hundred_streams_of_one_event_on_one_connection_run_once() {
    let mut server = Server::start(StatusCode::OK, |layer| layer).await;
    let client = http2(server.address).await;
    let send = || {
        let mut client = client.clone();
        async move {
            let request = Request::post("http://localhost/hook").body(Full::from(EVENT));
            client.ready().await.unwrap();
            let answer = client.send_request(request.unwrap()).await.unwrap();
            let outcome = answer.headers()["webhook-dedup"].clone();
            _ = answer.into_body().collect().await.unwrap();
            outcome
        }
    };
    let first = tokio::spawn(send());
    until(&mut server.events, is!(Acquired)).await;
    let others: JoinSet<_> = (0..100).map(|_| send()).collect();
    let others = timeout(LONG, others.join_all()).await.unwrap();
    assert!(others.iter().all(|it| it == "standby"), "{others:?}");
    server.leave.add_permits(1);
    assert_eq!(timeout(LONG, first).await.unwrap().unwrap(), "run");
    assert_eq!(timeout(LONG, send()).await.unwrap(), "duplicate");
    let drained = server.layer.drain_handle().drain(LONG).await;
    assert!(drained.is_complete(), "{drained:?}");
    assert_eq!(server.runs(), 1);
}

/// A length, or a body, would be taken for the next answer.
#[tokio::test]
async fn an_answer_without_a_body_is_given_again_without_one() {
    let replay = |layer: WebhookDedupLayer<_>| layer.duplicate(Duplicate::Replay { max_body: 100 });
    let server = Server::start(StatusCode::NO_CONTENT, replay).await;
    server.leave.add_permits(1);
    let (one, last) = (delivery("/hook", HOST), delivery("/hook", LAST));
    let answers = server.answer(&format!("{one}{last}")).await;
    assert_eq!(outcomes(&answers), ["run", "duplicate"]);
    assert_eq!(answers.matches("http/1.1 204 ").count(), 2, "{answers}");
    assert!(!answers.contains("content-length"), "{answers}");
    assert!(answers.ends_with("\r\n\r\n"), "{answers}");
}
