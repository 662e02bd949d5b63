//! The layer over real connections: exact lengths, and senders that hang up.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, header::CONTENT_LENGTH};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::{
        Semaphore,
        mpsc::{UnboundedReceiver, unbounded_channel},
    },
    task::JoinHandle,
    time::timeout,
};
use tower::{Layer, Service, service_fn};
use tower_webhook_dedup::{
    DedupEvent, Delivery, EventId, OnDisconnect, Refusal, RequestBody, WebhookDedupLayer,
};

use connection::{Client, LONG, http2, rest, until, write};
use echo::{DUPLICATE, EVENT, echo, layer, outcome, text};
use events::is;
use front::MemoryStore;

#[path = "support/connection.rs"]
mod connection;
#[path = "support/echo.rs"]
mod echo;
#[path = "support/events.rs"]
mod events;
#[path = "support/front.rs"]
mod front;

#[derive(Clone, Copy)]
enum Version {
    Http1,
    Http2,
}

/// Serves on the loopback device until the test ends.
async fn serve<S, B>(version: Version, service: S) -> SocketAddr
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data: Send, Error: std::error::Error + Send + Sync> + Send + 'static,
{
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (stream, service) = (
                TokioIo::new(stream),
                TowerToHyperService::new(service.clone()),
            );
            // That a client hangs up is an error of its connection.
            match version {
                Version::Http1 => {
                    let server = hyper::server::conn::http1::Builder::new();
                    tokio::spawn(async move { _ = server.serve_connection(stream, service).await });
                }
                Version::Http2 => {
                    let executor = TokioExecutor::new();
                    let server = hyper::server::conn::http2::Builder::new(executor);
                    tokio::spawn(async move { _ = server.serve_connection(stream, service).await });
                }
            }
        }
    });
    address
}

