//! Trouble in the secondary: unnoticed while the primary works, and nothing is forgotten by it.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_webhook_dedup::{Entry, Operation, Release, StoreError, StoreErrorKind};

use crate::{
    GONE, acquire, begin, done,
    http_support::{millis, secs},
    is_done, is_in_flight, key,
    stores::{Fault, Faulty},
    with,
};

/// A secondary that needs its time gets the rest of it.
#[tokio::test(start_paused = true)]
async fn a_slow_secondary_gets_the_rest_of_the_time() {
    let process = with(Faulty::with(|_| Fault::Delay(millis(100))));
    process.primary.plan(|_| Fault::Hang);
    let asked = Instant::now();
    let _lease = begin(&process.dedup, "a").await;
    assert_eq!(asked.elapsed(), millis(250));
}

#[tokio::test(start_paused = true)]
async fn a_slow_or_failing_secondary_is_not_noticed_while_the_primary_works() {
    for fault in [Fault::Hang, GONE, Fault::Delay(millis(50))] {
        let process = with(Faulty::with(move |_| fault));
        let asked = Instant::now();
        process.run("a").await;
        let lease = begin(&process.dedup, "b").await;
        assert!(is_in_flight(&process.dedup, "b").await);
        lease.release(Release::Failed { status: None }).await;
        assert!(is_done(&process.dedup, "a").await);
        assert_eq!(asked.elapsed(), Duration::ZERO);
        if matches!(fault, Fault::Delay(_)) {
            sleep(secs(1)).await;
            let entry = process.secondary.entry(&key("a")).await;
            assert!(matches!(entry, Some(Entry::Done { .. })), "{entry:?}");
            process.secondary.heal();
            process.go_out().await;
            assert!(is_done(&process.dedup, "a").await);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn where_both_stores_fail_the_call_does() {
    let process = with(Faulty::with(|_| Fault::FULL));
    process
        .primary
        .plan(|_| Fault::After(StoreErrorKind::Unreachable));
    let acquired = acquire(&process.store, "a");
    let error = acquired.await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::OutOfMemory);
    assert!(error.may_have_landed(), "in the primary");
    assert!(
        error.to_string().starts_with("secondary store: "),
        "{error}"
    );
    let acquired = acquire(&process.store, "a");
    assert!(!acquired.await.unwrap_err().may_have_landed());
}

#[tokio::test(start_paused = true)]
async fn what_the_secondary_missed_is_known_all_the_same() {
    for fault in [Fault::Hang, GONE, Fault::Late(secs(5))] {
        let process = with(Faulty::with(move |_| fault));
        process.run("done").await;
        let lease = begin(&process.dedup, "running").await;
        begin(&process.dedup, "over")
            .await
            .release(Release::Abandoned)
            .await;
        process.secondary.heal();
        process.go_out().await;
        assert!(is_done(&process.dedup, "done").await);
        let entry = process.dedup.inspect(&key("done")).await.unwrap();
        assert!(matches!(entry, Some(Entry::Done { .. })));
        for _ in 0..20 {
            assert!(is_in_flight(&process.dedup, "running").await);
            sleep(secs(1)).await;
        }
        assert!(lease.complete(done()).await);
        assert!(is_done(&process.dedup, "running").await);
        let again = begin(&process.dedup, "over").await;
        again.release(Release::Abandoned).await;
        process.come_back().await;
        assert!(is_done(&process.elsewhere(), "running").await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_the_secondary_learns_of_late_does_not_outlive_its_run() {
    let process = with(Faulty::broken(
        Operation::Acquire,
        Fault::Delay(millis(100)),
    ));
    let lease = begin(&process.dedup, "a").await;
    lease.release(Release::Abandoned).await;
    sleep(secs(1)).await;
    assert_eq!(process.secondary.entry(&key("a")).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_secondary_that_learns_of_a_lease_after_its_end_keeps_the_completion() {
    let process = with(Faulty::broken(
        Operation::Acquire,
        Fault::Delay(millis(100)),
    ));
    process.run("a").await;
    sleep(secs(1)).await;
    let entry = process.secondary.entry(&key("a")).await;
    assert!(matches!(entry, Some(Entry::Done { .. })), "{entry:?}");
    process.go_out().await;
    assert!(is_done(&process.dedup, "a").await);
}
