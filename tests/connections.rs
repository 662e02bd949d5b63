//! x
use axum::{
    Router,
    body::Body,
    response::IntoResponse,
    routing::{any, post},
};
use bytes::Bytes;
use front::MemoryStore;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use tower_webhook_dedup::{DedupEvent, Duplicate, EventId, InFlight, WebhookDedupLayer};

#[allow(dead_code, reason = "shared, and this file needs a part of it")]
#[path = "support/front.rs"]
mod front;
const LONG: Duration = Duration::from_secs(20);

struct Srv {
    addr: SocketAddr,
    runs: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
    layer: WebhookDedupLayer<MemoryStore>,
    store: MemoryStore,
    events: Arc<std::sync::Mutex<Vec<String>>>,
}

async fn start(
    set: impl FnOnce(WebhookDedupLayer<MemoryStore>) -> WebhookDedupLayer<MemoryStore>,
    h: impl Fn(usize) -> Response<Body> + Clone + Send + Sync + 'static,
) -> Srv {
    let store = MemoryStore::new();
    let events = Arc::new(std::sync::Mutex::new(vec![]));
    let e2 = events.clone();
    let layer = set(
        WebhookDedupLayer::new(store.clone(), EventId::pointer("/id")).on_event(move |e| {
            e2.lock()
                .unwrap()
                .push(format!("{e:?}").chars().take(100).collect())
        }),
    );
    let (runs, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (r, g) = (runs.clone(), gate.clone());
    let handler = move || {
        let (r, g, h) = (r.clone(), g.clone(), h.clone());
        async move {
            let n = r.fetch_add(1, Ordering::SeqCst);
            g.acquire().await.unwrap().forget();
            h(n)
        }
    };
    let app = Router::new()
        .route("/hook", any(handler))
        .layer(layer.clone());
    let l = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = l.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(l, app).await.unwrap() });
    Srv {
        addr,
        runs,
        gate,
        layer,
        store,
        events,
    }
}
fn ok(_: usize) -> Response<Body> {
    "fine".into_response()
}
const E: &str = r#"{"id":"e1"}"#;

async fn raw(addr: SocketAddr, req: &str) -> String {
    let mut s = TcpStream::connect(addr).await.unwrap();
    s.write_all(req.as_bytes()).await.unwrap();
    let mut all = vec![];
    timeout(LONG, s.read_to_end(&mut all))
        .await
        .unwrap()
        .unwrap();
    String::from_utf8_lossy(&all).into_owned()
}
fn req(target: &str, extra: &str) -> String {
    format!(
        "POST {target} HTTP/1.1\r\n{extra}content-length: {}\r\n\r\n{E}",
        E.len()
    )
}
macro_rules! p { ($($t:tt)*) => { println!($($t)*) } }

#[tokio::test]
async fn half_closed() {
    let s = start(|l| l, ok).await;
    let mut c = TcpStream::connect(s.addr).await.unwrap();
    c.write_all(req("/hook", "host: x\r\n").as_bytes())
        .await
        .unwrap();
    c.shutdown().await.unwrap();
    while s.runs.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    s.gate.add_permits(5);
    let mut all = vec![];
    _ = timeout(LONG, c.read_to_end(&mut all)).await.unwrap();
    p!("half: {:?}", String::from_utf8_lossy(&all));
    p!(
        "{}",
        raw(s.addr, &req("/hook", "host: x\r\nconnection: close\r\n")).await
    );
    p!(
        "{:?} runs {}",
        s.events.lock().unwrap(),
        s.runs.load(Ordering::SeqCst)
    );
}

#[tokio::test]
async fn pipelined() {
    let s = start(|l| l, ok).await;
    s.gate.add_permits(5);
    let one = req("/hook", "host: x\r\n");
    let last = req("/hook", "host: x\r\nconnection: close\r\n");
    let a = raw(s.addr, &format!("{one}{one}{last}")).await;
    p!("{a}");
    // handler fails fast while pipelined
}