/// The head, in lower case, and the body of the answer on a connection that is closed after it.
async fn answer(stream: TcpStream) -> (String, String) {
    let all = rest(stream).await;
    let (head, body) = all.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

fn http1(body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST /hook HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

// R62, R68
#[tokio::test]
async fn duplicates_over_http1_have_their_exact_length() {
    let address = serve(Version::Http1, layer().layer(echo())).await;
    let (head, body) = answer(write(address, &http1(EVENT)).await).await;
    assert!(head.starts_with("http/1.1 200 ok"), "{head}");
    assert!(head.contains("\r\nwebhook-dedup: run"), "{head}");
    assert_eq!(body, EVENT);
    let (head, body) = answer(write(address, &http1(EVENT)).await).await;
    assert!(head.starts_with("http/1.1 200 ok"), "{head}");
    assert!(head.contains("\r\nwebhook-dedup: duplicate"), "{head}");
    assert!(head.contains("\r\ncontent-length: 59"), "{head}");
    assert!(
        head.contains("\r\ncontent-type: application/json"),
        "{head}"
    );
    assert!(!head.contains("transfer-encoding"), "{head}");
    assert_eq!(body, DUPLICATE);
    assert_eq!(body.len(), 59);
}

// R39
#[tokio::test]
async fn bodies_over_the_limit_are_refused_whether_declared_or_chunked() {
    const LIMIT: usize = 64 * 1024;
    let store = MemoryStore::new();
    let layer = WebhookDedupLayer::new(store.clone(), EventId::pointer("/id")).max_body(LIMIT);
    let address = serve(Version::Http1, layer.layer(echo())).await;
    let body = |length: usize| {
        let (open, close) = (r#"{"id":"e1","pad":""#, r#""}"#);
        let pad = "x".repeat(length - open.len() - close.len());
        format!("{open}{pad}{close}")
    };
    let head = "POST /hook HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let chunked = |body: &str| {
        let chunks: String = body
            .as_bytes()
            .chunks(1000)
            .map(|chunk| {
                format!(
                    "{:x}\r\n{}\r\n",
                    chunk.len(),
                    str::from_utf8(chunk).unwrap()
                )
            })
            .collect();
        format!("{head}transfer-encoding: chunked\r\n\r\n{chunks}")
    };

    // Declared: refused before a byte of it is sent.
    let declared = format!("{head}content-length: {}\r\n\r\n", LIMIT + 1);
    let (head_of, _) = answer(write(address, declared.as_bytes()).await).await;
    assert!(head_of.starts_with("http/1.1 413"), "{head_of}");
    assert!(head_of.contains("webhook-dedup: refused"), "{head_of}");

    // Chunked, and without an end.
    let endless = chunked(&body(LIMIT + 1));
    let (head_of, _) = answer(write(address, endless.as_bytes()).await).await;
    assert!(head_of.starts_with("http/1.1 413"), "{head_of}");
    assert!(store.is_empty());

    // Exactly the limit passes, either way: it is the same event.
    let (head_of, echoed) = answer(write(address, &http1(&body(LIMIT))).await).await;
    assert!(head_of.contains("webhook-dedup: run"), "{head_of}");
    assert_eq!(echoed.len(), LIMIT);
    let whole = chunked(&body(LIMIT)) + "0\r\n\r\n";
    let (head_of, _) = answer(write(address, whole.as_bytes()).await).await;
    assert!(head_of.contains("webhook-dedup: duplicate"), "{head_of}");
}

// R65
#[tokio::test]
async fn a_sender_that_dies_in_the_middle_of_its_body_leaves_nothing() {
    let (events, mut happened) = unbounded_channel();
    let store = MemoryStore::new();
    let layer = WebhookDedupLayer::new(store.clone(), EventId::pointer("/id"))
        .on_event(move |event| _ = events.send(event.clone()));
    let address = serve(Version::Http1, layer.layer(echo())).await;
    let whole = http1(EVENT);
    let mut stream = write(address, &whole[..whole.len() - 3]).await;
    stream.shutdown().await.unwrap();
    until(&mut happened, |event| {
        matches!(
            event,
            DedupEvent::Refused {
                refusal: Refusal::BodyBroken
            }
        )
    })
    .await;
    assert!(store.is_empty());
    let (head, _) = answer(write(address, &whole).await).await;
    assert!(head.contains("webhook-dedup: run"), "{head}");
}

/// A server whose handler waits for leave to answer.
struct Server {
    layer: WebhookDedupLayer<MemoryStore>,
    address: SocketAddr,
    version: Version,
    /// The runs, as they begin.
    runs: UnboundedReceiver<Delivery>,
    events: UnboundedReceiver<DedupEvent>,
    leave: Arc<Semaphore>,
}

impl Server {
    async fn start(version: Version, on_disconnect: OnDisconnect) -> Self {
        let (run, runs) = unbounded_channel();
        let (event, events) = unbounded_channel();
        let leave = Arc::new(Semaphore::new(0));
        let layer = layer()
            .on_disconnect(on_disconnect)
            .on_event(move |happened| _ = event.send(happened.clone()));
        let wait = leave.clone();
        let handler = service_fn(move |request: Request<RequestBody<Incoming>>| {
            let delivery = request.extensions().get::<Delivery>().unwrap().clone();
            run.send(delivery).unwrap();
            let wait = wait.clone();
            async move {
                wait.acquire().await.unwrap().forget();
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
            }
        });
        let address = serve(version, layer.layer(handler)).await;
        Self {
            layer,
            address,
            version,
            runs,
            events,
            leave,
        }
    }

    /// Sends a delivery; dropping what is returned hangs up on it.
    async fn send(&self) -> HangUp {
        match self.version {
            Version::Http1 => HangUp::Connection(write(self.address, &http1(EVENT)).await),
            Version::Http2 => {
                let mut client = http2(self.address).await;
                let request = Request::post("http://localhost/hook").body(Full::from(EVENT));
                let answer = client.send_request(request.unwrap());
                // The connection stays open: only the stream is reset.
                HangUp::Stream(tokio::spawn(async move { _ = answer.await }), client)
            }
        }
    }

    /// The outcome of a delivery that is waited for.
    async fn outcome(&self) -> String {
        match self.version {
            Version::Http1 => {
                let (head, _) = answer(write(self.address, &http1(EVENT)).await).await;
                let header = head.lines().find_map(|l| l.strip_prefix("webhook-dedup: "));
                header.unwrap().to_owned()
            }
            Version::Http2 => {
                let request = Request::post("http://localhost/hook").body(Full::from(EVENT));
                let mut client = http2(self.address).await;
                let answer = timeout(LONG, client.send_request(request.unwrap())).await;
                outcome(&answer.unwrap().unwrap()).to_owned()
            }
        }
    }
}

/// A delivery on its way.
enum HangUp {
    Connection(TcpStream),
    Stream(JoinHandle<()>, Client),
}

impl HangUp {
    /// Closes the connection (HTTP/1), or resets the stream (HTTP/2).
    fn now(self) -> Option<Client> {
        match self {
            Self::Connection(stream) => {
                drop(stream);
                None
            }
            Self::Stream(waiting, client) => {
                waiting.abort();
                Some(client)
            }
        }
    }
}

// R4
#[tokio::test]
async fn a_run_goes_on_when_its_sender_hangs_up() {
    for version in [Version::Http1, Version::Http2] {
        let mut server = Server::start(version, OnDisconnect::Finish).await;
        let sent = server.send().await;
        let delivery = timeout(LONG, server.runs.recv()).await.unwrap().unwrap();
        assert!(!delivery.is_detached());

        let client = sent.now();
        until(&mut server.events, is!(Detached)).await;
        assert!(delivery.is_detached());
        assert_eq!(server.outcome().await, "standby");

        server.leave.add_permits(1);
        until(&mut server.events, is!(Completed)).await;
        assert_eq!(server.outcome().await, "duplicate");
        let drained = server.layer.drain_handle().drain(LONG).await;
        assert!(drained.is_complete());
        assert!(server.runs.try_recv().is_err(), "it ran twice");
        drop(client);
    }
}

// R4
#[tokio::test]
async fn a_run_that_is_cancelled_when_its_sender_hangs_up_runs_again() {
    for version in [Version::Http1, Version::Http2] {
        let mut server = Server::start(version, OnDisconnect::Cancel).await;
        let sent = server.send().await;
        timeout(LONG, server.runs.recv()).await.unwrap().unwrap();

        let client = sent.now();
        until(&mut server.events, is!(Abandoned)).await;
        server.leave.add_permits(1);
        // The release is sent in the background; who comes before it stands by, and runs it.
        let outcome = server.outcome().await;
        assert!(["run", "standby"].contains(&outcome.as_str()), "{outcome}");
        until(&mut server.events, is!(Completed)).await;
        assert_eq!(server.outcome().await, "duplicate");
        drop(client);
    }
}

#[tokio::test]
async fn duplicates_over_http2_have_their_exact_length() {
    let server = Server::start(Version::Http2, OnDisconnect::Finish).await;
    server.leave.add_permits(1);
    assert_eq!(server.outcome().await, "run");
    let request = Request::post("http://localhost/hook").body(Full::from(EVENT));
    let answer = http2(server.address)
        .await
        .send_request(request.unwrap())
        .await;
    let answer = answer.unwrap();
    assert_eq!(outcome(&answer), "duplicate");
    assert_eq!(answer.headers()[CONTENT_LENGTH], "59");
    assert_eq!(text(answer).await, DUPLICATE);
}
