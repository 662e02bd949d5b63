//! Duplicates of what is remembered are answered as the store would, without it.

use tokio::time::sleep;
use tower::Layer;
use tower_webhook_dedup::{
    Acquire, BodyHash, Cached, Entry, Key, LeaseStore, MemoryStore, Operation, Outcome, Record,
    Release, StoreErrorKind, Token,
};

use crate::{
    DAY, acquire, by, complete,
    http_support::{Handler, c0, millis, post, post_body, secs, send},
    is_done, key,
    stores::{Fault, Faulty},
};

#[tokio::test(start_paused = true)]
async fn a_remembered_duplicate_makes_no_store_call() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    let service = c0(Cached::new((*store).clone())).layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    let calls = store.calls().len();
    assert_eq!(calls, 2, "acquire and complete");
    for _ in 0..100 {
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (200, "duplicate"));
        sleep(millis(590)).await;
    }
    assert_eq!(store.calls().len(), calls);
    // After a minute the store is asked once, and the answer remembered again.
    sleep(secs(1)).await;
    for _ in 0..10 {
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (200, "duplicate"));
    }
    assert_eq!(store.calls().len(), calls + 1);
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_is_the_whole_record() {
    let store = Cached::new((*Faulty::new()).clone());
    let service = c0(store.clone()).layer(Handler::statuses([207]));
    assert_eq!(send(&service, post("e1")).await.brief(), (207, "run"));
    let Outcome::Duplicate { record, .. } = send(&service, post("e1")).await.outcome() else {
        panic!("no duplicate");
    };
    let hash = BodyHash::of(br#"{"id":"e1","n":1}"#);
    assert_eq!(
        (record.status(), record.body_hash()),
        (Some(207), Some(hash))
    );
    let entry = store.inspect(&Key::with_hash("t", "e1", hash), by()).await;
    match entry.unwrap() {
        Some(Entry::Done { record: kept, .. }) => assert_eq!(kept, record),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn another_body_of_the_same_id_is_another_event() {
    let handler = Handler::ok();
    let service = c0(Cached::new(MemoryStore::new())).layer(handler.clone());
    for (n, outcome) in [(1, "run"), (1, "duplicate"), (2, "run"), (2, "duplicate")] {
        let request = post_body(&format!(r#"{{"id":"e1","n":{n}}}"#));
        assert_eq!(send(&service, request).await.brief(), (200, outcome));
    }
    assert_eq!(handler.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn only_what_is_done_is_remembered() {
    let store = Faulty::new();
    let cached = Cached::new((*store).clone());
    let (key, token, failed) = (key("a"), Token::random(), Release::Failed { status: None });
    let acquired = cached.acquire(&key, token, secs(30), by()).await.unwrap();
    assert_eq!(acquired, Acquire::Acquired { attempt: 1 });
    for n in 2..5 {
        let acquired = acquire(&cached, &key).await;
        assert!(matches!(acquired, Acquire::InFlight { .. }));
        assert_eq!(store.count(Operation::Acquire), n);
    }
    assert!(cached.renew(&key, token, secs(30), by()).await.unwrap());
    let released = cached.release(&key, token, failed, DAY, by()).await;
    assert!(released.unwrap());
    let again = acquire(&cached, &key).await;
    assert_eq!(again, Acquire::Acquired { attempt: 2 });
    // A completion that the store refused.
    let record = Record::new(None, None);
    let late = cached.complete(&key, token, &record, DAY, by());
    assert!(!late.await.unwrap());
    assert!(!is_done(&cached, &key).await);
    assert!(cached.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_failed_is_not_remembered() {
    for fault in [
        Fault::Before(StoreErrorKind::TimedOut),
        Fault::After(StoreErrorKind::TimedOut),
    ] {
        let store = Faulty::broken(Operation::Complete, fault);
        let (cached, key, record) = (
            Cached::new((*store).clone()),
            key("a"),
            Record::new(None, None),
        );
        let completed = cached.complete(&key, Token::random(), &record, DAY, by());
        completed.await.unwrap_err();
        assert!(cached.is_empty(), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn duplicates_are_answered_while_the_store_is_away() {
    let store = Faulty::new();
    let service = c0(Cached::new((*store).clone())).layer(Handler::ok());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    store.plan(|_| Fault::UNREACHABLE);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(send(&service, post("e2")).await.brief(), (503, "refused"));
}

#[tokio::test(start_paused = true)]
async fn clones_share_what_is_remembered() {
    let store = Faulty::new();
    let cached = Cached::new((*store).clone());
    complete(&cached.clone(), &key("a"), DAY).await;
    assert!(is_done(&cached, &key("a")).await);
    assert_eq!(store.count(Operation::Acquire), 1);
    assert!(cached.clone().forget(&key("a"), false, by()).await.unwrap());
    assert!(!is_done(&cached, &key("a")).await);
    assert_eq!(format!("{cached:?}"), "Cached { ttl: 60s, len: 0, .. }");
}
