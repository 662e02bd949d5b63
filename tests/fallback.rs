//! Two stores as one: what this process knew stays known, through both switches.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower::Layer;
use tower_webhook_dedup::{
    Acquire, Begun, Dedup, Entry, Fallback, Key, Lease, LeaseStore, Operation, Ran, Record,
    Release, StoreError, StoreErrorKind, Switch, Token, WebhookDedupLayer,
};

use http_support::{Handler, Run, millis, post, refusing, secs, send, send_later};
use runtime::paused_runtime;
use stores::{Call, Fault, Faulty, MemoryStore, cached, remembered};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/runtime.rs"]
mod runtime;
#[path = "support/stores.rs"]
mod stores;

/// How the primary is gone, as far as this process can tell.
const GONE: Fault = Fault::UNREACHABLE;

/// When a primary that is well again is trusted.
const BACK: Duration = millis(2500);

const OUTAGES: [StoreErrorKind; 4] = [
    StoreErrorKind::Unreachable,
    StoreErrorKind::TimedOut,
    StoreErrorKind::ReadOnly,
    StoreErrorKind::OutOfMemory,
];

/// A primary with trouble, behind one process.
struct Process<S: LeaseStore = MemoryStore> {
    primary: Faulty,
    secondary: S,
    store: Fallback<Faulty, S>,
    dedup: Dedup<Fallback<Faulty, S>>,
    switches: Arc<Mutex<Vec<Switch>>>,
}

fn process() -> Process {
    with(MemoryStore::new())
}

fn with<S: LeaseStore>(secondary: S) -> Process<S> {
    let (primary, switches) = (Faulty::new(), Arc::<Mutex<Vec<_>>>::default());
    let told = switches.clone();
    let store = Fallback::new(primary.clone(), secondary.clone())
        .on_switch(move |switch| told.lock().unwrap().push(switch.clone()));
    let dedup = Dedup::new(store.clone()).lease(secs(9));
    Process {
        primary,
        secondary,
        store,
        dedup,
        switches,
    }
}

impl<S: LeaseStore> Process<S> {
    fn fail(&self) {
        self.primary.plan(|_| GONE);
    }

    /// The primary fails, and this process finds out.
    async fn go_out(&self) {
        self.fail();
        assert!(matches!(self.run("out").await, Ran::Completed(())));
        assert!(self.store.is_degraded());
    }

    async fn come_back(&self) {
        self.primary.heal();
        sleep(BACK).await;
        assert!(!self.store.is_degraded());
    }

    async fn run(&self, id: &str) -> Ran<()> {
        run(&self.dedup, id).await
    }

    fn layer(&self) -> WebhookDedupLayer<Fallback<Faulty, S>> {
        refusing(self.store.clone())
    }

    /// Another process, on the same primary, which it reaches well.
    fn elsewhere(&self) -> Dedup<Faulty> {
        Dedup::new(self.primary.elsewhere()).lease(secs(9))
    }

    fn switches(&self) -> Vec<Switch> {
        self.switches.lock().unwrap().clone()
    }
}

fn key(id: &str) -> Key {
    Key::new("t", id)
}

fn by() -> Instant {
    Instant::now() + millis(300)
}

async fn run<St: LeaseStore>(dedup: &Dedup<St>, id: &str) -> Ran<()> {
    let work = || async { Ok::<_, std::io::Error>(()) };
    dedup.run(&key(id), work).await.unwrap()
}

async fn begin<St: LeaseStore>(dedup: &Dedup<St>, id: &str) -> Lease<St> {
    match dedup.begin(&key(id)).await.unwrap() {
        Begun::Acquired(lease) => lease,
        other => panic!("{other:?}"),
    }
}

async fn is_in_flight<St: LeaseStore>(dedup: &Dedup<St>, id: &str) -> bool {
    matches!(dedup.begin(&key(id)).await.unwrap(), Begun::InFlight { .. })
}

async fn is_done<St: LeaseStore>(dedup: &Dedup<St>, id: &str) -> bool {
    matches!(dedup.begin(&key(id)).await.unwrap(), Begun::Done(_))
}

async fn acquire<St: LeaseStore>(store: &St, id: &str) -> Result<Acquire, St::Error> {
    store
        .acquire(&key(id), Token::random(), secs(9), by())
        .await
}

fn done() -> Record {
    Record::new(Some(200), None)
}

#[cfg(feature = "test-util")]
mod contract {
    use super::*;
    use tower_webhook_dedup::store::contract;

