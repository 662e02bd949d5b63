//! R50: the memory store stays within its cap.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_webhook_dedup::{
    Key, LeaseStore, Outcome, Record, Refusal, Release, StoreErrorKind, Token,
};

use crate::{
    http_support::{Handler, c0, millis, post, secs, send, send_later},
    stores::MemoryStore,
};

/// R50
#[tokio::test(start_paused = true)]
async fn the_memory_store_stays_within_its_cap() {
    let store = MemoryStore::with_capacity(20_000);
    let by = Instant::now();
    for n in 0..200_000 {
        let (key, token) = (Key::new("t", format!("e{n}")), Token::random());
        store.acquire(&key, token, secs(30), by).await.unwrap();
        let release = Release::Failed { status: Some(500) };
        let ended = if n % 2 == 0 {
            let record = Record::new(Some(200), None);
            store.complete(&key, token, &record, secs(3600), by).await
        } else {
            store.release(&key, token, release, secs(3600), by).await
        };
        assert!(ended.unwrap());
        assert!(n % 1_000 > 0 || store.len() <= 20_000);
    }
    assert!(store.len() > 19_000);
}

/// R50: nothing else sweeps.
#[tokio::test(start_paused = true)]
async fn what_ran_out_goes_as_the_memory_store_is_used() {
    const EVENTS: usize = 300;
    let store = MemoryStore::with_capacity(1_000);
    let by = Instant::now();
    let acquire = async |name: &str| {
        for n in 0..EVENTS {
            let (key, token) = (Key::new("t", format!("{name}{n}")), Token::random());
            store.acquire(&key, token, secs(30), by).await.unwrap();
            match n % 3 {
                0 => {
                    let record = Record::new(Some(200), None);
                    let completed = store.complete(&key, token, &record, secs(30), by).await;
                    completed.unwrap();
                }
                1 => {
                    let release = Release::Failed { status: None };
                    let released = store.release(&key, token, release, secs(30), by).await;
                    released.unwrap();
                }
                _ => {}
            }
        }
    };
    acquire("old").await;
    sleep(secs(31)).await;
    acquire("new").await;
    assert_eq!(store.len(), EVENTS);
}

/// R50: through the layer, and with what is done outliving what failed.
#[tokio::test(start_paused = true)]
async fn at_the_cap_failed_events_are_forgotten_first() {
    let store = MemoryStore::with_capacity(1_000);
    let failing = c0(store.clone()).layer(Handler::statuses([500]));
    let working = c0(store.clone()).layer(Handler::ok());
    for n in 0..500 {
        send(&working, post(&format!("done{n}"))).await;
    }
    for n in 0..2_000 {
        let answer = send(&failing, post(&format!("failed{n}"))).await;
        assert_eq!(answer.brief(), (500, "run"));
    }
    assert!(store.len() <= 1_000);
    for n in 0..500 {
        let answer = send(&working, post(&format!("done{n}"))).await;
        assert_eq!(answer.brief(), (200, "duplicate"));
    }
}

/// R50: an event that was only cut off leaves nothing.
#[tokio::test(start_paused = true)]
async fn an_event_that_was_cut_off_takes_no_room() {
    let store = MemoryStore::new();
    let by = Instant::now();
    for n in 0..100 {
        let (key, token) = (Key::new("t", format!("e{n}")), Token::random());
        store.acquire(&key, token, secs(30), by).await.unwrap();
        let released = store.release(&key, token, Release::Abandoned, secs(60), by);
        released.await.unwrap();
    }
    assert!(store.is_empty());
}

/// R50
#[tokio::test(start_paused = true)]
async fn running_events_are_never_displaced_and_beyond_them_the_store_is_full() {
    let store = MemoryStore::with_capacity(10);
    let handler = Handler::first_then(Duration::ZERO, 200, 200);
    let slow = Handler::new(|_| async {
        sleep(secs(60)).await;
        200
    });
    let layer = c0(store.clone());
    let (service, busy) = (layer.layer(handler.clone()), layer.layer(slow.clone()));
    for n in 0..10 {
        send_later(&busy, post(&format!("e{n}")));
    }
    slow.began(10).await;
    let refused = send(&service, post("one more")).await;
    assert_eq!(refused.brief(), (503, "refused"));
    let Outcome::Refused(Refusal::StoreFailed { error, .. }) = refused.outcome() else {
        panic!("{:?}", refused.outcome());
    };
    assert_eq!(error.kind(), StoreErrorKind::OutOfMemory);
    assert_eq!(store.len(), 10);
    slow.has_ended(10).await;
    sleep(millis(1)).await;
    assert_eq!(send(&service, post("one more")).await.brief(), (200, "run"));
    assert_eq!(slow.ended(), 10);
}
