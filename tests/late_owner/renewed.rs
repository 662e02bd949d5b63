//! A lease is renewed for as long as its run goes on, through trouble that passes.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_webhook_dedup::{Dedup, Key, LeaseStore, Operation};

use crate::{
    engine::{acquired, paused_runtime},
    holder,
    http_support::{Events, Handler, Run, e1, is, millis, post, refusing, secs, send, send_later},
    stores::{Fault, Faulty, MemoryStore},
};

/// One heartbeat renews both, and is asleep until the long one is due.
#[tokio::test(start_paused = true)]
async fn a_short_lease_beside_a_long_one_is_renewed_in_time() {
    let dedup = Dedup::new(MemoryStore::new());
    let (long, short) = (dedup.clone().lease(secs(3600)), dedup.lease(secs(3)));
    let mut leases = Vec::new();
    for dedup in [long, short] {
        let key = Key::new("t", leases.len().to_string());
        leases.push(acquired(&dedup, &key).await);
        sleep(secs(10)).await;
    }
    assert!(leases.iter().all(|lease| !lease.is_lost()));
}

/// R36: exactly one renewal fails; then all for a second.
#[tokio::test(start_paused = true)]
async fn failing_renewals_are_not_fatal_before_the_deadline() {
    let (store, events) = (Faulty::new(), Events::default());
    let begun = Instant::now();
    store.plan(move |call| {
        let second = call.at - begun >= millis(1_500) && call.at - begun < millis(2_500);
        match call.operation {
            Operation::Renew if call.n == 1 || second => Fault::UNREACHABLE,
            _ => Fault::None,
        }
    });
    let handler = Handler::first_then(secs(5), 200, 0);
    let service = refusing(store.clone())
        .on_event(events.hook())
        .layer(handler.clone());
    let answer = send_later(&service, post("e1"));
    handler.began(1).await;
    for _ in 0..9 {
        sleep(millis(500)).await;
        assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    }
    assert_eq!(answer.await.unwrap().brief(), (200, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(handler.runs(), 1);
    assert_eq!(events.count(is!(LeaseLost)), 0);
    assert!(events.count(is!(StoreFailed)) >= 3);
    // Tried again sooner than at the next third.
    let renewals = store.of(Operation::Renew);
    assert!(renewals[1].at - renewals[0].at < millis(300));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_forgot_everything_gets_the_lease_back_with_the_same_token() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::first_then(secs(10), 200, 0);
    let service = refusing(store.clone())
        .on_event(events.hook())
        .layer(handler.clone());
    let answer = send_later(&service, post("e1"));
    handler.began(1).await;
    let token = holder(&store).await.unwrap();
    let by = Instant::now();
    assert!(store.inner.forget(&e1(), true, by).await.unwrap());
    sleep(secs(1)).await;
    assert_eq!(holder(&store).await, Some(token));
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    assert_eq!(answer.await.unwrap().brief(), (200, "run"));
    assert_eq!(events.count(is!(LeaseLost)), 0);
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_finds_its_own_run_completed_is_no_loss() {
    let store = Faulty::broken(Operation::Renew, Fault::Delay(millis(200)));
    let (events, handler) = (
        Events::default(),
        Handler::first_then(millis(10_100), 200, 200),
    );
    let service = refusing(store.clone())
        .lease(secs(30))
        .on_event(events.hook())
        .layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(store.count(Operation::Renew), 1);
    sleep(secs(1)).await;
    assert_eq!(events.count(is!(LeaseLost)), 0);
}

/// On real threads and a real clock: what blocks its thread never yields to a heartbeat on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_its_thread_keeps_its_lease() {
    let (store, events) = (Faulty::new(), Events::default());
    let unblocked = Arc::new(AtomicBool::new(false));
    let blocked = unblocked.clone();
    let handler = Handler::new(move |run: Run| {
        let blocked = blocked.clone();
        async move {
            assert_eq!(run.n, 1);
            while !blocked.load(Ordering::SeqCst) {
                std::thread::sleep(millis(5));
            }
            200
        }
    });
    let service = refusing(store.clone())
        .lease(secs(2))
        .store_timeout(millis(500))
        .on_event(events.hook())
        .layer(handler.clone());
    let answer = send_later(&service, post("e1"));
    handler.began(1).await;
    // For longer than the lease.
    for renewals in 1..=4 {
        store.called(Operation::Renew, renewals).await;
        assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    }
    unblocked.store(true, Ordering::SeqCst);
    assert_eq!(answer.await.unwrap().brief(), (200, "run"));
    assert_eq!(events.count(is!(LeaseLost)), 0);
}

/// A lease ends with its runtime, and the next one finds a heartbeat on its own.
#[test]
fn the_heartbeat_survives_its_runtime() {
    let store = Faulty::new();
    let layer = refusing(store.clone());
    let endless = layer.layer(Handler::new(|_| pending()));
    paused_runtime().block_on(async {
        send_later(&endless, post("e0"));
        sleep(secs(5)).await;
        assert!(store.count(Operation::Renew) > 3);
    });
    paused_runtime().block_on(async {
        let handler = Handler::first_then(secs(10), 200, 0);
        let service = layer.layer(handler.clone());
        let answer = send_later(&service, post("e1"));
        handler.began(1).await;
        sleep(secs(9)).await;
        assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
        assert_eq!(answer.await.unwrap().brief(), (200, "run"));
    });
}