    #[tokio::test(start_paused = true)]
    async fn it_is_a_store_while_its_primary_is_well() {
        contract(process().store).await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_a_store_without_its_primary() {
        for fault in [GONE, Fault::Hang, Fault::HangAfter] {
            let process = process();
            process.primary.plan(move |_| fault);
            contract(process.store.clone()).await;
            assert!(process.store.is_degraded());
        }
    }

    /// It comes and goes while the contract waits for its leases to run out.
    #[tokio::test(start_paused = true)]
    async fn it_is_a_store_while_its_primary_comes_and_goes() {
        for phase in [0, 30, 60, 90] {
            let process = process();
            let began = Instant::now() + millis(phase);
            process.primary.plan(move |call| {
                let time = call.at.saturating_duration_since(began).as_millis();
                if (time / 130) % 2 == 1 {
                    GONE
                } else {
                    Fault::None
                }
            });
            let store = process.store.clone().probe_pause(millis(20));
            let contract = contract(store.clone());
            let flapping = async {
                loop {
                    sleep(millis(7)).await;
                    _ = store.inspect(&key("other"), by()).await;
                }
            };
            tokio::select! {
                () = contract => {}
                () = flapping => {}
            }
            assert!(process.switches().len() > 6, "{:?}", process.switches());
        }
    }
}

/// R28, local
#[tokio::test(start_paused = true)]
async fn deliveries_run_once_while_the_store_is_away_and_after() {
    for fault in [GONE, Fault::Hang] {
        let (process, handler) = (process(), Handler::ok());
        process.primary.plan(move |_| fault);
        let service = process.layer().layer(handler.clone());
        for outcome in ["run", "duplicate"] {
            let asked = Instant::now();
            let answer = send(&service, post("e1")).await;
            assert_eq!(answer.brief(), (200, outcome));
            assert!(asked.elapsed() <= millis(300));
        }
        process.come_back().await;
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
        assert_eq!(handler.runs(), 1);
    }
}

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
async fn what_was_completed_before_the_outage_is_done_during_it() {
    let process = process();
    process.run("a").await;
    process.go_out().await;
    assert!(is_done(&process.dedup, "a").await);
}

#[tokio::test(start_paused = true)]
async fn a_run_keeps_its_lease_through_both_switches() {
    for fault in [GONE, Fault::Hang, Fault::HangAfter] {
        let (process, other) = (process(), process().elsewhere());
        drop(other);
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
async fn an_event_that_another_process_runs_meanwhile_stays_here_until_both_have_ended() {
    for both_complete in [true, false] {
        let process = process();
        let other = process.elsewhere();
        process.go_out().await;
        let mine = begin(&process.dedup, "a").await;
        let theirs = begin(&other, "a").await;
        process.come_back().await;
        assert!(matches!(
            process.switches().last(),
            Some(Switch::Back { contested: 1, .. })
        ));
        sleep(secs(20)).await;
        assert!(!mine.is_lost() && !theirs.is_lost());
        assert!(is_in_flight(&process.dedup, "a").await);
        assert!(mine.complete(done()).await);
        // Done here, whatever becomes of the other.
        assert!(is_done(&process.dedup, "a").await);
        sleep(secs(5)).await;
        assert!(is_in_flight(&other, "a").await);
        if both_complete {
            assert!(theirs.complete(done()).await);
        } else {
            theirs.release(Release::Failed { status: None }).await;
        }
        sleep(secs(2)).await;
        assert!(is_done(&other, "a").await);
        assert!(is_done(&process.dedup, "a").await);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_another_process_completed_meanwhile_stays_here_until_its_run_ends() {
    for complete in [true, false] {
        let process = process();
        let other = process.elsewhere();
        process.go_out().await;
        let mine = begin(&process.dedup, "a").await;
        run(&other, "a").await;
        let theirs = process.primary.entry(&key("a")).await;
        process.come_back().await;
        sleep(secs(20)).await;
        assert!(!mine.is_lost());
        assert!(is_in_flight(&process.dedup, "a").await);
        if complete {
            assert!(mine.complete(done()).await);
        } else {
            mine.release(Release::Failed { status: None }).await;
        }
        sleep(secs(2)).await;
        assert!(is_done(&process.dedup, "a").await);
        assert_eq!(process.primary.entry(&key("a")).await, theirs);
    }
}

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

/// R50, with a fifth of its numbers unless it is told to take all, which needs half a minute:
/// `EVENTS=1000000 cargo test --test fallback an_outage_fills`.
#[tokio::test(start_paused = true)]
async fn an_outage_fills_neither_the_secondary_nor_this_process() {
    const CAP: usize = 20_000;
    let process = with(MemoryStore::with_capacity(CAP));
    let events = std::env::var("EVENTS").map_or(200_000, |it| it.parse().unwrap());
    process.fail();
    for n in 0..events {
        process.run(&format!("e{n}")).await;
        assert!(n % 100 > 0 || process.secondary.len() <= CAP);
    }
    let failing = Release::Failed { status: Some(500) };
    for n in 0..events / 10 {
        let lease = begin(&process.dedup, &format!("f{n}")).await;
        lease.release(failing).await;
        assert!(n % 100 > 0 || process.secondary.len() <= CAP);
    }
    assert!(is_done(&process.dedup, &format!("e{}", events - 1)).await);
    process.come_back().await;
    let Some(Switch::Back {
        carried, dropped, ..
    }) = process.switches().pop()
    else {
        panic!("{:?}", process.switches());
    };
    assert_eq!((carried, dropped), (10_000, events - 10_000));
    assert!(is_done(&process.elsewhere(), &format!("e{}", events - 10_000)).await);
    assert!(!is_done(&process.elsewhere(), &format!("e{}", events - 10_001)).await);
}

/// Ten deliveries of each of a thousand events; the primary dies in the middle, with its data.
#[tokio::test(start_paused = true)]
async fn a_thousand_events_run_once_through_an_outage() {
    for (keeps, fault) in [(true, Fault::Hang), (false, GONE)] {
        let process = process();
        let runs = Arc::new(Mutex::new(HashMap::<String, usize>::new()));
        let counted = runs.clone();
        let handler = Handler::new(move |run: Run| {
            let counted = counted.clone();
            async move {
                let id = run.delivery().event_id().to_owned();
                *counted.lock().unwrap().entry(id).or_default() += 1;
                sleep(millis(20 + run.n as u64 % 70)).await;
                200
            }
        });
        let service = process.layer().store_timeout(millis(300)).layer(handler);
        let mut answers = JoinSet::new();
        for n in 0..10_000_u64 {
            let (service, id) = (service.clone(), n * 7919 % 1000);
            answers.spawn(async move {
                sleep(millis(n / 10)).await;
                loop {
                    let asked = Instant::now();
                    let answer = send(&service, post(&format!("e{id}"))).await;
                    assert!(asked.elapsed() <= millis(700), "{:?}", asked.elapsed());
                    // As a sender does.
                    if answer.status == 200 {
                        return;
                    }
                    sleep(millis(500)).await;
                }
            });
        }
        sleep(millis(500)).await;
        process.primary.plan(move |_| fault);
        if !keeps {
            for n in 0..1000 {
                let event = key(&format!("e{n}"));
                process
                    .primary
                    .inner
                    .forget(&event, true, by())
                    .await
                    .unwrap();
            }
        }
        answers.join_all().await;
        // What a cache remembers needs no primary: one more event does.
        if cached() {
            process.run("one more").await;
        }
        assert!(process.store.is_degraded());
        process.come_back().await;
        assert!(runs.lock().unwrap().values().all(|&runs| runs == 1));
        assert_eq!(runs.lock().unwrap().len(), 1000);

        let second = Handler::ok();
        let service = refusing(process.primary.elsewhere()).layer(second.clone());
        for n in 0..1000 {
            let answer = send(&service, post(&format!("e{n}"))).await;
            assert_eq!(answer.brief(), (200, "duplicate"));
        }
        assert_eq!(second.runs(), 0);
    }
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

/// With stores that take a moment, so that calls and switches meet in all ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_run_one_at_a_time_while_the_primary_comes_and_goes() {
    let slowly = |call: &Call| match call.n % 3 {
        0 => Fault::None,
        n => Fault::Delay(millis(n as u64)),
    };
    let process = with(Faulty::with(slowly));
    process.primary.plan(slowly);
    let store = process.store.clone();
    let store = store.probe_pause(millis(5)).probe_timeout(millis(20));
    let plan = process.primary.clone();
    let flapping = tokio::spawn(async move {
        for n in 0.. {
            sleep(millis(40)).await;
            plan.plan(move |call| match (n % 2, call.n % 2) {
                (0, _) => GONE,
                (_, 0) => Fault::Late(millis(3)),
                _ => Fault::After(StoreErrorKind::Unreachable),
            });
            sleep(millis(15)).await;
            plan.plan(slowly);
        }
    });
    let runs = Arc::new(Mutex::new(HashMap::<u64, usize>::new()));
    let mut workers = JoinSet::new();
    for worker in 0..16_u64 {
        let (dedup, runs) = (Dedup::new(store.clone()).lease(secs(20)), runs.clone());
        workers.spawn(async move {
            for n in 0..400 {
                let id = (n + worker % 4) / 2;
                let work = || async {
                    *runs.lock().unwrap().entry(id).or_default() += 1;
                    sleep(millis(id % 3)).await;
                    Ok::<_, std::io::Error>(())
                };
                // A call whose time was cut short may fail; it comes again.
                while dedup.run(&key(&id.to_string()), work).await.is_err() {}
            }
        });
    }
    workers.join_all().await;
    flapping.abort();
    let runs = runs.lock().unwrap();
    let twice: Vec<_> = runs.iter().filter(|(_, runs)| **runs > 1).collect();
    assert!(twice.is_empty(), "ran twice: {twice:?}");
    let switches = process.switches().len();
    // The fewer calls, the fewer of them fail.
    let enough = if cached() { 5 } else { 20 };
    assert!(switches > enough, "{switches}");
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

/// A standing run across both switches, as a sender sees it.
#[tokio::test(start_paused = true)]
async fn a_request_in_flight_across_the_switches_is_answered_as_ever() {
    let process = process();
    let handler = Handler::first_then(secs(12), 200, 500);
    let service = process.layer().layer(handler.clone());
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    process.fail();
    sleep(secs(5)).await;
    assert!(process.store.is_degraded());
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    process.come_back().await;
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(handler.runs(), 1);
}
