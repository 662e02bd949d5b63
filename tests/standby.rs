//! Promise 2: an acknowledged event is not dropped.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tower::Layer;
use tower_webhook_dedup::{
    Begun, Dedup, DedupEvent, Entry, InFlight, LeaseStore, Limits, Operation, Record,
};

use http_support::{Events, Handler, Run, by_id, c0, e1, is, millis, post, refusing, secs, send};
use standbys::{done, first_in_flight, form, form_bytes, forms, signed};
use stores::{Fault, Faulty, MemoryStore};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/standby.rs"]
mod standbys;
#[path = "support/stores.rs"]
mod stores;

/// The pauses between these moments, in milliseconds, counted from the first of them.
fn pauses(from: Instant, moments: impl IntoIterator<Item = Instant>) -> Vec<u64> {
    let mut before = from;
    let pause = |moment: Instant| {
        let pause = (moment - before).as_millis();
        before = moment;
        u64::try_from(pause).unwrap()
    };
    moments.into_iter().map(pause).collect()
}

/// R1 under the default.
#[tokio::test(start_paused = true)]
async fn an_acknowledged_duplicate_completes_the_event_when_the_first_attempt_fails() {
    let (store, events) = (MemoryStore::new(), Events::default());
    let handler = Handler::first_then(secs(1), 500, 200);
    let service = by_id(store.clone())
        .on_event(events.hook())
        .layer(handler.clone());

    let first = first_in_flight(&service, &handler).await;
    sleep(millis(100)).await;
    let asked = Instant::now();
    let second = send(&service, post("e1")).await;
    assert_eq!(second.brief(), (200, "standby"));
    assert_eq!(
        second.body,
        r#"{"status":"success","message":"Request accepted; its event is being processed."}"#
    );
    assert_eq!(asked.elapsed(), Duration::ZERO);
    assert_eq!(first.await.unwrap().brief(), (500, "run"));

    // No further request.
    handler.has_ended(2).await;
    sleep(millis(1)).await;
    assert_eq!(done(&store, &e1()).await.unwrap().status(), Some(200));
    assert!(asked.elapsed() < secs(3));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    sleep(secs(3600)).await;
    assert_eq!(handler.runs(), 2);
    assert!(events.lost().is_empty());
}

