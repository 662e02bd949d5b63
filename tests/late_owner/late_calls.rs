//! Calls that land when nobody waits for them any more are undone, or count for their run.

use std::future::pending;

use tokio::time::sleep;
use tower::Layer;
use tower_webhook_dedup::{Dedup, Entry, OnDisconnect, Operation, Release, StoreFailure};

use crate::{
    engine::acquired,
    holder,
    http_support::{Handler, e1, millis, post, refusing, secs, send, send_later},
    stores::{Fault, Faulty},
};

/// A renewal that was on its way as the run was cut off must not take the event again for good.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_lands_after_the_release_is_released_again() {
    for late in [millis(60), millis(200), millis(800)] {
        let store = Faulty::broken(Operation::Renew, Fault::Late(late));
        let handler = Handler::new(|_| pending());
        let service = refusing(store.clone())
            .lease(secs(30))
            .on_disconnect(OnDisconnect::Cancel)
            .layer(handler.clone());
        let answer = send_later(&service, post("e1"));
        store.called(Operation::Renew, 1).await;
        sleep(millis(50)).await;
        answer.abort();
        sleep(late - millis(50) + millis(5)).await;
        assert!(
            holder(&store).await.is_some(),
            "it landed after the release"
        );
        sleep(secs(2)).await;
        assert!(holder(&store).await.is_none(), "{late:?}");
    }
}

/// A renewal without an answer can still land when one that was sent after it was answered, and the
/// run is over.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_lands_after_later_ones_and_the_release_is_released_again() {
    let store = Faulty::with(|call| match (call.operation, call.n) {
        (Operation::Renew, 1) => Fault::Late(secs(4)),
        _ => Fault::None,
    });
    let service = refusing(store.clone())
        .lease(secs(30))
        .on_disconnect(OnDisconnect::Cancel)
        .layer(Handler::new(|_| pending()));
    let answer = send_later(&service, post("e1"));
    store.called(Operation::Renew, 1).await;
    sleep(millis(3_500)).await;
    assert_eq!(store.count(Operation::Renew), 2);
    answer.abort();
    sleep(millis(100)).await;
    assert!(holder(&store).await.is_none(), "it is released");
    sleep(millis(500)).await;
    assert!(holder(&store).await.is_some(), "the renewal has landed");
    sleep(secs(2)).await;
    assert!(holder(&store).await.is_none());
}

/// An acquire that timed out, and lands when its request has long been answered.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_lands_after_it_timed_out_is_released() {
    // Before the first release, between it and the second.
    for late in [millis(200), millis(310), millis(900), millis(1_200)] {
        let (store, handler) = (Faulty::new(), Handler::ok());
        store.plan(move |call| match call.operation {
            Operation::Acquire if call.n == 1 => Fault::Late(late),
            _ => Fault::None,
        });
        let service = refusing(store.clone())
            .lease(secs(3600))
            .layer(handler.clone());
        assert_eq!(send(&service, post("e1")).await.brief(), (503, "refused"));
        sleep(millis(1_100)).await;
        assert!(store.entry(&e1()).await.is_none(), "{late:?}");
        let token = store.of(Operation::Acquire)[0].token;
        let releases = store.of(Operation::Release);
        assert_eq!(releases.len(), 2);
        assert!(releases.iter().all(|release| release.token == token));
        assert_eq!((releases[1].at - releases[0].at).as_secs(), 1);
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    }
}

/// Under `Forward` the run went ahead; its end ends the token.
#[tokio::test(start_paused = true)]
async fn a_run_forwarded_after_a_timed_out_acquire_completes_its_event() {
    for fault in [Fault::HangAfter, Fault::Late(secs(1)), Fault::Hang] {
        let (store, handler) = (Faulty::new(), Handler::first_then(secs(3), 200, 200));
        store.plan(move |call| match call.operation {
            Operation::Acquire if call.n == 1 => fault,
            _ => Fault::None,
        });
        let service = refusing(store.clone())
            .lease(secs(60))
            .store_failure(StoreFailure::Forward)
            .layer(handler.clone());
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (200, "unprotected"));
        let token = store.of(Operation::Acquire)[0].token.unwrap();
        match store.entry(&e1()).await {
            Some(Entry::Done { token: by, .. }) => assert_eq!(by, token),
            other => panic!("{other:?}"),
        }
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
        assert_eq!(handler.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_forwarded_after_a_timed_out_acquire_releases_its_event_when_it_fails() {
    for fault in [Fault::HangAfter, Fault::Late(secs(1)), Fault::Hang] {
        let (store, handler) = (Faulty::new(), Handler::first_then(secs(3), 500, 200));
        store.plan(move |call| match call.operation {
            Operation::Acquire if call.n == 1 => fault,
            _ => Fault::None,
        });
        let service = refusing(store.clone())
            .lease(secs(3600))
            .store_failure(StoreFailure::Forward)
            .layer(handler.clone());
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (500, "unprotected"));
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_lands_after_its_forwarded_run_failed_is_released() {
    let (store, handler) = (Faulty::new(), Handler::first_then(millis(200), 500, 200));
    store.plan(|call| match call.operation {
        Operation::Acquire if call.n == 1 => Fault::Late(millis(900)),
        _ => Fault::None,
    });
    let service = refusing(store.clone())
        .lease(secs(3600))
        .store_failure(StoreFailure::Forward)
        .layer(handler.clone());
    let answer = send(&service, post("e1")).await;
    assert_eq!(answer.brief(), (500, "unprotected"));
    assert_eq!(store.count(Operation::Release), 1);
    sleep(secs(5)).await;
    assert_eq!(store.count(Operation::Release), 3);
    assert!(store.entry(&e1()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn what_was_released_and_cannot_be_taken_again_is_released_once() {
    let store = Faulty::new();
    let dedup = Dedup::new(store.clone());
    for n in 1..=2 {
        let lease = acquired(&dedup, &e1()).await;
        match n {
            1 => drop(lease),
            _ => lease.release(Release::Failed { status: None }).await,
        }
        sleep(secs(5)).await;
        assert_eq!(store.count(Operation::Release), n);
    }
    // A run that was cut off does not count, one that failed does.
    let lease = acquired(&dedup, &e1()).await;
    assert_eq!((lease.attempt(), lease.key()), (2, &e1()));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_never_landed_does_not_release_anybodys_lease() {
    let store = Faulty::new();
    let handler = Handler::ok();
    store.breaks(Operation::Acquire, Fault::Hang);
    let token = store.hold(&e1(), secs(60)).await;
    let service = refusing(store.clone()).layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "refused"));
    sleep(secs(5)).await;
    assert!(store.count(Operation::Release) >= 2);
    assert_eq!(holder(&store).await, Some(token));
}
