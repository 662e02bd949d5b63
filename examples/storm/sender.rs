//! A sender that delivers at least once: it repeats a delivery until one is acknowledged, and it
//! sends some that nobody needs.

use std::{
    error::Error,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::{join, join_all, try_join_all};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use indicatif::ProgressBar;
use tokio::{
    sync::Semaphore,
    task::JoinError,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    book,
    ledger::Incarnation,
    plan::{Delivery, Event, PATIENCE},
};

/// How often an event is tried before the sender gives up, and the pauses between: they double.
const TRIES: usize = 12;
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How many requests are on their way at once.
const AT_ONCE: usize = 256;

#[derive(Clone)]
pub(crate) struct Sender {
    client: Client<HttpConnector, Full<Bytes>>,
    targets: Targets,
    places: Arc<Semaphore>,
}

/// The servers behind one load balancer, which learns of those that are gone by being refused.
#[derive(Clone)]
pub(crate) struct Targets(Arc<Mutex<Vec<SocketAddr>>>);

impl Targets {
    pub(crate) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self(Arc::new(Mutex::new(addresses)))
    }

    /// Another server has taken this place.
    pub(crate) fn replace(&self, place: usize, address: SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[place] = address;
    }

    /// All of them, beginning anywhere.
    fn shuffled(&self) -> Vec<SocketAddr> {
        let targets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut targets = targets.clone();
        fastrand::shuffle(&mut targets);
        targets
    }
}

/// What the sender knows of one event.
pub(crate) struct Sent {
    pub(crate) id: String,
    /// Whether any of its deliveries was answered with 2xx.
    pub(crate) acknowledged: bool,
    pub(crate) answers: Vec<Answer>,
}

/// What came of one delivery.
pub(crate) struct Answer {
    pub(crate) kind: Kind,
    /// Whether it was 2xx.
    pub(crate) success: bool,
    /// Who answered, where anybody did.
    pub(crate) by: Option<Incarnation>,
    pub(crate) at: Instant,
    pub(crate) took: Duration,
}

/// The outcome, as the layer's header tells it, or what there was instead of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Run,
    Duplicate,
    Standby,
    InFlight,
    Refused,
    HungUp,
    /// The server closed the connection, as it does when a handler panics.
    Broken,
}

impl Sender {
    pub(crate) fn new(targets: Targets) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            // Each delivery counts, so none is repeated behind our back.
            .retry_canceled_requests(false)
            .build_http();
        Self {
            client,
            targets,
            places: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Sends all events at their times.
    pub(crate) async fn send(
        self,
        events: Vec<Event>,
        progress: &ProgressBar,
    ) -> Result<Vec<Sent>, JoinError> {
        let start = Instant::now();
        let send = |event: Event| {
            let (sender, progress) = (self.clone(), progress.clone());
            tokio::spawn(async move {
                sleep_until(start + event.at).await;
                let sent = sender.send_event(event).await;
                progress.inc(1);
                sent
            })
        };
        try_join_all(events.into_iter().map(send)).await
    }

    async fn send_event(&self, event: Event) -> Sent {
        let acknowledged = AtomicBool::new(false);
        let needless = event.needless.iter();
        let needless = needless.map(|delivery| self.deliver(&event, delivery, &acknowledged));
        let persist = self.persist(&event, &acknowledged);
        let (mut answers, others) = join(persist, join_all(needless)).await;
        answers.extend(others);
        Sent {
            id: event.id,
            acknowledged: acknowledged.into_inner(),
            answers,
        }
    }

    /// Repeats the first delivery until any is acknowledged.
    async fn persist(&self, event: &Event, acknowledged: &AtomicBool) -> Vec<Answer> {
        let mut answers = vec![self.deliver(event, &event.first, acknowledged).await];
        let mut pause = PAUSE.0;
        while !acknowledged.load(Relaxed) && answers.len() < TRIES {
            let again = Delivery {
                after: pause,
                patience: PATIENCE,
                mangled: false,
            };
            answers.push(self.deliver(event, &again, acknowledged).await);
            pause = (2 * pause).min(PAUSE.1);
        }
        answers
    }

    /// Makes one delivery.
    async fn deliver(
        &self,
        event: &Event,
        delivery: &Delivery,
        acknowledged: &AtomicBool,
    ) -> Answer {
        sleep(delivery.after).await;
        let _place = self.places.acquire().await;
        let length = event.body.len();
        let length = if delivery.mangled { length / 2 } else { length };
        let start = Instant::now();
        let answer = timeout(delivery.patience, self.post(event.body.slice(..length))).await;
        let (kind, success, by) = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => (Kind::Broken, false, None),
            Err(_) => (Kind::HungUp, false, None),
        };
        if success {
            acknowledged.store(true, Relaxed);
        }
        Answer {
            kind,
            success,
            by,
            at: Instant::now(),
            took: start.elapsed(),
        }
    }

    /// Posts it to any server that accepts the connection.
    async fn post(&self, body: Bytes) -> Result<Heard, Box<dyn Error + Send + Sync>> {
        let mut refused = None;
        for target in self.targets.shuffled() {
            let request = Request::post(format!("http://{target}/webhook"))
                .header("content-type", "application/json")
                .body(Full::new(body.clone()))?;
            match self.client.request(request).await {
                Ok(response) => return hear(response).await,
                // Nothing was sent.
                Err(error) if error.is_connect() => refused = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(refused.map_or_else(|| "no servers".into(), Into::into))
    }
}

/// What kind of answer, whether it was 2xx, and who gave it.
type Heard = (Kind, bool, Option<Incarnation>);

async fn hear(response: Response<Incoming>) -> Result<Heard, Box<dyn Error + Send + Sync>> {
    let outcome = response.headers().get("webhook-dedup");
    let kind = match outcome.map(|outcome| outcome.as_bytes()) {
        None | Some(b"run") => Kind::Run,
        Some(b"duplicate") => Kind::Duplicate,
        Some(b"standby") => Kind::Standby,
        Some(b"in-flight") => Kind::InFlight,
        Some(_) => Kind::Refused,
    };
    let success = response.status().is_success();
    let by = book::incarnation(response.headers());
    response.into_body().collect().await?;
    Ok((kind, success, by))
}