/// R1 under `RetryLater`.
#[tokio::test(start_paused = true)]
async fn a_refused_duplicate_is_never_acknowledged_and_runs_when_it_comes_again() {
    let handler = Handler::first_then(secs(1), 500, 200);
    let service = c0(MemoryStore::new())
        .in_flight(InFlight::RetryLater)
        .layer(handler.clone());
    let first = first_in_flight(&service, &handler).await;
    sleep(millis(100)).await;
    let second = send(&service, post("e1")).await;
    assert_eq!(second.brief(), (503, "in-flight"));
    assert_eq!(second.header("retry-after"), Some("2"));
    assert_eq!(
        second.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(first.await.unwrap().brief(), (500, "run"));
    sleep(secs(60)).await;
    assert_eq!(handler.runs(), 1);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(handler.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn of_two_processes_that_stand_by_one_completes_the_event() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::first_then(secs(1), 500, 200);
    let layers =
        [store.clone(), store.elsewhere()].map(|store| by_id(store).on_event(events.hook()));
    let services = layers.clone().map(|layer| layer.layer(handler.clone()));
    let first = first_in_flight(&services[0], &handler).await;
    for service in &services {
        assert_eq!(send(service, post("e1")).await.brief(), (200, "standby"));
    }
    assert_eq!(first.await.unwrap().status, 500);
    sleep(secs(600)).await;
    assert_eq!(handler.runs(), 2);
    assert!(done(&store, &e1()).await.is_some());
    // Both have forgotten it: there is nothing to wait for.
    for layer in layers {
        assert!(layer.drain_handle().drain(millis(1)).await.is_complete());
    }
    assert!(events.lost().is_empty());
}

/// R7, R1: the first attempt's process died, and nobody renews its lease.
#[tokio::test(start_paused = true)]
async fn an_acknowledged_event_of_a_dead_process_completes_one_lease_later() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    let service = by_id(store.clone()).layer(handler.clone());
    store.hold(&e1(), secs(2)).await;
    let asked = Instant::now();
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    handler.has_ended(1).await;
    assert!(asked.elapsed() >= secs(2));
    assert!(asked.elapsed() <= secs(4), "{:?}", asked.elapsed());
    sleep(millis(1)).await;
    assert!(done(&store, &e1()).await.is_some());
    sleep(secs(600)).await;
    assert_eq!(handler.runs(), 1);
}

/// R7 under `RetryLater`.
#[tokio::test(start_paused = true)]
async fn an_event_of_a_dead_process_is_refused_for_one_lease_at_most() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    let service = refusing(store.clone()).layer(handler.clone());
    store.hold(&e1(), secs(2)).await;
    sleep(secs(1)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    sleep(secs(2)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

/// How a standby waits for a lease that another holds on to.
async fn pauses_while_held(lease: u64, retention: u64) -> Vec<u64> {
    let store = Faulty::new();
    store.hold(&e1(), secs(3600)).await;
    let service = by_id(store.clone())
        .lease(secs(lease))
        .retention(secs(retention))
        .layer(Handler::ok());
    send(&service, post("e1")).await;
    sleep(secs(500)).await;
    let acquires = store.of(Operation::Acquire);
    let at = |n: usize| acquires[n].at;
    pauses(at(0), (1..=9).map(at))
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_lease_pauses_grow_up_to_half_of_it() {
    let pauses = pauses_while_held(30, 24 * 3600).await;
    let secs = [1, 2, 4, 8, 15, 15, 15, 15, 15];
    assert_eq!(pauses, secs.map(|secs| secs * 1000));
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_lease_pauses_grow_up_to_a_minute() {
    let pauses = pauses_while_held(600, 24 * 3600).await;
    let secs = [1, 2, 4, 8, 16, 32, 60, 60, 60];
    assert_eq!(pauses, secs.map(|secs| secs * 1000));
}

/// A record must not come and go between two looks.
#[tokio::test(start_paused = true)]
async fn waiting_for_a_lease_pauses_grow_up_to_a_third_of_the_retention() {
    let pauses = pauses_while_held(30, 36).await;
    let secs = [1, 2, 4, 8, 12, 12, 12, 12, 12];
    assert_eq!(pauses, secs.map(|secs| secs * 1000));
}

#[tokio::test(start_paused = true)]
async fn after_failures_of_its_own_pauses_grow_up_to_a_minute() {
    let (store, handler) = (Faulty::new(), Handler::statuses([500]));
    store.hold(&e1(), millis(900)).await;
    let service = by_id(store.clone()).lease(secs(4)).layer(handler.clone());
    send(&service, post("e1")).await;
    sleep(secs(600)).await;
    let seen = handler.seen();
    let pauses = pauses(seen[0].at, seen[1..10].iter().map(|seen| seen.at));
    let secs = [1, 2, 4, 8, 16, 32, 60, 60, 60];
    assert_eq!(pauses, secs.map(|secs| secs * 1000));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_for_hours_does_not_end_a_standby() {
    for fault in [Fault::Hang, Fault::UNREACHABLE] {
        let (store, events) = (Faulty::new(), Events::default());
        let handler = Handler::ok();
        store.hold(&e1(), secs(2)).await;
        let service = by_id(store.clone())
            .lease(secs(120))
            .on_event(events.hook())
            .layer(handler.clone());
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
        store.plan(move |_| fault);
        sleep(secs(6 * 3600)).await;
        assert_eq!(handler.runs(), 0);
        store.heal();
        handler.has_ended(1).await;
        sleep(secs(1)).await;
        assert!(done(&store, &e1()).await.is_some());
        assert!(events.lost().is_empty());
    }
}

/// A long pause while another run goes on, and then a store that fails for a moment: an event that
/// is free by then must not wait for another long pause.
#[tokio::test(start_paused = true)]
async fn after_trouble_in_the_store_a_standby_looks_again_soon() {
    let store = Faulty::with(|call| match (call.operation, call.n) {
        (Operation::Acquire, 6) => Fault::UNREACHABLE,
        _ => Fault::None,
    });
    let (layer, other) = (by_id(store.clone()), Dedup::new(store.elsewhere()));
    let layer = layer.lease(secs(60)).retention(secs(3600));
    let service = layer.layer(Handler::ok());
    let Begun::Acquired(lease) = other.begin(&e1()).await.unwrap() else {
        panic!("nobody holds it");
    };
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    while store.count(Operation::Acquire) < 6 {
        sleep(millis(100)).await;
    }
    drop(lease);
    let trouble = Instant::now();
    while done(&store, &e1()).await.is_none() {
        sleep(millis(100)).await;
        assert!(trouble.elapsed() < secs(3), "it waits for long again");
    }
}

/// One that may have acquired without hearing of it must not stand in its own way.
#[tokio::test(start_paused = true)]
async fn a_standby_whose_acquire_lost_its_reply_tries_again() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    store.hold(&e1(), millis(500)).await;
    let service = by_id(store.clone()).lease(secs(30)).layer(handler.clone());
    send(&service, post("e1")).await;
    store.plan(|call| match call.operation {
        Operation::Acquire if call.n == 2 => Fault::HangAfter,
        _ => Fault::None,
    });
    let asked = Instant::now();
    handler.has_ended(1).await;
    assert!(asked.elapsed() < secs(5), "{:?}", asked.elapsed());
}

/// Whoever is acknowledged around the moment in which a standby ends: its event is completed, or
/// it is reported after the acknowledgement.
#[tokio::test(start_paused = true)]
async fn nobody_is_acknowledged_on_a_standby_that_has_ended() {
    for offset in -40..=40_i64 {
        for yields in [0, 1, 3, 8] {
            let (store, events) = (Faulty::new(), Events::default());
            store.hold(&e1(), secs(3600)).await;
            let layer = by_id(store)
                .limits(Limits::default().standby_age(secs(10)))
                .on_event(events.hook());
            let service = layer.layer(Handler::ok());
            let end = Instant::now() + secs(10);
            send(&service, form(0)).await;
            let moment = if offset < 0 {
                end - Duration::from_micros(100 * offset.unsigned_abs())
            } else {
                end + Duration::from_micros(100 * offset.unsigned_abs())
            };
            sleep_until(moment).await;
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
            assert_eq!(send(&service, form(1)).await.brief(), (200, "standby"));
            sleep(secs(30)).await;
            let log: Vec<_> = events.all().into_iter().map(|(_, event)| event).collect();
            let joined = log.iter().rposition(is!(StoodBy));
            let lost = log
                .iter()
                .rposition(|event| matches!(event, DedupEvent::Lost(_)));
            assert!(lost > joined, "{offset} {yields}: {log:?}");
            let lost = events.lost();
            assert_eq!(lost.last().unwrap().request.body(), &form_bytes(1));
        }
    }
}

/// The same around the moment in which a standby completes its event.
#[tokio::test(start_paused = true)]
async fn whoever_is_acknowledged_as_a_standby_completes_has_a_completed_event() {
    for offset in 0..=40_u64 {
        for yields in [0, 1, 2, 5] {
            let (store, events) = (Faulty::new(), Events::default());
            let handler = Handler::first_then(millis(2), 500, 200);
            store.hold(&e1(), millis(500)).await;
            let layer = by_id(store.clone()).on_event(events.hook());
            let service = layer.layer(handler.clone());
            let begun = Instant::now();
            send(&service, form(0)).await;
            // Its first run fails from 1 000 to 1 002 ms, its second completes at 2 002 ms.
            let moment = if offset < 20 {
                begun + millis(998) + Duration::from_micros(250 * offset)
            } else {
                begun + millis(1_998) + Duration::from_micros(250 * offset)
            };
            sleep_until(moment).await;
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
            let answer = send(&service, form(1)).await;
            assert!(matches!(answer.status, 200 | 500));
            sleep(secs(60)).await;
            assert!(done(&store, &e1()).await.is_some(), "{offset} {yields}");
            assert!(events.lost().is_empty());
            assert!(layer.drain_handle().drain(millis(1)).await.is_complete());
        }
    }
}

/// Two routes, say, of which one lets its runs take longer.
#[tokio::test(start_paused = true)]
async fn a_standby_runs_each_request_under_the_settings_it_came_under() {
    let store = Faulty::new();
    let token = store.hold(&e1(), secs(60)).await;
    let handler = Handler::first_then(secs(30), 200, 200);
    let layer = by_id(store.clone());
    let short = layer.clone().run_limit(secs(3)).layer(handler.clone());
    let long = layer.run_limit(secs(60)).layer(handler.clone());
    for (service, n) in [(&short, 1), (&long, 2)] {
        assert_eq!(send(service, form(n)).await.brief(), (200, "standby"));
    }
    store.let_go(&e1(), token).await;
    handler.began(1).await;
    // Renewed for all that time.
    sleep(secs(29)).await;
    let entry = store.entry(&e1()).await;
    assert!(matches!(entry, Some(Entry::Running { .. })), "{entry:?}");
    handler.has_ended(1).await;
    assert_eq!(forms(&handler), [2]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_does_not_end_a_standby() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::new(|run: Run| async move {
        assert!(run.n > 2, "a handler that panics");
        200
    });
    store.hold(&e1(), millis(500)).await;
    let layer = by_id(store.clone()).lease(secs(30)).on_event(events.hook());
    let service = layer.layer(handler.clone());
    send(&service, post("e1")).await;
    let asked = Instant::now();
    handler.has_ended(1).await;
    assert_eq!(handler.runs(), 3);
    // Its leases were released, not waited out.
    assert_eq!(asked.elapsed().as_secs(), 1 + 1 + 2);
    sleep(millis(1)).await;
    assert!(done(&store, &e1()).await.is_some());
    assert!(events.lost().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_run_of_a_standby_past_its_limit_does_not_end_it() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::new(|run: Run| async move {
        if run.n == 1 {
            std::future::pending::<()>().await;
        }
        200
    });
    store.hold(&e1(), millis(500)).await;
    let service = by_id(store.clone())
        .run_limit(secs(10))
        .on_event(events.hook())
        .layer(handler.clone());
    send(&service, post("e1")).await;
    handler.has_ended(1).await;
    assert_eq!(handler.runs(), 2);
    assert_eq!(events.count(is!(RunLimit)), 1);
    assert!(events.lost().is_empty());
}

/// Its own first run is what a later duplicate meets.
#[tokio::test(start_paused = true)]
async fn a_duplicate_that_meets_a_standbys_own_run_is_acknowledged_and_kept() {
    let store = Faulty::new();
    let handler = Handler::new(|run: Run| async move {
        let form = run.body();
        sleep(secs(3)).await;
        if form == form_bytes(2) { 200 } else { 500 }
    });
    store.hold(&e1(), millis(500)).await;
    let service = by_id(store.clone()).layer(handler.clone());
    send(&service, form(1)).await;
    handler.began(1).await;
    assert_eq!(send(&service, form(2)).await.brief(), (200, "standby"));
    sleep(secs(60)).await;
    assert_eq!(forms(&handler), [1, 2]);
    assert!(done(&store, &e1()).await.is_some());
}

/// A standby ends when another process completes its event, without a run of its own.
#[tokio::test(start_paused = true)]
async fn a_standby_ends_when_another_process_completes_its_event() {
    let (store, events) = (Faulty::new(), Events::default());
    let token = store.hold(&e1(), secs(60)).await;
    let handler = Handler::ok();
    let layer = by_id(store.clone()).on_event(events.hook());
    let service = layer.layer(handler.clone());
    send(&service, post("e1")).await;
    sleep(secs(5)).await;
    let record = Record::new(Some(200), None);
    let by = Instant::now();
    assert!(
        store
            .inner
            .complete(&e1(), token, &record, secs(3600), by)
            .await
            .unwrap()
    );
    sleep(secs(5)).await;
    assert!(layer.drain_handle().drain(millis(1)).await.is_complete());
    assert_eq!(handler.runs(), 0);
    assert!(events.lost().is_empty());
}

/// What a standby runs is what was sent, and the handler can tell that nobody waits for it.
#[tokio::test(start_paused = true)]
async fn a_run_of_a_standby_gets_the_request_as_it_was_sent() {
    let store = Faulty::new();
    let told = Arc::new(std::sync::Mutex::new(None));
    let handler = Handler::new({
        let told = told.clone();
        move |run: Run| {
            let delivery = run.delivery();
            *told.lock().unwrap() = Some((delivery, run.request.uri().clone()));
            std::future::ready(200)
        }
    });
    store.hold(&e1(), secs(2)).await;
    let service = by_id(store.clone()).layer(handler.clone());
    let mut request = signed(form(1));
    *request.uri_mut() = "/hooks/x?a=b&a=c".parse().unwrap();
    send(&service, request).await;
    handler.has_ended(1).await;
    let seen = &handler.seen()[0];
    assert_eq!(seen.body, form_bytes(1));
    assert_eq!(seen.headers.len(), 2);
    assert_eq!(seen.headers["x-signature"], "true");
    let (delivery, uri) = told.lock().unwrap().take().unwrap();
    assert_eq!(uri, "/hooks/x?a=b&a=c");
    assert!(delivery.is_detached() && delivery.is_protected());
    assert_eq!((delivery.event_id(), delivery.attempt()), ("e1", 1));
}

/// Many events at once, each of whose first attempts fails.
#[tokio::test(start_paused = true)]
async fn every_acknowledged_event_of_many_is_completed() {
    let store = MemoryStore::new();
    let events = Events::default();
    let failed = Arc::new(std::sync::Mutex::new(HashSet::new()));
    let handler = Handler::new(move |run: Run| {
        let first = failed.lock().unwrap().insert(run.body());
        async move {
            sleep(millis(700)).await;
            if first { 500 } else { 200 }
        }
    });
    let layer = c0(store).on_event(events.hook());
    let service = layer.layer(handler.clone());
    let mut answers = JoinSet::new();
    for n in 0..600 {
        let service = service.clone();
        answers.spawn(async move {
            sleep(millis(n as u64 % 3 * 100)).await;
            send(&service, post(&format!("e{}", n % 200))).await
        });
    }
    let answers = answers.join_all().await;
    let stood_by = answers.iter().filter(|it| it.brief() == (200, "standby"));
    assert_eq!(stood_by.count(), 400);
    assert!(layer.drain_handle().drain(secs(20)).await.is_complete());
    assert_eq!(handler.runs(), 400);
    assert!(events.lost().is_empty());
}
