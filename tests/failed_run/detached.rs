//! Runs go on without their senders, up to a number and to the bytes that they hold.

use std::sync::{Arc, Mutex};

use tokio::time::sleep;
use tower::Layer;
use tower_webhook_dedup::{Entry, Key, Limits};

use crate::{
    http_support::{
        Events, Handler, Run, by_id, e1, is, millis, poll_until, post, secs, send, send_later,
    },
    long_lease, panicking,
    stores::Faulty,
};

/// R4 under `Finish`, the default.
#[tokio::test(start_paused = true)]
async fn a_run_whose_sender_hangs_up_goes_on_and_is_recorded() {
    let (store, events) = (Faulty::new(), Events::default());
    let told = Arc::new(Mutex::new(Vec::new()));
    let handler = Handler::new({
        let told = told.clone();
        move |run: Run| {
            let told = told.clone();
            async move {
                let before = run.delivery().is_detached();
                sleep(secs(5)).await;
                told.lock()
                    .unwrap()
                    .push((before, run.delivery().is_detached()));
                200
            }
        }
    });
    let layer = by_id(store.clone()).on_event(events.hook());
    let service = layer.layer(handler.clone());
    poll_until(send(&service, post("e1")), async {
        handler.began(1).await;
        sleep(millis(100)).await;
    })
    .await;
    // Still in flight: longer than the lease, so renewed.
    sleep(secs(4)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    let drained = layer.drain_handle().drain(secs(20)).await;
    assert!(drained.is_complete());
    assert!(matches!(store.entry(&e1()).await, Some(Entry::Done { .. })));
    assert_eq!((handler.runs(), handler.ended()), (1, 1));
    assert_eq!(*told.lock().unwrap(), [(false, true)]);
    assert_eq!(events.count(is!(Detached)), 1);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
}

/// Beyond the cap a handler is cancelled with its sender.
async fn detached_up_to_one(limits: Limits) {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::new(|_| async {
        sleep(secs(5)).await;
        200
    });
    let layer = long_lease(store.clone())
        .limits(limits)
        .on_event(events.hook());
    let service = layer.layer(handler.clone());
    for n in 1..=2 {
        let sent = send_later(&service, post(&format!("e{n}")));
        handler.began(n).await;
        sent.abort();
        sleep(millis(1)).await;
    }
    assert_eq!(events.count(is!(DetachRefused)), 1);
    assert!(store.entry(&Key::new("t", "e2")).await.is_none());
    let drained = layer.drain_handle().drain(secs(1)).await;
    assert_eq!(drained.detached(), [e1()]);
    assert!(!drained.is_complete() && drained.lost().is_empty());
    assert!(layer.drain_handle().drain(secs(20)).await.is_complete());
    assert_eq!((handler.runs(), handler.ended()), (2, 1));
    // Its place is free again.
    let sent = send_later(&service, post("e3"));
    handler.began(3).await;
    sent.abort();
    handler.has_ended(2).await;
}

/// R4
#[tokio::test(start_paused = true)]
async fn runs_go_on_without_senders_up_to_a_number() {
    detached_up_to_one(Limits::default().detached_runs(1)).await;
}

/// R4
#[tokio::test(start_paused = true)]
async fn runs_go_on_without_senders_up_to_the_bytes_that_may_be_held() {
    detached_up_to_one(Limits::default().bytes(2_000)).await;
}

/// A panic of a detached run is nobody's to see, and releases all the same.
#[tokio::test(start_paused = true)]
async fn a_panic_of_a_detached_run_releases_the_event() {
    let (store, handler) = (Faulty::new(), panicking());
    let layer = long_lease(store.clone());
    let service = layer.layer(handler.clone());
    poll_until(send(&service, post("e1")), handler.began(1)).await;
    sleep(millis(500)).await;
    assert!(store.entry(&e1()).await.is_none());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}
