//! An event that is forgotten runs again, whatever was on its way.

use tokio::time::sleep;
use tower::Layer;
use tower_webhook_dedup::{BodyHash, Cached, Key, LeaseStore, Operation, Record};

use crate::{
    DAY, by, complete, completed_elsewhere,
    http_support::{Handler, c0, millis, post, secs, send},
    is_done, key,
    stores::{Fault, Faulty},
};

#[tokio::test(start_paused = true)]
async fn an_event_that_is_forgotten_here_runs_again_at_once() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    let layer = c0(Cached::new((*store).clone()));
    let service = layer.layer(handler.clone());
    let hash = BodyHash::of(br#"{"id":"e1","n":1}"#);
    for runs in 1..=3 {
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
        assert_eq!(handler.runs(), runs);
        let key = Key::with_hash("t", "e1", hash);
        assert!(layer.dedup().forget(&key, false).await.unwrap());
    }
}

/// Whatever was asked before the event was forgotten, and answered after.
#[tokio::test(start_paused = true)]
async fn a_reply_from_before_an_event_was_forgotten_is_not_remembered() {
    for operation in [Operation::Acquire, Operation::Complete] {
        let store = Faulty::new();
        let cached = Cached::new((*store).clone());
        complete(&cached, &key("b"), DAY).await;
        completed_elsewhere(&store, &key("a"), secs(0)).await;
        let token = match store.entry(&key("a")).await {
            Some(entry) => entry.token(),
            None => panic!("it is done"),
        };
        store.plan(move |call| match call.operation {
            it if it == operation => Fault::DelayAfter(secs(2)),
            _ => Fault::None,
        });
        let late = cached.clone();
        let asked = tokio::spawn(async move {
            if operation == Operation::Acquire {
                return is_done(&late, &key("a")).await;
            }
            let (key, record) = (key("a"), Record::new(None, None));
            let completed = late.complete(&key, token, &record, DAY, by());
            completed.await.unwrap()
        });
        store.called(operation, store.count(operation) + 1).await;
        sleep(secs(1)).await;
        assert!(cached.forget(&key("a"), false, by()).await.unwrap());
        assert!(asked.await.unwrap(), "{operation:?} saw the old record");
        store.heal();
        assert!(!is_done(&cached, &key("a")).await, "{operation:?}");
    }
}

/// What is asked and answered before the store has forgotten.
#[tokio::test(start_paused = true)]
async fn what_is_seen_while_an_event_is_being_forgotten_is_not_remembered() {
    let store = Faulty::broken(Operation::Forget, Fault::Delay(secs(2)));
    let cached = Cached::new((*store).clone());
    complete(&cached, &key("a"), DAY).await;
    let other = cached.clone();
    let forgotten =
        tokio::spawn(async move { other.forget(&key("a"), false, by()).await.unwrap() });
    store.called(Operation::Forget, 1).await;
    sleep(secs(1)).await;
    assert!(is_done(&cached, &key("a")).await, "not yet forgotten");
    assert!(forgotten.await.unwrap());
    assert!(!is_done(&cached, &key("a")).await);
}

/// As the docs say: what another process forgets does not reach here.
#[tokio::test(start_paused = true)]
async fn an_event_that_another_process_forgets_stays_done_here_for_the_ttl() {
    let store = Faulty::new();
    let cached = Cached::new((*store).clone()).ttl(secs(10));
    complete(&cached, &key("a"), DAY).await;
    assert!(store.inner.forget(&key("a"), false, by()).await.unwrap());
    sleep(millis(9_999)).await;
    assert!(is_done(&cached, &key("a")).await);
    sleep(millis(1)).await;
    assert!(!is_done(&cached, &key("a")).await);
}
