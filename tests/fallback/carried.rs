//! What this process knew stays known, through both switches, to all.

use tokio::time::sleep;
use tower_webhook_dedup::{
    Acquire, Entry, LeaseStore, Operation, Release, StoreErrorKind, Switch, Token,
};

use crate::{
    BACK, GONE, begin, by, done,
    http_support::{millis, secs},
    is_done, is_in_flight, key, process,
    stores::{Fault, remembered},
};

#[tokio::test(start_paused = true)]
async fn what_was_completed_before_the_outage_is_done_during_it() {
    let process = process();
    process.run("a").await;
    process.go_out().await;
    assert!(is_done(&process.dedup, "a").await);
}

#[tokio::test(start_paused = true)]
async fn a_run_keeps_its_lease_through_both_switches() {
    for fault in [GONE, Fault::Hang, Fault::HangAfter] {
        let process = process();
        let other = process.elsewhere();
        let lease = begin(&process.dedup, "a").await;
        let token = lease.token();
        process.primary.plan(move |_| fault);
        // Longer than the lease that it had in the primary.
        for _ in 0..20 {
            sleep(secs(1)).await;
            assert!(process.store.is_degraded() || process.switches().is_empty());
            assert!(is_in_flight(&process.dedup, "a").await);
        }
        process.come_back().await;
        for _ in 0..20 {
            assert!(is_in_flight(&process.dedup, "a").await);
            assert!(is_in_flight(&other, "a").await);
            sleep(secs(1)).await;
        }
        assert!(!lease.is_lost());
        assert!(lease.complete(done()).await);
        let entry = process.primary.entry(&key("a")).await;
        assert!(matches!(entry, Some(Entry::Done { token: by, .. }) if by == token));
    }
}

