//! What the run outside is worth to the layer inside when it has lost the event, or is over, or others
//! lie between. Nothing gets lost.

use std::{
    future::pending,
    sync::{Arc, Mutex},
};

use tokio::time::Instant;
use tower::Layer;
use tower_webhook_dedup::{Delivery, Entry, Key, LeaseStore, OnDisconnect, Operation};

use crate::{
    Sent, around, between,
    http_support::{
        Answer, Events, Handler, by_id, e1, in_flight_policies, is, post, refusing, secs, send,
        send_later,
    },
    pass_on,
    stores::{Fault, Faulty},
};

#[tokio::test(start_paused = true)]
async fn layers_between_do_not_hide_the_run_outside() {
    let store = Faulty::new();
    for (name, between) in [
        ("another store", by_id(Faulty::new())),
        ("another key", by_id(Faulty::new()).namespace("u")),
        ("another shadow", by_id(Faulty::new()).shadow()),
        ("itself", by_id(store.clone())),
        ("its shadow", by_id(store.clone()).shadow()),
    ] {
        let handler = Handler::statuses([500, 200]);
        let layer = by_id(store.clone());
        let inside = around(&between, pass_on(around(&layer, handler.clone())));
        let service = around(&layer, pass_on(inside));
        assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
        assert_eq!(handler.runs(), 1, "{name}");
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
        assert_eq!(handler.runs(), 2, "{name}");
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
        assert!(
            store
                .forget(&e1(), false, Instant::now() + secs(1))
                .await
                .unwrap()
        );
    }
}

/// As a Redis does that is restarted without its data.
#[tokio::test(start_paused = true)]
async fn an_event_that_the_store_forgets_under_its_run_is_not_acknowledged_inside() {
    for policy in in_flight_policies() {
        let (store, handler) = (Faulty::new(), Handler::ok());
        let layer = by_id(store.clone()).in_flight(policy).lease(secs(30));
        let (inner, restarted) = (around(&layer, handler.clone()), store.clone());
        let forgets = between(move |request| {
            let (inner, store) = (inner.clone(), restarted.clone());
            async move {
                _ = store.inner.forget(&e1(), true, Instant::now()).await;
                send(&inner, request).await
            }
        });
        let service = around(&layer, forgets);
        assert_eq!(send(&service, post("e1")).await.brief(), (503, "run"));
        assert_eq!(handler.runs(), 0, "{policy:?}");
    }
}

/// The run that has it by then fails, and the one that had lost it completes.
#[tokio::test(start_paused = true)]
async fn an_event_that_its_run_loses_to_another_is_not_acknowledged_inside() {
    for policy in in_flight_policies() {
        let (store, handler) = (Faulty::new(), Handler::ok());
        let outer = by_id(store.clone());
        let inner = by_id(store.clone()).in_flight(policy);
        let (inside, thief) = (around(&inner, handler.clone()), store.clone());
        let loses = between(move |request| {
            let (inner, store) = (inside.clone(), thief.clone());
            async move {
                _ = store.inner.forget(&e1(), true, Instant::now()).await;
                let token = store.hold(&e1(), secs(60)).await;
                let answer = send(&inner, request).await;
                store.let_go(&e1(), token).await;
                answer
            }
        });
        let service = around(&outer, loses);
        assert_eq!(send(&service, post("e1")).await.brief(), (503, "run"));
        assert!(inner.drain_handle().drain(secs(60)).await.is_complete());
        let done = matches!(store.entry(&e1()).await, Some(Entry::Done { .. }));
        assert!(!done && handler.runs() == 0, "{policy:?}");
    }
}

/// It goes on in a task of its own, and its run is over, as the store is not told in time.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_over_lets_nothing_through() {
    for (ends, status) in [(Operation::Release, 500), (Operation::Complete, 200)] {
        let store = Faulty::broken(ends, Fault::UNREACHABLE);
        let handler = Handler::ok();
        let outer = by_id(store.clone());
        let inner = refusing(store.clone());
        let inside = around(&inner, handler.clone());
        let late = Arc::new(Mutex::new(None));
        let kept = late.clone();
        let keeps = between(move |request| {
            *kept.lock().unwrap() = Some(request);
            async move { answer(status) }
        });
        let service = around(&outer, keeps);
        assert_eq!(send(&service, post("e1")).await.brief(), (status, "run"));
        let late = late.lock().unwrap().take().unwrap();
        assert!(matches!(
            store.entry(&e1()).await,
            Some(Entry::Running { .. })
        ));
        assert_eq!(send(&inside, late).await.brief(), (503, "in-flight"));
        assert_eq!(handler.runs(), 0, "{ends:?}");
    }
}

