//! What a handler is told of its event, and of how often it was tried.

use std::sync::{Arc, Mutex};

use tokio::time::sleep;
use tower::Layer;
use tower_webhook_dedup::Delivery;

use crate::{
    http_support::{Handler, Run, e1, post, secs, send},
    long_lease,
    stores::MemoryStore,
};

/// Fails each time, and keeps which attempts it was told of.
fn failing() -> (Handler, Arc<Mutex<Vec<u32>>>) {
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let told = attempts.clone();
    let handler = Handler::new(move |run: Run| {
        told.lock().unwrap().push(run.delivery().attempt());
        std::future::ready(500)
    });
    (handler, attempts)
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_which_attempt_it_is() {
    let (handler, attempts) = failing();
    let service = long_lease(MemoryStore::new()).layer(handler);
    for _ in 0..3 {
        send(&service, post("e1")).await;
    }
    assert_eq!(*attempts.lock().unwrap(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn failed_attempts_are_counted_for_a_day() {
    let day = secs(24 * 3600);
    let (handler, attempts) = failing();
    let layer = long_lease(MemoryStore::new()).retention(4 * day);
    let service = layer.layer(handler);
    for pause in [day - secs(1), day + secs(1), secs(0)] {
        send(&service, post("e1")).await;
        sleep(pause).await;
    }
    assert_eq!(*attempts.lock().unwrap(), [1, 2, 1]);
}

/// The handler of a request that came without an id is not told of a delivery.
#[tokio::test(start_paused = true)]
async fn what_is_said_of_a_delivery_is_true() {
    let handler = Handler::new(|run: Run| async move {
        let delivery: Delivery = run.delivery();
        assert_eq!(delivery.event_id(), "e1");
        assert_eq!(delivery.key(), &e1());
        assert!(delivery.is_protected() && !delivery.is_by_body() && !delivery.is_detached());
        200
    });
    let service = long_lease(MemoryStore::new()).layer(handler);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}
