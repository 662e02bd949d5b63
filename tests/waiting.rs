//! Duplicates that wait for the outcome of the run in flight.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::Layer;
use tower_webhook_dedup::{AfterWait, InFlight, Limits, Operation};

use http_support::{Handler, by_id, e1, millis, post, secs, send, send_later};
use standbys::first_in_flight;
use stores::{Fault, Faulty, MemoryStore};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/standby.rs"]
mod standbys;
#[path = "support/stores.rs"]
mod stores;

/// The default answers at once; waiting is for those who ask for it.
const WAIT: InFlight = InFlight::Wait {
    max: secs(10),
    then: AfterWait::RetryLater,
};

/// R78
#[tokio::test(start_paused = true)]
async fn a_waiting_duplicate_is_a_duplicate_when_the_first_attempt_completes() {
    let handler = Handler::first_then(millis(500), 200, 200);
    let service = by_id(MemoryStore::new())
        .in_flight(WAIT)
        .layer(handler.clone());
    let first = first_in_flight(&service, &handler).await;
    let asked = Instant::now();
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert!(asked.elapsed() < secs(1), "{:?}", asked.elapsed());
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    assert_eq!(handler.runs(), 1);
}

/// R78
#[tokio::test(start_paused = true)]
async fn one_waiting_duplicate_takes_over_when_the_first_attempt_fails() {
    let handler = Handler::first_then(millis(500), 500, 200);
    let service = by_id(MemoryStore::new())
        .in_flight(WAIT)
        .layer(handler.clone());
    let first = first_in_flight(&service, &handler).await;
    let mut waiting = JoinSet::new();
    for _ in 0..20 {
        waiting.spawn(send(&service, post("e1")));
    }
    let answers = waiting.join_all().await;
    assert_eq!(first.await.unwrap().brief(), (500, "run"));
    let ran = answers.iter().filter(|it| it.brief() == (200, "run"));
    assert_eq!(ran.count(), 1);
    let others = answers.iter().filter(|it| it.brief() == (200, "duplicate"));
    assert_eq!(others.count(), 19);
    assert_eq!(handler.runs(), 2);
}

/// R78
#[tokio::test(start_paused = true)]
async fn a_thousand_waiting_duplicates_are_bounded_in_number_and_in_load() {
    let store = Faulty::new();
    store.hold(&e1(), secs(60)).await;
    let service = by_id(store.clone())
        .in_flight(WAIT)
        .limits(Limits::default().waiters(100))
        .layer(Handler::ok());
    let asked = Instant::now();
    let (at_once, waited) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut waiting = JoinSet::new();
    for _ in 0..1_000 {
        let (service, at_once, waited) = (service.clone(), at_once.clone(), waited.clone());
        waiting.spawn(async move {
            let answer = send(&service, post("e1")).await;
            assert_eq!(answer.brief(), (503, "in-flight"));
            let counter = match asked.elapsed().as_secs() {
                0 => at_once,
                10 => waited,
                other => panic!("after {other} s"),
            };
            counter.fetch_add(1, Ordering::Relaxed);
        });
    }
    waiting.join_all().await;
    assert_eq!(at_once.load(Ordering::Relaxed), 900);
    assert_eq!(waited.load(Ordering::Relaxed), 100);
    // Pauses from 50 ms up to a second.
    let looks = store.count(Operation::Acquire) - 1_000;
    assert!(looks <= 100 * 15, "{looks}");
}

/// R78
#[tokio::test(start_paused = true)]
async fn after_waiting_in_vain_the_event_is_stood_by_for_or_refused() {
    for (then, brief, runs) in [
        (AfterWait::Acknowledge, (200, "standby"), 1),
        (AfterWait::RetryLater, (503, "in-flight"), 0),
    ] {
        let (store, handler) = (Faulty::new(), Handler::ok());
        store.hold(&e1(), secs(20)).await;
        let service = by_id(store.clone())
            .in_flight(InFlight::Wait { max: secs(3), then })
            .layer(handler.clone());
        let asked = Instant::now();
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), brief);
        assert_eq!(answer.headers.contains_key("retry-after"), brief.0 == 503);
        assert_eq!(asked.elapsed().as_secs(), 3);
        sleep(secs(60)).await;
        assert_eq!(handler.runs(), runs);
    }
}

/// R78: store errors are waited out.
#[tokio::test(start_paused = true)]
async fn a_waiting_duplicate_outlasts_trouble_in_the_store() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    store.hold(&e1(), secs(2)).await;
    store.plan(|call| match call.n {
        2..=4 => Fault::UNREACHABLE,
        5 => Fault::Hang,
        _ => Fault::None,
    });
    let service = by_id(store.clone()).in_flight(WAIT).layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

/// A sender that hangs up while it waits has been told nothing.
#[tokio::test(start_paused = true)]
async fn a_waiting_duplicate_that_hangs_up_is_forgotten() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    store.hold(&e1(), secs(2)).await;
    let layer = by_id(store.clone())
        .in_flight(WAIT)
        .limits(Limits::default().waiters(1));
    let service = layer.layer(handler.clone());
    let waiting = send_later(&service, post("e1"));
    sleep(secs(1)).await;
    waiting.abort();
    sleep(secs(60)).await;
    assert_eq!(handler.runs(), 0);
    // And its place is free.
    store.hold(&e1(), secs(2)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}
