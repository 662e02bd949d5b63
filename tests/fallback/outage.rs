//! Switching out: which failures do it, and nobody who calls has to notice.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_webhook_dedup::{
    Acquire, LeaseStore, Operation, Ran, Release, StoreError, StoreErrorKind, Token,
};

use crate::{
    GONE, acquire, by, done,
    http_support::{millis, secs},
    is_done, key, process,
    stores::Fault,
};

const OUTAGES: [StoreErrorKind; 4] = [
    StoreErrorKind::Unreachable,
    StoreErrorKind::TimedOut,
    StoreErrorKind::ReadOnly,
    StoreErrorKind::OutOfMemory,
];

#[tokio::test(start_paused = true)]
async fn the_call_that_meets_the_outage_is_answered_by_its_deadline() {
    for kind in OUTAGES {
        for fault in [
            Fault::Before(kind),
            Fault::After(kind),
            Fault::Hang,
            Fault::HangAfter,
            Fault::Late(secs(3)),
            Fault::Delay(millis(200)),
        ] {
            let process = process();
            process.primary.plan(move |_| fault);
            let (asked, token) = (Instant::now(), Token::random());
            let acquired = process.store.acquire(&key("a"), token, secs(9), by()).await;
            assert_eq!(acquired.unwrap(), Acquire::Acquired { attempt: 1 });
            assert!(asked.elapsed() <= millis(151), "{fault:?}");
            assert!(process.store.is_degraded());
            assert_eq!(process.switches().len(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_call_meets_an_outage_without_the_caller_noticing() {
    for fault in [GONE, Fault::Hang, Fault::HangAfter] {
        for operation in [
            Operation::Renew,
            Operation::Complete,
            Operation::Release,
            Operation::Inspect,
            Operation::Forget,
        ] {
            let process = process();
            let (store, key, token) = (process.store.clone(), key("a"), Token::random());
            store.acquire(&key, token, secs(9), by()).await.unwrap();
            process.primary.plan(move |_| fault);
            let answered = match operation {
                Operation::Renew => store.renew(&key, token, secs(9), by()).await.unwrap(),
                Operation::Complete => {
                    let record = done();
                    let completed = store.complete(&key, token, &record, secs(99), by());
                    completed.await.unwrap()
                }
                Operation::Release => {
                    let release = Release::Failed { status: None };
                    let released = store.release(&key, token, release, secs(99), by());
                    released.await.unwrap()
                }
                Operation::Inspect => store.inspect(&key, by()).await.unwrap().is_some(),
                _ => store.forget(&key, true, by()).await.unwrap(),
            };
            assert!(answered, "{operation}");
            assert!(store.is_degraded());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_mistake_in_the_configuration_does_not_switch() {
    for kind in [StoreErrorKind::Denied, StoreErrorKind::BadReply] {
        let process = process();
        process.primary.plan(move |_| Fault::Before(kind));
        let acquired = acquire(&process.store, "a");
        assert_eq!(acquired.await.unwrap_err().kind(), kind);
        assert!(!process.store.is_degraded());
        assert!(process.switches().is_empty());
        // And one that appears during an outage is no end of it.
        process.go_out().await;
        process
            .primary
            .plan(move |_| Fault::Before(StoreErrorKind::Denied));
        sleep(secs(30)).await;
        assert!(process.store.is_degraded());
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_is_over_does_not_switch() {
    let process = process();
    process.primary.plan(|_| Fault::Hang);
    let late = process.store.inspect(&key("a"), Instant::now()).await;
    assert_eq!(late.unwrap_err().kind(), StoreErrorKind::TimedOut);
    assert!(!process.store.is_degraded());
}

#[tokio::test(start_paused = true)]
async fn while_degraded_no_call_waits_for_the_primary() {
    let process = process();
    process.primary.plan(|_| Fault::Hang);
    process.run("a").await;
    let asked = Instant::now();
    for n in 0..100 {
        assert!(matches!(
            process.run(&format!("e{n}")).await,
            Ran::Completed(())
        ));
        assert!(is_done(&process.dedup, &format!("e{n}")).await);
    }
    assert_eq!(asked.elapsed(), Duration::ZERO);
    // The first acquire, and no more.
    assert_eq!(process.primary.calls().len(), 1);
}
