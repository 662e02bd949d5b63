//! What a process knows of its own runs: their duplicates cost no store call, and whoever waits for
//! their end is woken by it.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_webhook_dedup::{
    AfterWait, Begun, Dedup, Entry, InFlight, LeaseStore, Operation, Record, Refusal, Release,
    StoreErrorKind,
};

use http_support::{
    Events, Handler, by_id, e1, is, millis, post, refusing, secs, send, send_later,
};
use runtime::paused_runtime;
use stores::{Fault, Faulty, cached};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/runtime.rs"]
mod runtime;
#[path = "support/stores.rs"]
mod stores;

/// The run is over in time, for all that its process knows of renewals; the store is slow to hear of
/// it.
#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_for_an_end_that_the_store_hears_of_after_the_lease() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Renew => Fault::After(StoreErrorKind::Unreachable),
        Operation::Complete => Fault::Delay(millis(250)),
        _ => Fault::None,
    });
    let wait = InFlight::Wait {
        max: secs(5),
        then: AfterWait::RetryLater,
    };
    let handler = Handler::first_then(millis(1_900), 200, 200);
    let service = by_id(store.clone()).in_flight(wait).layer(handler.clone());
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    let began = Instant::now();
    sleep(millis(1_950)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(began.elapsed(), millis(2_150));
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_storm_on_an_event_that_runs_here_makes_no_store_call() {
    let wait = InFlight::Wait {
        max: millis(500),
        then: AfterWait::RetryLater,
    };
    let policies = [
        (InFlight::Acknowledge, (200, "standby")),
        (InFlight::RetryLater, (503, "in-flight")),
        (wait, (503, "in-flight")),
    ];
    for (policy, answer) in policies {
        let (store, handler) = (Faulty::new(), Handler::first_then(secs(60), 200, 200));
        let service = by_id(store.clone())
            .in_flight(policy)
            .layer(handler.clone());
        let first = send_later(&service, post("e1"));
        handler.began(1).await;
        // For longer than a lease, so that it is renewed meanwhile.
        for _ in 0..30 {
            let storm: Vec<_> = (0..10).map(|_| send_later(&service, post("e1"))).collect();
            for duplicate in storm {
                assert_eq!(duplicate.await.unwrap().brief(), answer);
            }
            sleep(millis(100)).await;
        }
        assert_eq!(store.count(Operation::Acquire), 1, "{policy:?}");
        let renewals = store.count(Operation::Renew);
        assert!(renewals > 0, "the lease was renewed meanwhile");
        assert_eq!(store.calls().len(), 1 + renewals, "{policy:?}");
        assert_eq!(first.await.unwrap().brief(), (200, "run"));
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
        assert_eq!(handler.runs(), 1);
    }
}

/// The sender is told to come again as if the store had answered.
#[tokio::test(start_paused = true)]
async fn a_duplicate_of_a_run_here_hears_what_one_elsewhere_hears() {
    for lease in [millis(1500), secs(3), secs(60)] {
        let (store, handler) = (Faulty::new(), Handler::first_then(secs(60), 200, 200));
        let policy = |store| refusing(store).lease(lease);
        let here = policy(store.clone()).layer(handler.clone());
        let elsewhere = policy(store.elsewhere()).layer(handler.clone());
        send_later(&here, post("e1"));
        handler.began(1).await;
        sleep(millis(400)).await;
        let (here, elsewhere) = (
            send(&here, post("e1")).await,
            send(&elsewhere, post("e1")).await,
        );
        assert_eq!(store.count(Operation::Acquire), 1);
        assert_eq!(here.brief(), (503, "in-flight"));
        assert_eq!(here.header("retry-after"), elsewhere.header("retry-after"));
        assert_eq!(here.body, elsewhere.body);
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_runs_the_event_at_once_when_the_run_here_fails() {
    let handler = Handler::first_then(millis(10_300), 500, 200);
    let service = by_id(Faulty::new()).lease(secs(60)).layer(handler.clone());
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    assert_eq!(first.await.unwrap().brief(), (500, "run"));
    let failed = Instant::now();
    handler.has_ended(2).await;
    assert!(failed.elapsed() <= millis(2), "{:?}", failed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_standby_ends_at_once_when_the_run_here_completes() {
    let store = Faulty::new();
    let handler = Handler::first_then(millis(10_300), 200, 200);
    let layer = by_id(store.clone()).lease(secs(60));
    let service = layer.layer(handler.clone());
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    let completed = Instant::now();
    let drained = layer.drain_handle().drain(secs(60)).await;
    assert!(drained.is_complete());
    assert!(
        completed.elapsed() <= millis(2),
        "{:?}",
        completed.elapsed()
    );
    // The run, and the standby's one look at the end.
    let look = usize::from(!cached());
    assert_eq!(store.count(Operation::Acquire), 1 + look);
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn waiting_duplicates_are_answered_at_once_when_the_run_here_ends() {
    for (status, runs) in [(200, 1), (500, 2)] {
        let handler = Handler::first_then(millis(7_777), status, 200);
        let wait = InFlight::Wait {
            max: secs(60),
            then: AfterWait::RetryLater,
        };
        let layer = by_id(Faulty::new()).in_flight(wait).lease(secs(60));
        let service = layer.layer(handler.clone());
        let first = send_later(&service, post("e1"));
        handler.began(1).await;
        let waiting: Vec<_> = (0..10).map(|_| send_later(&service, post("e1"))).collect();
        assert_eq!(first.await.unwrap().brief(), (status, "run"));
        let ended = Instant::now();
        let mut ran = 1;
        for duplicate in waiting {
            match duplicate.await.unwrap().brief() {
                (200, "run") => ran += 1,
                answer => assert_eq!(answer, (200, "duplicate")),
            }
        }
        assert!(ended.elapsed() <= millis(2), "{:?}", ended.elapsed());
        assert_eq!((ran, handler.runs()), (runs, runs));
    }
}

/// A run that is cut off is released by a task, which may take a moment longer than the standby.
#[tokio::test(start_paused = true)]
async fn a_standby_looks_again_soon_when_the_run_here_is_cut_off() {
    let store = Faulty::broken(Operation::Release, Fault::Delay(millis(100)));
    let (layer, handler) = (by_id(store.clone()).lease(secs(120)), Handler::ok());
    let Begun::Acquired(lease) = layer.dedup().begin(&e1()).await.unwrap() else {
        panic!("nobody holds it");
    };
    let service = layer.layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    // By now, the pauses between its looks are long.
    sleep(secs(50)).await;
    drop(lease);
    let cut_off = Instant::now();
    handler.has_ended(1).await;
    assert!(
        cut_off.elapsed() <= millis(1_200),
        "{:?}",
        cut_off.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_not_answered_from() {
    let (store, events) = (
        Faulty::broken(Operation::Renew, Fault::UNREACHABLE),
        Events::default(),
    );
    let handler = Handler::first_then(secs(30), 200, 200);
    let service = refusing(store.clone())
        .on_event(events.hook())
        .layer(handler.clone());
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    sleep(millis(1_900)).await;
    let duplicate = send(&service, post("e1")).await;
    assert_eq!(duplicate.brief(), (503, "in-flight"));
    assert_eq!(store.count(Operation::Acquire), 1, "the lease lives");

    // It runs out; another process takes the event over, and completes it.
    sleep(millis(200)).await;
    let other = store.elsewhere();
    let token = other.hold(&e1(), secs(60)).await;
    let duplicate = send(&service, post("e1")).await;
    assert_eq!(duplicate.brief(), (503, "in-flight"));
    assert_eq!(store.count(Operation::Acquire), 2, "the store was asked");
    assert_eq!(events.count(is!(LeaseLost)), 1);

    let (key, record, by) = (e1(), Record::new(None, None), Instant::now() + secs(1));
    let completed = other.complete(&key, token, &record, secs(60), by);
    assert!(completed.await.unwrap());
    let duplicate = send(&service, post("e1")).await;
    assert_eq!(duplicate.brief(), (200, "duplicate"), "our run goes on");
    assert_eq!(handler.ended(), 0);
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
}

/// The lease ran out without any renewal or look that could have told.
#[tokio::test(start_paused = true)]
async fn an_event_whose_lease_ran_out_here_runs_again_here() {
    let store = Faulty::broken(Operation::Renew, Fault::UNREACHABLE);
    let handler = Handler::first_then(secs(30), 200, 201);
    let service = by_id(store.clone()).layer(handler.clone());
    send_later(&service, post("e1"));
    handler.began(1).await;
    sleep(millis(2_100)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (201, "run"));
    // The first run ends late. It must not take the newer lease, or its record, for its own.
    handler.has_ended(2).await;
    sleep(millis(1)).await;
    match store.entry(&e1()).await {
        Some(Entry::Done { record, .. }) => assert_eq!(record.status(), Some(201)),
        other => panic!("{other:?}"),
    }
}

/// The store forgets an acquire whose reply is on its way, and gives the event to the next one.
#[tokio::test(start_paused = true)]
async fn a_late_reply_does_not_begin_a_second_run_here() {
    let store = Faulty::with(|call| match (call.operation, call.n) {
        (Operation::Acquire, 1) => Fault::DelayAfter(millis(200)),
        _ => Fault::None,
    });
    let handler = Handler::first_then(secs(10), 200, 201);
    let service = by_id(store.clone()).layer(handler.clone());
    let late = send_later(&service, post("e1"));
    store.called(Operation::Acquire, 1).await;
    sleep(millis(100)).await;
    let by = Instant::now() + secs(1);
    assert!(store.inner.forget(&e1(), true, by).await.unwrap());

    let second = send_later(&service, post("e1"));
    handler.began(1).await;
    assert_eq!(late.await.unwrap().brief(), (200, "standby"));
    assert_eq!(second.await.unwrap().brief(), (200, "run"));
    assert_eq!(handler.ended(), 1);
    assert!(matches!(store.entry(&e1()).await, Some(Entry::Done { .. })));
}

/// The late end of a run whose lease was lost leaves the next one alone.
#[tokio::test(start_paused = true)]
async fn a_late_end_here_does_not_end_what_is_known_of_the_next_run() {
    let store = Faulty::broken(Operation::Renew, Fault::UNREACHABLE);
    let handler = Handler::new(|run| async move {
        let time = if run.n == 1 { secs(5) } else { secs(60) };
        sleep(time).await;
        200
    });
    let service = by_id(store.clone()).layer(handler.clone());
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    sleep(secs(3)).await;
    store.heal();
    let second = send_later(&service, post("e1"));
    handler.began(2).await;
    assert_eq!(first.await.unwrap().brief(), (200, "run"));

    let acquires = store.count(Operation::Acquire);
    sleep(secs(10)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    assert_eq!(store.count(Operation::Acquire), acquires);
    assert!(store.count(Operation::Renew) > 10, "it is still renewed");
    assert_eq!(second.await.unwrap().brief(), (200, "run"));
    assert_eq!(handler.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn once_a_run_is_ending_the_store_is_asked() {
    for (status, operation) in [(500, Operation::Release), (200, Operation::Complete)] {
        let store = Faulty::broken(operation, Fault::DelayAfter(millis(200)));
        let handler = Handler::first_then(secs(1), status, 200);
        let service = by_id(store.clone()).layer(handler.clone());
        let first = send_later(&service, post("e1"));
        handler.has_ended(1).await;
        // The end has landed, and its reply is on its way.
        store.called(operation, 1).await;
        sleep(millis(50)).await;
        let next = send(&service, post("e1")).await;
        let expected = if status == 200 { "duplicate" } else { "run" };
        assert_eq!(next.brief(), (200, expected));
        assert_eq!(first.await.unwrap().brief(), (status, "run"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_whose_lease_an_operator_took_away_runs_again_here() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::first_then(secs(30), 200, 201);
    let layer = by_id(store.clone())
        .lease(secs(60))
        .on_event(events.hook())
        .in_flight(InFlight::RetryLater);
    let service = layer.layer(handler.clone());
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    assert!(!layer.dedup().forget(&e1(), false).await.unwrap());
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    assert_eq!(store.count(Operation::Acquire), 1);

    assert!(layer.dedup().forget(&e1(), true).await.unwrap());
    assert_eq!(send(&service, post("e1")).await.brief(), (201, "run"));
    assert_eq!(
        events.count(is!(LeaseLost)),
        1,
        "the first run learns of it at once"
    );
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    match store.entry(&e1()).await {
        Some(Entry::Done { record, .. }) => assert_eq!(record.status(), Some(201)),
        other => panic!("{other:?}"),
    }
}

/// Nobody can tell it from one that a restarted store has forgotten.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_taken_away_is_taken_again_by_its_renewal_where_no_other_run_has_the_event()
 {
    let store = Faulty::new();
    let handler = Handler::first_then(secs(30), 200, 201);
    let layer = by_id(store.clone())
        .lease(secs(60))
        .in_flight(InFlight::RetryLater);
    let service = layer.layer(handler.clone());
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    assert!(layer.dedup().forget(&e1(), true).await.unwrap());
    assert!(store.entry(&e1()).await.is_none());
    sleep(secs(21)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn while_draining_duplicates_of_a_run_here_are_refused_and_its_standby_still_wakes() {
    let store = Faulty::new();
    let handler = Handler::first_then(millis(10_300), 500, 200);
    let layer = by_id(store.clone()).lease(secs(60));
    let service = layer.layer(handler.clone());
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    let drain = layer.drain_handle();
    let drained = tokio::spawn(async move { drain.drain(secs(60)).await });
    sleep(millis(10)).await;
    let duplicate = send(&service, post("e1")).await;
    let refusal = duplicate.refusal();
    assert!(matches!(refusal, Refusal::Draining { .. }), "{refusal:?}");
    assert_eq!(store.count(Operation::Acquire), 1);

    assert_eq!(first.await.unwrap().brief(), (500, "run"));
    let failed = Instant::now();
    assert!(drained.await.unwrap().is_complete());
    assert!(failed.elapsed() <= millis(2), "{:?}", failed.elapsed());
    assert_eq!(handler.runs(), 2);
}

#[test]
fn a_run_whose_runtime_ended_is_not_answered_from() {
    let store = Faulty::new();
    let handler = Handler::new(|run| async move {
        if run.n == 1 {
            std::future::pending::<()>().await;
        }
        200
    });
    let service = refusing(store.clone()).layer(handler.clone());
    let first = paused_runtime();
    first.block_on(async {
        send_later(&service, post("e1"));
        handler.began(1).await;
    });
    drop(first);
    paused_runtime().block_on(async {
        // It may be released by now, or its lease has to run out.
        let end = Instant::now() + secs(3);
        while send(&service, post("e1")).await.brief() != (200, "run") {
            assert!(Instant::now() < end, "it is held for ever");
            sleep(millis(100)).await;
        }
    });
    assert!(store.count(Operation::Acquire) >= 2, "the store was asked");
    assert_eq!(handler.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_http_it_is_the_same() {
    let store = Faulty::new();
    let dedup = Dedup::new(store.clone());
    let Begun::Acquired(lease) = dedup.begin(&e1()).await.unwrap() else {
        panic!("nobody holds it");
    };
    for _ in 0..10 {
        let begun = dedup.begin(&e1()).await.unwrap();
        let Begun::InFlight { retry_after } = begun else {
            panic!("{begun:?}");
        };
        assert_eq!(retry_after, Duration::from_secs(5));
    }
    assert_eq!(store.count(Operation::Acquire), 1);
    lease.release(Release::Abandoned).await;
    assert!(matches!(dedup.begin(&e1()).await, Ok(Begun::Acquired(_))));
}