/// The outage is shorter than the lease, and the next renewal comes later than the old one runs out.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_renewed_during_the_outage_lasts_in_the_primary() {
    let process = process();
    let (store, token) = (&process.store, Token::random());
    let acquired = store.acquire(&key("a"), token, secs(9), by()).await;
    assert!(matches!(acquired, Ok(Acquire::Acquired { .. })));
    process.go_out().await;
    sleep(secs(5)).await;
    let renewed = store.renew(&key("a"), token, secs(9), by()).await;
    assert!(renewed.unwrap());
    process.come_back().await;
    sleep(secs(2)).await;
    assert!(is_in_flight(&process.dedup, "a").await);
    assert!(is_in_flight(&process.elsewhere(), "a").await);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_during_the_outage_is_carried_back() {
    let process = process();
    let other = process.elsewhere();
    let (completed, failed) = (
        begin(&process.dedup, "completed").await,
        begin(&process.dedup, "failed").await,
    );
    process.go_out().await;
    assert!(completed.complete(done()).await);
    failed.release(Release::Failed { status: Some(500) }).await;
    assert!(is_done(&process.dedup, "completed").await);
    process.come_back().await;
    for dedup in [&other, &process.elsewhere()] {
        assert!(is_done(dedup, "completed").await);
    }
    assert!(is_done(&process.dedup, "completed").await);
    let entry = process.primary.entry(&key("failed")).await;
    assert!(
        matches!(entry, Some(Entry::Failed { attempts: 1, .. })),
        "{entry:?}"
    );
    assert_eq!(begin(&other, "failed").await.attempt(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_began_during_the_outage_is_carried_back() {
    let process = process();
    let other = process.elsewhere();
    process.go_out().await;
    let (lease, ended) = (
        begin(&process.dedup, "a").await,
        begin(&process.dedup, "b").await,
    );
    ended.release(Release::Abandoned).await;
    process.come_back().await;
    assert!(is_in_flight(&other, "a").await);
    assert!(is_in_flight(&process.dedup, "a").await);
    sleep(secs(30)).await;
    assert!(is_in_flight(&other, "a").await);
    assert!(lease.complete(done()).await);
    assert!(is_done(&other, "a").await);
    // What was never in the primary leaves no trace there.
    assert_eq!(process.primary.entry(&key("b")).await, None);
    let Some(Switch::Back {
        carried,
        contested,
        dropped,
        ..
    }) = process.switches().pop()
    else {
        panic!("{:?}", process.switches());
    };
    assert_eq!((carried, contested, dropped), (2, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_primary_that_lost_its_data_learns_what_this_process_knows() {
    let process = process();
    let other = process.elsewhere();
    process.run("done").await;
    let lease = begin(&process.dedup, "running").await;
    process.go_out().await;
    for id in ["done", "running"] {
        let forgotten = process.primary.inner.forget(&key(id), true, by()).await;
        assert!(forgotten.unwrap());
    }
    process.come_back().await;
    assert!(is_done(&other, "done").await);
    assert!(is_in_flight(&other, "running").await);
    assert!(!lease.is_lost());
    assert!(lease.complete(done()).await);
}

#[tokio::test(start_paused = true)]
async fn what_fails_while_it_is_carried_back_keeps_the_secondary() {
    let process = process();
    process.go_out().await;
    let lease = begin(&process.dedup, "a").await;
    process.primary.breaks(Operation::Complete, GONE);
    sleep(secs(20)).await;
    assert!(process.store.is_degraded());
    assert_eq!(process.switches().len(), 1);
    assert!(is_in_flight(&process.dedup, "a").await);
    process.come_back().await;
    assert!(lease.complete(done()).await);
}

#[tokio::test(start_paused = true)]
async fn a_broken_value_in_the_primary_does_not_keep_the_rest_away() {
    let process = process();
    process.go_out().await;
    let _lease = begin(&process.dedup, "a").await;
    process
        .primary
        .breaks(Operation::Complete, Fault::Before(StoreErrorKind::BadReply));
    sleep(BACK).await;
    assert!(!process.store.is_degraded());
    // Done here all the same, and there as soon as that works.
    assert!(is_done(&process.dedup, "out").await);
    process.primary.heal();
    sleep(BACK).await;
    assert!(is_done(&process.elsewhere(), "out").await);
}

#[tokio::test(start_paused = true)]
async fn what_the_primary_forgot_is_not_held_against_an_event() {
    let process = process();
    process.run("a").await;
    // An operator, through another process.
    assert!(process.elsewhere().forget(&key("a"), false).await.unwrap());
    sleep(remembered()).await;
    let lease = begin(&process.dedup, "a").await;
    process.go_out().await;
    sleep(secs(20)).await;
    assert!(!lease.is_lost());
    assert!(is_in_flight(&process.dedup, "a").await);
    process.come_back().await;
    assert!(is_in_flight(&process.elsewhere(), "a").await);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_forgotten_during_the_outage_runs_again_everywhere() {
    let process = process();
    process.run("a").await;
    process.go_out().await;
    assert!(process.dedup.forget(&key("a"), false).await.unwrap());
    process.come_back().await;
    assert_eq!(begin(&process.elsewhere(), "a").await.attempt(), 1);
}

/// It takes over some of what it missed, and dies again: what it took may be gone.
#[tokio::test(start_paused = true)]
async fn what_a_primary_took_before_it_went_away_again_is_told_it_once_more() {
    let process = process();
    for id in ["a", "b"] {
        process.run(id).await;
    }
    process.go_out().await;
    let completed = process.primary.count(Operation::Complete);
    process.primary.plan(move |call| match call.operation {
        Operation::Complete if call.n == completed + 1 => Fault::None,
        Operation::Complete => GONE,
        _ => Fault::None,
    });
    process
        .primary
        .called(Operation::Complete, completed + 2)
        .await;
    sleep(millis(1)).await;
    assert!(process.store.is_degraded());
    for id in ["a", "b", "out"] {
        let primary = &process.primary.inner;
        primary.forget(&key(id), true, by()).await.unwrap();
    }
    process.come_back().await;
    for id in ["a", "b", "out"] {
        assert!(is_done(&process.elsewhere(), id).await, "{id}");
    }
}