#[tokio::test]
async fn expect() {
    let s = start(|l| l.max_body(100), ok).await;
    s.gate.add_permits(5);
    let mut c = TcpStream::connect(s.addr).await.unwrap();
    c.write_all(format!("POST /hook HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", E.len()).as_bytes()).await.unwrap();
    let mut b = [0; 200];
    let n = timeout(LONG, c.read(&mut b)).await.unwrap().unwrap();
    p!("{:?}", String::from_utf8_lossy(&b[..n]));
    c.write_all(E.as_bytes()).await.unwrap();
    let n = timeout(LONG, c.read(&mut b)).await.unwrap().unwrap();
    p!("{:?}", String::from_utf8_lossy(&b[..n]));
    p!(
        "{:?}",
        raw(
            s.addr,
            "POST /hook HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 101\r\n\r\n"
        )
        .await
    );
    p!(
        "no-id {:?}",
        raw(
            s.addr,
            "POST /hook HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        )
        .await
    );
}

#[tokio::test]
async fn forms() {
    let s = start(|l| l, ok).await;
    s.gate.add_permits(50);
    let cl = "connection: close\r\n";
    for (t, x) in [
        ("/hook", "host: x\r\n"),
        ("http://other.example/hook", "host: x\r\n"),
        ("/hook", ""),
        ("/hook?a=1", "host: x\r\n"),
        ("/hook", "host: x\r\nupgrade: websocket\r\n"),
        ("/hook", "host: x\r\nx-a: 1\r\nx-a: 1\r\nx-a: \u{e9}\r\n"),
        ("*", "host: x\r\n"),
        ("/hook#f", "host: x\r\n"),
        ("//hook", "host: x\r\n"),
    ] {
        let a = raw(s.addr, &req(t, &format!("{x}{cl}"))).await;
        p!(
            "{t} {x:?}: {}",
            a.lines()
                .filter(|l| l.starts_with("HTTP") || l.starts_with("webhook"))
                .collect::<Vec<_>>()
                .join(" | ")
        );
    }
    let a = raw(
        s.addr,
        &req(
            "/hook",
            "host: x\r\nupgrade: foo\r\nconnection: upgrade\r\n",
        )
        .replace("e1", "e9")
        .replace("upgrade\r\n", "upgrade, close\r\n"),
    )
    .await;
    p!("up {a}");
    let long = format!("/hook?{}", "q".repeat(60000));
    let a = raw(s.addr, &req(&long, &format!("host: x\r\n{cl}"))).await;
    p!("long: {}", a.lines().next().unwrap());
    p!("runs {}", s.runs.load(Ordering::SeqCst));
    let a = raw(
        s.addr,
        &format!(
            "POST /hook HTTP/1.0\r\ncontent-length: {}\r\n\r\n{E}",
            E.len()
        ),
    )
    .await;
    p!("1.0: {a}");
}

async fn h2(
    addr: SocketAddr,
) -> hyper::client::conn::http2::SendRequest<
    http_body_util::combinators::BoxBody<Bytes, std::io::Error>,
> {
    let (c, conn) = hyper::client::conn::http2::handshake(
        TokioExecutor::new(),
        TokioIo::new(TcpStream::connect(addr).await.unwrap()),
    )
    .await
    .unwrap();
    tokio::spawn(conn);
    c
}
fn full() -> Request<http_body_util::combinators::BoxBody<Bytes, std::io::Error>> {
    Request::post("http://x/hook")
        .body(Full::new(Bytes::from(E)).map_err(|e| match e {}).boxed())
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h2_many() {
    for policy in [
        InFlight::Acknowledge,
        InFlight::RetryLater,
        InFlight::Wait {
            max: Duration::from_secs(5),
            then: tower_webhook_dedup::AfterWait::Acknowledge,
        },
    ] {
        let s = start(|l| l.in_flight(policy), ok).await;
        let c = h2(s.addr).await;
        let mut js = vec![];
        for _ in 0..150 {
            let mut c = c.clone();
            js.push(tokio::spawn(async move {
                c.ready().await.unwrap();
                c.send_request(full())
                    .await
                    .map(|r| (r.status().as_u16(), r.headers()["webhook-dedup"].clone()))
            }));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        s.gate.add_permits(5);
        let mut t = std::collections::BTreeMap::new();
        for j in js {
            *t.entry(format!("{:?}", j.await.unwrap())).or_insert(0) += 1;
        }
        p!("{policy:?} {t:?} runs {}", s.runs.load(Ordering::SeqCst));
        p!("{:?}", s.layer.drain_handle().drain(LONG).await);
        p!("runs {}", s.runs.load(Ordering::SeqCst));
    }
}

#[tokio::test]
async fn h2_resets() {
    let s = start(
        |l| l,
        |n| {
            if n == 0 {
                Body::new(StreamBody::new(futures_util::stream::unfold(
                    0,
                    |n| async move {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        Some((
                            Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"xxxx"))),
                            n + 1,
                        ))
                    },
                )))
                .into_response()
            } else {
                ok(n)
            }
        },
    )
    .await;
    // reset with half of the body
    let mut c = h2(s.addr).await;
    let (tx, rx) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(1);
    let body = StreamBody::new(futures_util::stream::unfold(rx, |mut rx| async move {
        rx.recv().await.map(|f| (f, rx))
    }))
    .boxed();
    let r = Request::post("http://x/hook").body(body).unwrap();
    let f = tokio::spawn(c.send_request(r));
    tx.send(Ok(Frame::data(Bytes::from_static(b"{\"id\""))))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    tx.send(Err(std::io::Error::other("x"))).await.unwrap();
    p!("half {:?}", f.await.unwrap().map(|r| r.status()));
    tokio::time::sleep(Duration::from_millis(50)).await;
    p!("{:?} store {:?}", s.events.lock().unwrap(), s.store.len());
    // handler, then reset while the answer streams
    s.gate.add_permits(1);
    let a = c.send_request(full()).await.unwrap();
    p!("{} {:?}", a.status(), a.headers());
    drop(a);
    p!("{:?}", c.send_request(full()).await.unwrap().headers());
    p!(
        "{:?} runs {}",
        s.events.lock().unwrap(),
        s.runs.load(Ordering::SeqCst)
    );
}

