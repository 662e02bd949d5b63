//! For how long an event is remembered.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_webhook_dedup::{Cached, MemoryStore, Operation};

use crate::{
    DAY, complete, completed_elsewhere,
    http_support::{millis, secs},
    is_done, key,
    stores::{Fault, Faulty},
};

#[tokio::test(start_paused = true)]
async fn an_event_is_remembered_for_the_ttl() {
    for ttl in [Duration::ZERO, millis(10), secs(7), secs(60)] {
        let store = Faulty::new();
        let cached = Cached::new((*store).clone()).ttl(ttl);
        complete(&cached, &key("a"), DAY).await;
        sleep(ttl.saturating_sub(millis(1))).await;
        let calls = |expected: usize, when| {
            assert_eq!(store.count(Operation::Acquire), expected, "{ttl:?}, {when}");
        };
        assert!(is_done(&cached, &key("a")).await);
        calls(if ttl.is_zero() { 2 } else { 1 }, "shortly before");
        sleep(millis(1)).await;
        assert!(is_done(&cached, &key("a")).await);
        calls(if ttl.is_zero() { 3 } else { 2 }, "after");
    }
}

#[test]
#[should_panic(expected = "for a minute at most")]
fn an_event_is_not_remembered_for_more_than_a_minute() {
    _ = Cached::new(MemoryStore::new()).ttl(millis(60_001));
}

/// R39 of a short retention: the event runs again as soon as the store has forgotten it.
#[tokio::test(start_paused = true)]
async fn an_event_is_not_remembered_for_longer_than_it_is_retained() {
    // The reply may take its time: the record lives from when it was written.
    for fault in [Fault::None, Fault::DelayAfter(secs(1))] {
        let store = Faulty::broken(Operation::Complete, fault);
        let cached = Cached::new((*store).clone());
        let begun = Instant::now();
        complete(&cached, &key("a"), secs(5)).await;
        sleep(millis(4_999) - begun.elapsed()).await;
        assert!(is_done(&cached, &key("a")).await);
        assert_eq!(store.count(Operation::Acquire), 1);
        sleep(millis(1)).await;
        assert!(!is_done(&cached, &key("a")).await);
    }
}

#[tokio::test(start_paused = true)]
async fn what_others_completed_is_remembered_once_this_process_knows_for_how_long() {
    let store = Faulty::new();
    let cached = Cached::new((*store).clone());
    completed_elsewhere(&store, &key("a"), secs(10)).await;
    for n in 1..=3 {
        assert!(is_done(&cached, &key("a")).await);
        assert_eq!(store.count(Operation::Acquire), n, "it might end any time");
    }
    complete(&cached, &key("b"), DAY).await;
    for _ in 0..10 {
        assert!(is_done(&cached, &key("a")).await);
    }
    assert_eq!(store.count(Operation::Acquire), 5, "asked once more");
}

#[tokio::test(start_paused = true)]
async fn what_others_completed_is_not_remembered_when_it_may_end_soon() {
    let (ttl, retention) = (secs(60), secs(3600));
    let ages = [
        (0, 1),
        (3360, 1),
        (3481, 4),
        (3550, 4),
        (3600, 4),
        (9999, 4),
    ];
    for (age, asked) in ages {
        let store = Faulty::new();
        let cached = Cached::new((*store).clone()).ttl(ttl);
        complete(&cached, &key("b"), retention).await;
        complete(&cached, &key("c"), DAY).await;
        completed_elsewhere(&store, &key("a"), secs(age)).await;
        let before = store.count(Operation::Acquire);
        for _ in 0..4 {
            assert!(is_done(&cached, &key("a")).await);
        }
        assert_eq!(store.count(Operation::Acquire) - before, asked, "{age}");
    }
}
