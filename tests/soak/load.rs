//! A hundred events in a second, of every kind that a receiver meets.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use fastrand::Rng;
use futures_util::{
    future::join_all,
    stream::{self, StreamExt},
};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::MAX_BODY;

const RATE: u32 = 100;

/// How many events are on their way at most. A server that is slower gets fewer.
const AT_ONCE: usize = 256;

/// How often an event is sent until one delivery is acknowledged, and the pause between.
const TRIES: usize = 4;
const PAUSE: Duration = Duration::from_secs(1);

/// Longer than the server takes for anything; a hang-up is after `SHORT`.
const PATIENCE: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(200);

/// Answers without which the load was not what it should be.
pub(crate) const EXPECTED: [&str; 9] = [
    "200 run",
    "200 duplicate",
    "200 standby",
    "400 refused",
    "413 refused",
    "500 run",
    "503 refused",
    "closed",
    "hung up",
];

/// How often each answer was heard.
type Heard = BTreeMap<String, u64>;

#[derive(Debug)]
pub(crate) struct Load {
    stop: CancellationToken,
    task: JoinHandle<()>,
    heard: Arc<Mutex<Heard>>,
}

impl Load {
    pub(crate) fn start(server: SocketAddr) -> Self {
        let (stop, heard) = (CancellationToken::new(), Arc::default());
        let sender = Sender {
            client: Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_max_idle_per_host(16)
                .build_http(),
            server,
            heard: Arc::clone(&heard),
        };
        let task = tokio::spawn(sender.send(stop.clone()));
        Self { stop, task, heard }
    }

    /// Waits for what is on its way, and closes the connections.
    pub(crate) async fn end(self) -> Heard {
        self.stop.cancel();
        self.task.await.unwrap();
        let heard = self.heard.lock().unwrap();
        heard.clone()
    }
}

#[derive(Clone)]
struct Sender {
    client: Client<HttpConnector, BoxBody<Bytes, std::io::Error>>,
    server: SocketAddr,
    heard: Arc<Mutex<Heard>>,
}

impl Sender {
    async fn send(self, stop: CancellationToken) {
        let mut rng = Rng::with_seed(4);
        let mut ticks = interval(Duration::from_secs(1) / RATE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut on_their_way = JoinSet::new();
        for n in 0_u64.. {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = ticks.tick() => {}
            }
            while let Some(event) = on_their_way.try_join_next() {
                event.unwrap();
            }
            if on_their_way.len() < AT_ONCE {
                let (kind, body) = (rng.u32(..100), event_of(n, length(&mut rng)));
                on_their_way.spawn(self.clone().event(kind, body));
            }
        }
        while let Some(event) = on_their_way.join_next().await {
            event.unwrap();
        }
    }

    /// All deliveries of one event, the kind of which is a number below 100.
    async fn event(self, kind: u32, body: Bytes) {
        const NOTHING: &[(&str, &str)] = &[];
        const A_LITTLE: &[(&str, &str)] = &[("x-demo-sleep-ms", "50")];
        const FAIL: &[(&str, &str)] = &[("x-demo-status", "500")];
        const PANIC: &[(&str, &str)] = &[("x-demo-panic", "1")];
        const SLOW: &[(&str, &str)] = &[("x-demo-sleep-ms", "1500")];
        const SLOW_AND_FAIL: &[(&str, &str)] =
            &[("x-demo-sleep-ms", "1500"), ("x-demo-status", "500")];

        match kind {
            0..50 => {}
            50..65 => {
                join_all((0..5).map(|_| self.deliver(A_LITTLE, &body))).await;
            }
            65..75 => {
                self.deliver(FAIL, &body).await;
            }
            75..80 => {
                self.deliver(PANIC, &body).await;
            }
            80..84 => self.hang_up(SLOW, full(body.clone())).await,
            84..88 => self.hang_up(SLOW_AND_FAIL, full(body.clone())).await,
            88..92 => return self.hang_up(NOTHING, half(&body)).await,
            92..96 => {
                self.deliver(NOTHING, &body.slice(..body.len() - 1)).await;
                return;
            }
            _ => {
                let long = event_of(0, MAX_BODY + 1);
                self.deliver(NOTHING, &long).await;
                return;
            }
        }
        for _ in 0..TRIES {
            if self.deliver(NOTHING, &body).await {
                return;
            }
            sleep(PAUSE).await;
        }
    }

    /// Whether the answer is 2xx.
    async fn deliver(&self, orders: &[(&str, &str)], body: &Bytes) -> bool {
        let answer = timeout(PATIENCE, self.request(orders, full(body.clone()))).await;
        let answer = answer.expect("every request is answered in time");
        let Ok(answer) = answer else {
            self.heard("closed");
            return false;
        };
        let outcome = answer.headers().get("webhook-dedup");
        let outcome = outcome.map_or("", |it| it.to_str().unwrap());
        self.heard(&format!("{} {outcome}", answer.status().as_u16()));
        let success = answer.status().is_success();
        // Else the connection is not used again.
        drop(answer.into_body().collect().await);
        success
    }

    /// Sends it, and does not wait for the answer.
    async fn hang_up(&self, orders: &[(&str, &str)], body: BoxBody<Bytes, std::io::Error>) {
        match timeout(SHORT, self.request(orders, body)).await {
            Err(_) => self.heard("hung up"),
            Ok(_) => self.heard("answered before the hang-up"),
        }
    }

    async fn request(
        &self,
        orders: &[(&str, &str)],
        body: BoxBody<Bytes, std::io::Error>,
    ) -> Result<Response<Incoming>, hyper_util::client::legacy::Error> {
        let mut request = Request::post(format!("http://{}/webhooks/demo", self.server));
        for (name, value) in orders {
            request = request.header(*name, *value);
        }
        self.client.request(request.body(body).unwrap()).await
    }

    fn heard(&self, answer: &str) {
        let mut heard = self.heard.lock().unwrap();
        *heard.entry(answer.to_owned()).or_default() += 1;
    }
}

/// From 1 KiB to `MAX_BODY`; most are short.
fn length(rng: &mut Rng) -> usize {
    let ratio = (MAX_BODY / 1024) as f64;
    (1024.0 * ratio.powf(rng.f64().powi(3))) as usize
}

/// An event of this length.
fn event_of(n: u64, length: usize) -> Bytes {
    let mut body = format!(r#"{{"id":"evt_{n}","padding":""#);
    let padding = length.saturating_sub(body.len() + 2);
    body.extend(std::iter::repeat_n('x', padding));
    body.push_str(r#""}"#);
    body.into()
}

fn full(body: Bytes) -> BoxBody<Bytes, std::io::Error> {
    Full::new(body).map_err(|never| match never {}).boxed()
}

/// The first half, and then nothing any more.
fn half(body: &Bytes) -> BoxBody<Bytes, std::io::Error> {
    let half = Frame::data(body.slice(..body.len() / 2));
    let frames = stream::iter([Ok(half)]).chain(stream::pending());
    BodyExt::boxed(StreamBody::new(frames))
}
