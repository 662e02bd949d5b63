//! Calls of the primary whose replies were late, or heard by nobody.

use tokio::time::{sleep, timeout};
use tower_webhook_dedup::{Acquire, Entry, LeaseStore, Operation, Token};

use crate::{
    GONE, begin, by, done,
    http_support::{millis, secs},
    is_done, is_in_flight, key, process,
    stores::{Fault, Faulty, remembered},
    with,
};

/// Its token is known: what it wrote is recognised, or released.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_landed_without_a_reply_does_not_block_its_event() {
    for fault in [Fault::HangAfter, Fault::Late(secs(3))] {
        // Its run goes on.
        let process = process();
        let other = process.elsewhere();
        process.primary.plan(move |_| fault);
        let lease = begin(&process.dedup, "a").await;
        process.come_back().await;
        sleep(secs(3)).await;
        assert!(is_in_flight(&other, "a").await);
        assert!(lease.complete(done()).await);
        assert!(is_done(&other, "a").await);
    }
    // Nobody runs it: this process knows that it is done, and the primary has forgotten.
    let process = process();
    process.run("a").await;
    process
        .primary
        .inner
        .forget(&key("a"), true, by())
        .await
        .unwrap();
    sleep(remembered()).await;
    process.primary.plan(|_| Fault::HangAfter);
    assert!(is_done(&process.dedup, "a").await);
    let entry = process.primary.entry(&key("a")).await;
    assert!(matches!(entry, Some(Entry::Running { .. })));
    process.come_back().await;
    let entry = process.primary.entry(&key("a")).await;
    assert!(matches!(entry, Some(Entry::Done { .. })), "{entry:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_comes_after_the_switch_gives_no_second_lease() {
    let process = process();
    let late = process.primary.clone();
    late.plan(|call| match call.n {
        1 => Fault::Delay(millis(100)),
        _ => GONE,
    });
    let slow = tokio::spawn({
        let store = process.store.clone();
        async move {
            store
                .acquire(&key("a"), Token::random(), secs(9), by())
                .await
        }
    });
    process.primary.called(Operation::Acquire, 1).await;
    let lease = begin(&process.dedup, "a").await;
    let slow = slow.await.unwrap().unwrap();
    assert!(matches!(slow, Acquire::InFlight { .. }), "{slow:?}");
    process.come_back().await;
    assert!(!lease.is_lost());
    let entry = process.primary.entry(&key("a")).await.unwrap();
    assert_eq!(entry.token(), lease.token());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_leaves_nothing_behind() {
    for dropped in [10, 149, 151, 200, 260] {
        let process = with(Faulty::with(|_| Fault::Delay(millis(100))));
        process.primary.plan(|_| Fault::HangAfter);
        // The engine releases the token of a call that it has dropped.
        let begun = timeout(millis(dropped), process.dedup.begin(&key("a"))).await;
        assert_eq!(begun.is_ok(), dropped > 250);
        drop(begun);
        process.primary.heal();
        sleep(secs(5)).await;
        assert!(!process.store.is_degraded());
        let lease = begin(&process.dedup, "a").await;
        assert_eq!(lease.attempt(), 1);
        assert!(is_in_flight(&process.elsewhere(), "a").await);
    }
}
