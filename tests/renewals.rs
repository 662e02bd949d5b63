//! A lease is renewed for as long as its run goes on, and one that is lost is known to be.

use tokio::time::{Instant, sleep};
use tower_webhook_dedup::{Begun, Dedup, Entry, Operation, Record, Release};

use engine::{acquired, e, patient, paused_runtime};
use http_support::{Events, is, millis, secs};
use stores::{Fault, Faulty, MemoryStore};

#[path = "support/engine.rs"]
mod engine;
#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_holds_up_no_other_lease() {
    let store = Faulty::new();
    let slow = patient(&store);
    let fast = slow.clone().lease(secs(2));
    let hanging = acquired(&slow, &e(1)).await;
    let token = hanging.token();
    store.plan(move |call| match call.operation {
        Operation::Renew if call.token == Some(token) => Fault::Hang,
        _ => Fault::None,
    });
    sleep(secs(19)).await;
    let healthy = acquired(&fast, &e(2)).await;
    sleep(secs(10)).await;
    assert!(!healthy.is_lost());
    assert!(matches!(
        fast.begin(&e(2)).await.unwrap(),
        Begun::InFlight { .. }
    ));
    assert!(!hanging.is_lost(), "tried again before its deadline");
}

/// With one runtime ends the task that renews, amid the renewals of leases of another.
#[test]
fn a_renewal_that_ends_with_its_runtime_is_sent_again_by_the_next() {
    let (one, other) = (paused_runtime(), paused_runtime());
    let store = Faulty::with(|call| match call.operation {
        Operation::Renew if call.n <= 2 => Fault::Hang,
        _ => Fault::None,
    });
    let dedup = Dedup::new(store.clone());
    let first = one.block_on(acquired(&dedup, &e(1)));
    let second = other.block_on(acquired(&dedup, &e(2)));
    one.block_on(store.called(Operation::Renew, 2));
    drop((first, one));
    other.block_on(async {
        let third = acquired(&dedup, &e(3)).await;
        sleep(secs(60)).await;
        assert!(!third.is_lost());
        assert!(!second.is_lost());
    });
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_panics_costs_no_lease() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Renew if call.n == 1 => Fault::Panic,
        _ => Fault::None,
    });
    let dedup = Dedup::new(store.clone());
    let leases = [acquired(&dedup, &e(1)).await, acquired(&dedup, &e(2)).await];
    sleep(secs(40)).await;
    for lease in leases {
        assert!(!lease.is_lost());
        let holder = store.entry(lease.key()).await;
        assert!(
            matches!(holder, Some(Entry::Running { token, .. }) if token == lease.token()),
            "{holder:?}"
        );
    }
}

/// The release lands first, and is answered before the renewal lands, or after that.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_overtaken_by_the_release_leaves_no_lease_behind() {
    for answered in [millis(0), millis(100)] {
        let store = Faulty::with(move |call| match call.operation {
            Operation::Renew => Fault::Delay(millis(50)),
            Operation::Release => Fault::DelayAfter(answered),
            _ => Fault::None,
        });
        let dedup = Dedup::new(store.clone());
        let lease = acquired(&dedup, &e(1)).await;
        store.called(Operation::Renew, 1).await;
        lease.release(Release::Abandoned).await;
        sleep(secs(3)).await;
        assert!(store.entry(&e(1)).await.is_none(), "{answered:?}");
    }
}

/// On the real clock: the thread is blocked, and with it the task that renews.
#[tokio::test]
async fn a_lease_whose_time_has_passed_is_lost_though_nobody_looked() {
    let dedup = Dedup::new(MemoryStore::new()).lease(millis(20));
    let lease = acquired(&dedup, &e(1)).await;
    std::thread::sleep(millis(40));
    assert!(lease.is_lost());
}

/// However its run ends: another one may have run beside it.
#[tokio::test]
async fn a_lease_whose_time_has_passed_is_reported_when_it_ends() {
    for ending in 0..3 {
        let events = Events::default();
        let dedup = Dedup::new(MemoryStore::new())
            .lease(millis(20))
            .on_event(events.hook());
        let lease = acquired(&dedup, &e(1)).await;
        std::thread::sleep(millis(40));
        match ending {
            0 => assert!(lease.complete(Record::new(None, None)).await),
            1 => lease.release(Release::Abandoned).await,
            _ => drop(lease),
        }
        assert_eq!(events.count(is!(LeaseLost)), 1, "{ending}");
    }
}

/// The store takes it up again, as it would after it forgot everything.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_lands_after_another_run_came_and_went_does_not_hide_it() {
    let (store, events) = (Faulty::new(), Events::default());
    let dedup = Dedup::new(store.clone())
        .lease(secs(2))
        .on_event(events.hook());
    let begun = Instant::now();
    let lease = acquired(&dedup, &e(1)).await;
    store.plan(move |call| match call.operation {
        Operation::Renew if call.at < begun + millis(1_800) => Fault::FULL,
        Operation::Renew => Fault::Delay(millis(300)),
        _ => Fault::None,
    });
    sleep(millis(2_010)).await;
    drop(acquired(&Dedup::new(store.elsewhere()), &e(1)).await);
    sleep(secs(1)).await;
    assert_eq!(events.count(is!(LeaseLost)), 1);
    assert!(
        lease.complete(Record::new(None, None)).await,
        "all the same"
    );
}