#[tokio::test]
async fn statuses_and_trailers() {
    for status in [204u16, 205, 200, 304] {
        let s = start(
            |l| {
                l.duplicate(Duplicate::Replay { max_body: 1000 })
                    .completed_when(|_| true)
            },
            move |_| {
                Response::builder()
                    .status(status)
                    .header("x-a", "1")
                    .body(Body::empty())
                    .unwrap()
            },
        )
        .await;
        s.gate.add_permits(5);
        for _ in 0..2 {
            p!(
                "{:?}",
                raw(s.addr, &req("/hook", "host: x\r\nconnection: close\r\n")).await
            );
        }
        let mut c = h2(s.addr).await;
        let a = c.send_request(full()).await.unwrap();
        p!(
            "{} {:?} {:?}",
            a.status(),
            a.headers().clone(),
            a.into_body().collect().await.unwrap().to_bytes()
        );
    }
    let s = start(
        |l| {
            l.applies_to(|_| true)
                .duplicate(Duplicate::Replay { max_body: 1000 })
        },
        ok,
    )
    .await;
    s.gate.add_permits(5);
    for _ in 0..2 {
        p!(
            "HEAD {:?}",
            raw(
                s.addr,
                &req("/hook", "host: x\r\nconnection: close\r\n").replace("POST", "HEAD")
            )
            .await
        );
    }
    let s = start(|l| l.applies_to(|_| true), ok).await;
    s.gate.add_permits(5);
    for _ in 0..2 {
        p!(
            "HEAD {:?}",
            raw(
                s.addr,
                &req("/hook", "host: x\r\nconnection: close\r\n").replace("POST", "HEAD")
            )
            .await
        );
    }
    let s = start(
        |l| l.duplicate(Duplicate::Replay { max_body: 1000 }),
        |_| {
            let mut t = HeaderMap::new();
            t.insert("x-t", "1".parse().unwrap());
            Response::new(Body::new(
                Full::from("abc").with_trailers(async move { Some(Ok(t)) }),
            ))
        },
    )
    .await;
    s.gate.add_permits(5);
    let mut c = h2(s.addr).await;
    for _ in 0..2 {
        let a = c.send_request(full()).await.unwrap();
        let h = a.headers().clone();
        let b = a.into_body().collect().await.unwrap();
        p!("{h:?} {:?}", b.trailers());
    }
}

#[tokio::test]
async fn chunked_trailers_h1() {
    let s = start(|l| l, ok).await;
    s.gate.add_permits(5);
    p!("{}", raw(s.addr, &format!("POST /hook HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\ntrailer: x-t\r\n\r\n{:x}\r\n{E}\r\n0\r\nx-t: 1\r\n\r\n", E.len())).await);
    for bad in ["zz\r\n", "5\r\n{\"id\"\r\n", "fffffffffffffffff\r\n"] {
        let mut c = TcpStream::connect(s.addr).await.unwrap();
        c.write_all(
            format!("POST /hook HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{bad}")
                .as_bytes(),
        )
        .await
        .unwrap();
        c.shutdown().await.unwrap();
        let mut all = vec![];
        _ = timeout(LONG, c.read_to_end(&mut all)).await.unwrap();
        p!("bad {:?}", String::from_utf8_lossy(&all));
    }
}