/// Nor one that was dropped with its request.
#[tokio::test(start_paused = true)]
async fn a_run_that_was_dropped_lets_nothing_through() {
    let store = Faulty::broken(Operation::Release, Fault::UNREACHABLE);
    let handler = Handler::ok();
    let outer = by_id(store.clone()).run_limit(secs(1)).lease(secs(60));
    let inner = refusing(store.clone());
    let inside = around(&inner, handler.clone());
    let late: Arc<Mutex<Option<Sent>>> = Arc::default();
    let kept = late.clone();
    let keeps = between(move |request| {
        *kept.lock().unwrap() = Some(request);
        pending()
    });
    let service = around(&outer, keeps);
    assert_eq!(send(&service, post("e1")).await.status, 504);
    let late = late.lock().unwrap().take().unwrap();
    assert!(matches!(
        store.entry(&e1()).await,
        Some(Entry::Running { .. })
    ));
    assert_eq!(send(&inside, late).await.brief(), (503, "in-flight"));
    assert_eq!(handler.runs(), 0);
}

/// What is known of one event says nothing about another.
#[tokio::test(start_paused = true)]
async fn the_run_of_one_event_lets_no_other_through() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    let layer = refusing(store.clone());
    let inside = around(&layer, handler.clone());
    let forges = between(move |request| {
        let inner = inside.clone();
        async move {
            let delivery = request.extensions().get::<Delivery>().unwrap().clone();
            let mut other = post("e2");
            other.extensions_mut().insert(delivery);
            send(&inner, other).await
        }
    });
    let service = around(&layer, forges);
    let e2 = Key::new("t", "e2");
    store.hold(&e2, secs(60)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "run"));
    assert_eq!(handler.runs(), 0);
}

/// The layer outside decides what becomes of the run, whose sender it is that hangs up.
#[tokio::test(start_paused = true)]
async fn a_sender_that_hangs_up_ends_the_run_as_the_layer_outside_has_it() {
    for (outside, inside, runs) in [
        (OnDisconnect::Finish, OnDisconnect::Cancel, 1),
        (OnDisconnect::Cancel, OnDisconnect::Finish, 2),
    ] {
        let (store, handler) = (Faulty::new(), Handler::first_then(secs(1), 200, 200));
        let outer = by_id(store.clone()).on_disconnect(outside);
        let inner = by_id(store.clone()).on_disconnect(inside);
        let service = around(&outer, pass_on(around(&inner, handler.clone())));
        let sender = send_later(&service, post("e1"));
        handler.began(1).await;
        sender.abort();
        assert!(sender.await.unwrap_err().is_cancelled());
        assert!(outer.drain_handle().drain(secs(60)).await.is_complete());
        let again = send(&by_id(store.clone()).layer(handler.clone()), post("e1")).await;
        assert_eq!(again.status, 200);
        assert_eq!(handler.runs(), runs, "{outside:?}");
    }
}

fn answer(status: u16) -> Answer {
    Answer {
        status,
        headers: Default::default(),
        body: String::new(),
        extensions: Default::default(),
    }
}

#[tokio::test(start_paused = true)]
async fn in_the_shadow_the_run_outside_is_a_run() {
    let (store, handler, events) = (Faulty::new(), Handler::ok(), Events::default());
    let outer = by_id(store.clone());
    let inner = by_id(store.clone()).shadow().on_event(events.hook());
    let inside = around(&inner, handler.clone());
    let outcomes: Arc<Mutex<Vec<_>>> = Arc::default();
    let seen = outcomes.clone();
    let looks = between(move |request| {
        let (inner, seen) = (inside.clone(), seen.clone());
        async move {
            let answer = send(&inner, request).await;
            seen.lock().unwrap().push(answer.outcome().as_str());
            answer
        }
    });
    let service = around(&outer, looks);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(*outcomes.lock().unwrap(), ["shadow-run"]);
    assert_eq!(handler.runs(), 1);
    assert_eq!(events.count(is!(Shadow)), 0);
}
