//! The run outside may have the event by a lease that it does not keep: one that was acquired without
//! its knowledge, or that it has lost, or one in the shadow, where runs have no limit. The layer inside
//! takes one of its own then, in the place of that, and says what becomes of the event.

use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_webhook_dedup::{
    Delivery, Entry, KeyBy, LeaseStore, OnDisconnect, Operation, StoreFailure, WebhookDedupLayer,
};

use crate::{
    Boxed, Sent, around, between,
    http_support::{Handler, by_id, e1, millis, post, refusing, secs, send, send_later},
    pass_on,
    stores::{Fault, Faulty},
};

type Outer = WebhookDedupLayer<Faulty>;

/// Layers that go ahead although nobody tells them that their acquire has landed.
fn unprotected(store: &Faulty) -> [(&'static str, Outer); 2] {
    let layer = || {
        let store = store.elsewhere();
        store.plan(|call| match (call.operation, call.n) {
            (Operation::Acquire, 1) => Fault::HangAfter,
            _ => Fault::None,
        });
        by_id(store)
    };
    [
        ("forwards", layer().store_failure(StoreFailure::Forward)),
        ("shadow", layer().shadow()),
    ]
}

/// These, and one in the shadow that has its lease.
fn unkept(store: &Faulty) -> impl Iterator<Item = (&'static str, Outer)> {
    let leased = ("leased shadow", by_id(store.elsewhere()).shadow());
    unprotected(store).into_iter().chain([leased])
}

fn nest(outer: &Outer, inner: &Outer, handler: &Handler) -> Boxed<Sent> {
    around(outer, pass_on(around(inner, handler.clone())))
}

/// Whether another process is told that the event is running.
async fn is_in_flight(store: &Faulty) -> bool {
    let service = refusing(store.elsewhere()).layer(Handler::ok());
    send(&service, post("e1")).await.brief() == (503, "in-flight")
}

async fn is_done(store: &Faulty) -> bool {
    matches!(store.entry(&e1()).await, Some(Entry::Done { .. }))
}

async fn forget(store: &Faulty) {
    assert!(
        store
            .inner
            .forget(&e1(), true, Instant::now())
            .await
            .unwrap()
    );
}

#[tokio::test(start_paused = true)]
async fn a_run_that_takes_longer_than_a_lease_is_the_only_one() {
    let store = Faulty::new();
    for (name, outer) in unkept(&store) {
        let (inner, handler) = (
            by_id(store.elsewhere()),
            Handler::first_then(secs(9), 200, 200),
        );
        let first = send_later(&nest(&outer, &inner, &handler), post("e1"));
        handler.began(1).await;
        sleep(secs(5)).await;
        assert!(is_in_flight(&store).await, "{name}");
        assert_eq!(first.await.unwrap().status, 200);
        assert!(is_done(&store).await, "{name}");
        forget(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_shadow_outside_does_not_cut_the_lease_short() {
    let store = Faulty::new();
    for shares_engine in [false, true] {
        let inner = by_id(store.elsewhere());
        let shadow = if shares_engine {
            inner.clone()
        } else {
            by_id(store.elsewhere())
        };
        let shadow = shadow.shadow().run_limit(secs(1));
        let handler = Handler::first_then(secs(9), 200, 200);
        let first = send_later(&nest(&shadow, &inner, &handler), post("e1"));
        handler.began(1).await;
        sleep(secs(5)).await;
        assert!(is_in_flight(&store).await, "{shares_engine}");
        assert_eq!(first.await.unwrap().brief(), (200, "shadow-run"));
        assert!(is_done(&store).await);
        forget(&store).await;
    }
}

/// The replies to its renewals are lost.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_outside_is_replaced_inside() {
    let (store, handler) = (Faulty::new(), Handler::first_then(secs(9), 200, 200));
    let deaf = store.elsewhere();
    deaf.breaks(Operation::Renew, Fault::HangAfter);
    let inside = around(&by_id(store.elsewhere()), handler.clone());
    let waits = between(move |request| {
        let inside = inside.clone();
        async move {
            let delivery = request.extensions().get::<Delivery>().unwrap().clone();
            delivery.lease_lost().await;
            send(&inside, request).await
        }
    });
    let first = send_later(&around(&by_id(deaf), waits), post("e1"));
    handler.began(1).await;
    sleep(secs(5)).await;
    assert!(is_in_flight(&store).await);
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    assert!(is_done(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_run_goes_on_without_the_one_outside() {
    let store = Faulty::new();
    for (name, outer) in unkept(&store) {
        let outer = outer.on_disconnect(OnDisconnect::Cancel);
        let (inner, handler) = (
            by_id(store.elsewhere()),
            Handler::first_then(secs(9), 200, 200),
        );
        let sender = send_later(&nest(&outer, &inner, &handler), post("e1"));
        handler.began(1).await;
        sender.abort();
        // What is released outside is not the lease inside.
        assert!(outer.drain_handle().drain(secs(5)).await.is_complete());
        assert!(is_in_flight(&store).await, "{name}");
        assert!(inner.drain_handle().drain(secs(60)).await.is_complete());
        assert!(is_done(&store).await && handler.runs() == 1, "{name}");
        forget(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_run_has_its_own_limit() {
    for (outside, inside, goes_on) in [(secs(1), secs(60), true), (secs(60), secs(1), false)] {
        let (store, handler) = (Faulty::new(), Handler::first_then(secs(9), 200, 200));
        let [(_, outer), _] = unprotected(&store);
        let inner = by_id(store.elsewhere()).run_limit(inside);
        let service = nest(&outer.run_limit(outside), &inner, &handler);
        assert_eq!(send(&service, post("e1")).await.status, 504);
        sleep(secs(3)).await;
        assert_eq!(is_in_flight(&store).await, goes_on);
        assert!(inner.drain_handle().drain(secs(60)).await.is_complete());
        assert_eq!(handler.ended() == 1, goes_on);
    }
}

#[tokio::test(start_paused = true)]
async fn what_failed_inside_is_not_recorded_as_done_outside() {
    let store = Faulty::new();
    for (name, outer) in unkept(&store) {
        let (outer, handler) = (outer.completed_when(|_| true), Handler::statuses([500]));
        let service = nest(&outer, &by_id(store.elsewhere()), &handler);
        assert_eq!(send(&service, post("e1")).await.status, 500);
        assert!(outer.drain_handle().drain(secs(60)).await.is_complete());
        let entry = store.entry(&e1()).await;
        assert!(
            matches!(entry, Some(Entry::Failed { attempts: 1, .. })),
            "{name}: {entry:?}"
        );
        forget(&store).await;
    }
}

/// Its own acquire is slow, and somebody else is not.
#[tokio::test(start_paused = true)]
async fn an_event_that_goes_to_another_run_meanwhile_is_stood_by_for() {
    let store = Faulty::new();
    for (name, outer) in unkept(&store) {
        let (slow, handler) = (store.elsewhere(), Handler::ok());
        slow.plan(|call| match (call.operation, call.n) {
            (Operation::Acquire, 2) => Fault::Delay(millis(200)),
            _ => Fault::None,
        });
        let inner = by_id(slow.clone());
        let first = send_later(&nest(&outer, &inner, &handler), post("e1"));
        slow.called(Operation::Acquire, 2).await;
        let token = store.hold(&e1(), secs(60)).await;
        assert_eq!(first.await.unwrap().status, 200);
        store.let_go(&e1(), token).await;
        assert!(!is_done(&store).await && handler.runs() == 0, "{name}");
        assert!(inner.drain_handle().drain(secs(60)).await.is_complete());
        assert!(is_done(&store).await && handler.runs() == 1, "{name}");
        forget(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn of_three_layers_the_first_that_can_keeps_the_lease() {
    let store = Faulty::new();
    for (name, outer) in unkept(&store) {
        let handler = Handler::first_then(secs(9), 200, 200);
        let innermost = store.elsewhere();
        let inside = nest(
            &by_id(store.elsewhere()),
            &by_id(innermost.clone()),
            &handler,
        );
        let first = send_later(&around(&outer, pass_on(inside)), post("e1"));
        handler.began(1).await;
        sleep(secs(5)).await;
        assert!(is_in_flight(&store).await, "{name}");
        assert_eq!(first.await.unwrap().status, 200);
        assert!(
            is_done(&store).await && innermost.count(Operation::Complete) == 0,
            "{name}"
        );
        forget(&store).await;
    }
}

/// It would record its own event as done, of which nobody knows yet how it ends.
#[tokio::test(start_paused = true)]
async fn what_is_in_flight_by_another_key_is_not_acknowledged() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    store.hold(&e1(), secs(3600)).await;
    for (name, outer) in unkept(&store) {
        let service = nest(
            &outer.key_by(KeyBy::IdAndBody),
            &by_id(store.elsewhere()),
            &handler,
        );
        assert_eq!(send(&service, post("e1")).await.status, 503, "{name}");
        assert_eq!(handler.runs(), 0);
    }
}

/// Nothing else than the run outside keeps others from running beside it.
#[tokio::test(start_paused = true)]
async fn an_unprotected_run_inside_ends_with_the_one_outside() {
    let (store, handler) = (Faulty::new(), Handler::first_then(secs(9), 200, 200));
    let inner =
        by_id(Faulty::broken(Operation::Acquire, Fault::Hang)).store_failure(StoreFailure::Forward);
    let service = nest(&by_id(store.clone()).run_limit(secs(1)), &inner, &handler);
    assert_eq!(send(&service, post("e1")).await.status, 504);
    assert!(inner.drain_handle().drain(secs(60)).await.is_complete());
    assert_eq!((handler.runs(), handler.ended()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_run_inside_with_a_lease_of_its_own_goes_on_without_the_one_outside() {
    let (store, handler) = (Faulty::new(), Handler::first_then(secs(9), 200, 200));
    let outer = by_id(store.elsewhere()).key_by(KeyBy::IdAndBody);
    let inner = by_id(store.elsewhere());
    let service = nest(&outer.run_limit(secs(1)), &inner, &handler);
    assert_eq!(send(&service, post("e1")).await.status, 504);
    assert!(is_in_flight(&store).await);
    assert!(inner.drain_handle().drain(secs(60)).await.is_complete());
    assert!(is_done(&store).await && handler.ended() == 1);
}
