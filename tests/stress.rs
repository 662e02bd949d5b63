//! All of it at once, on threads and the real clock: whatever happens, the promises hold.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower::Layer;
use tower_webhook_dedup::{
    DedupEvent, Entry, Key, Limits, OnDisconnect, Operation, StoreErrorKind, WebhookDedup,
};

use http_support::{Events, Handler, Run, by_id, millis, post, secs, send};
use stores::{Call, Fault, Faulty};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

const EVENTS: usize = 1_250;
const DELIVERIES: usize = 4;

/// How many are under way at once.
const AT_ONCE: usize = 200;

fn key(event: usize) -> Key {
    Key::new("t", format!("e{event}"))
}

/// What a handler has done.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<Tally>>);

#[derive(Default)]
struct Tally {
    running: HashMap<String, usize>,
    /// Events of which two runs went on at once.
    beside: HashSet<String>,
    completed: HashMap<String, usize>,
}

impl Runs {
    /// A handler whose runs answer, fail, panic or take long, as it happens.
    fn handler(&self) -> Handler {
        let runs = self.clone();
        Handler::new(move |run: Run| {
            let running = Running::begin(&runs, run.delivery().event_id());
            async move {
                let time = match fastrand::u8(..) {
                    0..4 => millis(fastrand::u64(100..500)),
                    4..100 => Duration::ZERO,
                    _ => millis(fastrand::u64(..20)),
                };
                sleep(time).await;
                match fastrand::u8(..) {
                    0..30 => 500,
                    30..50 => panic!("as it happens"),
                    _ => running.completes(),
                }
            }
        })
    }
}

struct Running {
    runs: Runs,
    id: String,
}

impl Running {
    fn begin(runs: &Runs, id: &str) -> Self {
        let mut tally = runs.0.lock().unwrap();
        let running = tally.running.entry(id.to_owned()).or_default();
        *running += 1;
        if *running > 1 {
            tally.beside.insert(id.to_owned());
        }
        drop(tally);
        let (runs, id) = (runs.clone(), id.to_owned());
        Self { runs, id }
    }

    fn completes(&self) -> u16 {
        let mut tally = self.runs.0.lock().unwrap();
        *tally.completed.entry(self.id.clone()).or_default() += 1;
        200
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut tally = self.runs.0.lock().unwrap();
        *tally.running.get_mut(&self.id).unwrap() -= 1;
    }
}

/// Now and then something goes wrong.
fn trouble(call: &Call) -> Fault {
    let soon = millis(fastrand::u64(1..100));
    match fastrand::u8(..) {
        0..3 => Fault::UNREACHABLE,
        3..6 => Fault::After(StoreErrorKind::Unreachable),
        6..8 => Fault::Hang,
        8..10 => Fault::HangAfter,
        10..12 if call.operation != Operation::Complete => Fault::Late(soon),
        12..40 => Fault::Delay(soon / 10),
        40 => Fault::Panic,
        _ => Fault::None,
    }
}

/// Sends all deliveries to one of these each, some of which hang up, and tells which events were
/// acknowledged.
async fn storm(services: &[WebhookDedup<Handler, Faulty>]) -> HashSet<usize> {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut deliveries: Vec<_> = (0..EVENTS * DELIVERIES).map(|n| n / DELIVERIES).collect();
    // The deliveries of an event come close to each other.
    for n in 0..deliveries.len() {
        let other = (n + fastrand::usize(..2 * AT_ONCE)).min(deliveries.len() - 1);
        deliveries.swap(n, other);
    }
    let mut answers = JoinSet::new();
    for event in deliveries {
        let place = places.clone().acquire_owned().await.unwrap();
        let service = fastrand::choice(services).unwrap().clone();
        answers.spawn(async move {
            let _place = place;
            let patience = match fastrand::u8(..) {
                0..40 => millis(fastrand::u64(..10)),
                _ => secs(3600),
            };
            let answer = timeout(patience, send(&service, post(&format!("e{event}"))));
            answer.await.ok().map(|answer| (event, answer.status))
        });
    }
    let mut acknowledged = HashSet::new();
    while let Some(answer) = answers.join_next().await {
        if let Ok(Some((event, 200))) = answer {
            acknowledged.insert(event);
        }
    }
    acknowledged
}

async fn promises_hold(trouble: Option<fn(&Call) -> Fault>, lease: Duration, timeout: Duration) {
    let (store, runs) = (Faulty::new(), Runs::default());
    let stores = [store.clone(), store.elsewhere()];
    let events = Events::default();
    let layers = [0, 1].map(|n| {
        if let Some(trouble) = trouble {
            stores[n].plan(trouble);
        }
        by_id(stores[n].clone())
            .lease(lease)
            .store_timeout(timeout)
            .limits(Limits::default().standbys(EVENTS))
            .on_disconnect([OnDisconnect::Finish, OnDisconnect::Cancel][n])
            .on_event(events.hook())
    });
    let services = layers.each_ref().map(|layer| layer.layer(runs.handler()));

    let acknowledged = storm(&services).await;
    for store in &stores {
        store.heal();
    }
    let mut left = HashSet::new();
    for layer in &layers {
        let drained = layer.drain_handle().drain(secs(2)).await;
        left.extend(drained.lost().iter().map(|lost| lost.key.clone()));
        left.extend(drained.unwritten().iter().cloned());
    }
    left.extend(events.lost().into_iter().map(|lost| lost.key));
    let mut late = HashSet::new();
    for (_, event) in events.all() {
        match event {
            DedupEvent::CompletionDropped { key } => _ = left.insert(key),
            DedupEvent::LeaseLost { key } | DedupEvent::CompletionPending { key } => {
                late.insert(key);
            }
            _ => {}
        }
    }

    // What was acknowledged is completed, or was reported. A run that completed after its lease
    // was lost may have left the last word to another.
    let tally = std::mem::take(&mut *runs.0.lock().unwrap());
    assert!(acknowledged.len() > EVENTS / 2, "{}", acknowledged.len());
    for event in acknowledged {
        let (key, entry) = (key(event), store.entry(&key(event)).await);
        let done = matches!(entry, Some(Entry::Done { .. }));
        let ran = tally.completed.contains_key(&format!("e{event}")) && late.contains(&key);
        assert!(done || left.contains(&key) || ran, "e{event}: {entry:?}");
    }
    // No two runs where the leases held, neither at once nor one after the other.
    let twice = tally.completed.iter().filter(|&(_, &times)| times > 1);
    for id in tally.beside.iter().chain(twice.map(|(id, _)| id)) {
        assert!(late.contains(&Key::new("t", id)), "{id} ran twice");
    }
    // And nothing is held by anybody.
    let end = Instant::now() + lease + secs(2);
    for event in 0..EVENTS {
        while let Some(Entry::Running { .. }) = store.entry(&key(event)).await {
            assert!(Instant::now() < end, "e{event} is still held");
            sleep(millis(10)).await;
        }
    }
    assert!(tally.running.values().all(|&running| running == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_a_storm_over_a_store_in_order() {
    promises_hold(None, millis(200), millis(50)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_a_storm_over_a_store_in_trouble() {
    promises_hold(Some(trouble), millis(200), millis(50)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_a_storm_over_a_store_in_trouble_with_leases_too_short_to_be_kept() {
    promises_hold(Some(trouble), millis(40), millis(10)).await;
}
