//! Whoever holds a lease is told when it is lost, and only then.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tower::Layer;
use tower_webhook_dedup::{Dedup, LeaseStore, Operation};

use crate::{
    engine::acquired,
    holder,
    http_support::{Events, Handler, Run, e1, is, millis, post, refusing, secs, send, send_later},
    stores::{Fault, Faulty},
};

/// A handler that stops when its lease is lost, and when that was.
fn watchful() -> (Handler, watch::Receiver<Option<Duration>>) {
    let (lost, told) = watch::channel(None);
    let handler = Handler::new(move |run: Run| {
        let (delivery, lost) = (run.delivery(), lost.clone());
        async move {
            let begun = Instant::now();
            delivery.lease_lost().await;
            lost.send_replace(Some(begun.elapsed()));
            500
        }
    });
    (handler, told)
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_when_the_deadline_of_its_lease_passes() {
    for fault in [Fault::UNREACHABLE, Fault::Hang] {
        let events = Events::default();
        let (handler, told) = watchful();
        let store = Faulty::broken(Operation::Renew, fault);
        let service = refusing(store.clone())
            .on_event(events.hook())
            .layer(handler);
        assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
        let told = told.borrow().unwrap();
        assert!(told >= secs(2) && told <= millis(2_300), "{told:?}");
        assert!(events.count(is!(LeaseLost)) >= 1);
        assert!(store.count(Operation::Renew) > 1);
    }
}

/// The deadline counts from before the acquire was sent, not from its reply.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_lease_counts_from_before_it_was_asked_for() {
    let (handler, told) = watchful();
    let store = Faulty::with(|call| match call.operation {
        Operation::Acquire => Fault::Delay(millis(290)),
        Operation::Renew => Fault::UNREACHABLE,
        _ => Fault::None,
    });
    let service = refusing(store).layer(handler);
    send(&service, post("e1")).await;
    let told = told.borrow().unwrap();
    assert!(told <= millis(1_720), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_when_a_renewal_finds_another_owner() {
    let (handler, told) = watchful();
    let (store, events) = (Faulty::new(), Events::default());
    let service = refusing(store.clone())
        .lease(secs(30))
        .on_event(events.hook())
        .layer(handler.clone());
    let answer = send_later(&service, post("e1"));
    handler.began(1).await;
    let by = Instant::now();
    store.inner.forget(&e1(), true, by).await.unwrap();
    let other = store.hold(&e1(), secs(3600)).await;
    assert_eq!(answer.await.unwrap().brief(), (500, "run"));
    let told = told.borrow().unwrap();
    assert!(told >= secs(10) && told < secs(11), "{told:?}");
    assert_eq!(holder(&store).await, Some(other));
    assert!(events.count(is!(LeaseLost)) >= 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_fine_is_never_lost() {
    let lost = Arc::new(AtomicBool::new(false));
    let handler = Handler::new({
        let lost = lost.clone();
        move |run: Run| {
            let (delivery, lost) = (run.delivery(), lost.clone());
            async move {
                tokio::select! {
                    () = delivery.lease_lost() => lost.store(true, Ordering::SeqCst),
                    () = sleep(secs(200)) => {}
                }
                200
            }
        }
    });
    let (store, events) = (Faulty::new(), Events::default());
    let service = refusing(store.clone())
        .on_event(events.hook())
        .layer(handler);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert!(!lost.load(Ordering::SeqCst));
    assert_eq!(events.count(is!(LeaseLost)), 0);
    // At a third of the lease of two seconds.
    let renewals = store.count(Operation::Renew);
    assert!((290..=310).contains(&renewals), "{renewals}");
}

#[tokio::test(start_paused = true)]
async fn whoever_holds_a_lease_can_wait_for_its_loss() {
    let store = Faulty::broken(Operation::Renew, Fault::UNREACHABLE);
    let dedup = Dedup::new(store.clone()).lease(secs(2));
    let begun = Instant::now();
    let lease = acquired(&dedup, &e1()).await;
    assert!(!lease.is_lost());
    lease.lost().await;
    assert_eq!((begun.elapsed().as_secs(), lease.is_lost()), (2, true));
}
