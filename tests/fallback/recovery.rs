//! The way back: one task tries the primary, and trusts it once it takes writes.

use std::future::Future;

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower_webhook_dedup::{
    Acquire, Dedup, Fallback, LeaseStore, Operation, Ran, Release, StoreErrorKind, Switch, Token,
};

use crate::{
    BACK, GONE, acquire, begin, by,
    engine::paused_runtime,
    http_support::{millis, secs},
    is_in_flight, key, process, run,
    stores::{Call, Fault, Faulty, MemoryStore},
};

#[tokio::test(start_paused = true)]
async fn the_primary_is_tried_by_one_probe_at_a_time() {
    let process = process();
    let store = process.store.clone().probe_timeout(millis(700));
    process.primary.plan(|_| Fault::Hang);
    let mut calls = JoinSet::new();
    for n in 0..50 {
        let store = store.clone();
        calls.spawn(async move {
            let key = key(&n.to_string());
            let acquired = store.acquire(&key, Token::random(), secs(9), by()).await;
            acquired.unwrap()
        });
    }
    calls.join_all().await;
    assert_eq!(process.switches().len(), 1);
    let start = Instant::now();
    for _ in 0..100 {
        sleep(millis(100)).await;
        _ = store.inspect(&key("x"), by()).await;
    }
    let calls = process.primary.calls();
    let probes: Vec<_> = calls.iter().filter(|call| call.at > start).collect();
    assert!((5..=6).contains(&probes.len()), "{probes:?}");
    for pair in probes.windows(2) {
        assert!(pair[1].at - pair[0].at >= millis(1700), "{pair:?}");
    }
}

/// It answers whoever only reads.
#[tokio::test(start_paused = true)]
async fn a_primary_that_takes_no_writes_is_not_trusted() {
    for kind in [StoreErrorKind::ReadOnly, StoreErrorKind::OutOfMemory] {
        let process = process();
        process
            .primary
            .plan(move |call: &Call| match call.operation {
                Operation::Inspect => Fault::None,
                _ => Fault::Before(kind),
            });
        // Nothing is to be carried.
        let lease = begin(&process.dedup, "a").await;
        lease.release(Release::Abandoned).await;
        sleep(secs(60)).await;
        assert!(process.store.is_degraded());
        assert_eq!(process.switches().len(), 1);
        process.come_back().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_from_before_the_return_does_not_switch_again() {
    let process = process();
    let store = process.store.clone().probe_pause(millis(20));
    process.primary.plan(|call| match call.n {
        1 => Fault::Hang,
        _ => GONE,
    });
    let late = async {
        let acquired = acquire(&store, "a").await;
        assert!(matches!(acquired, Ok(Acquire::Acquired { .. })));
        // It goes on where it was acquired, and the primary hears of it.
        sleep(millis(1)).await;
        assert!(is_in_flight(&process.elsewhere(), "a").await);
    };
    let others = async {
        process.primary.called(Operation::Acquire, 1).await;
        acquire(&store, "b").await.unwrap();
        process.primary.heal();
        sleep(millis(100)).await;
        assert!(!store.is_degraded());
    };
    tokio::join!(late, others);
    assert!(!store.is_degraded());
    assert_eq!(process.switches().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_hook_hears_of_each_switch_and_may_panic() {
    let process = process();
    process.go_out().await;
    process.come_back().await;
    let switches = process.switches();
    assert!(
        matches!(
            switches[..],
            [
                Switch::Out { kind: StoreErrorKind::Unreachable, .. },
                Switch::Back { after, carried: 1, contested: 0, dropped: 0, .. }
            ] if after >= secs(1) && after <= BACK
        ),
        "{switches:?}"
    );

    let primary = Faulty::with(|_| GONE);
    let store = Fallback::new(primary.clone(), MemoryStore::new())
        .on_switch(|_| panic!("a hook that panics"));
    assert_eq!(
        run(&Dedup::new(store.clone()), "a").await,
        Ran::Completed(())
    );
    primary.heal();
    sleep(BACK).await;
    assert!(!store.is_degraded());
}

#[test]
fn it_comes_back_after_the_runtime_of_its_task_has_ended() {
    let process = process();
    let work = |future: std::pin::Pin<Box<dyn Future<Output = ()> + '_>>| {
        paused_runtime().block_on(future);
    };
    process.fail();
    work(Box::pin(async {
        let acquired = acquire(&process.store, "a");
        acquired.await.unwrap();
    }));
    process.primary.heal();
    work(Box::pin(async {
        assert!(process.store.is_degraded());
        let found = process.store.inspect(&key("a"), by()).await.unwrap();
        assert!(found.is_some());
        sleep(BACK).await;
        assert!(!process.store.is_degraded());
    }));
}

#[tokio::test(start_paused = true)]
async fn its_task_ends_with_the_store() {
    let process = process();
    process.go_out().await;
    let primary = process.primary.clone();
    drop(process);
    sleep(secs(3)).await;
    let calls = primary.calls().len();
    sleep(secs(60)).await;
    assert_eq!(primary.calls().len(), calls);
    let metrics = tokio::runtime::Handle::current().metrics();
    assert_eq!(metrics.num_alive_tasks(), 0);
}
