//! Promise 2: an acknowledged event is not dropped.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Method, Request};
use http_body_util::Full;
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tower::Layer;
use tower_webhook_dedup::{
    AfterWait, Begun, Dedup, DedupEvent, Entry, InFlight, Key, KeyBy, LeaseStore, Limits,
    LostReason, Operation, Outcome, Record, Refusal, StoreErrorKind, WebhookDedup,
    WebhookDedupLayer,
};

use http_support::{
    Answer, Events, Handler, Run, c0, millis, post, post_body, secs, send, send_later,
};
use stores::{Fault, Faulty, MemoryStore};

#[allow(dead_code, reason = "shared, and this file needs a part of it")]
#[path = "support/http.rs"]
mod http_support;
#[allow(dead_code, reason = "shared, and this file needs a part of it")]
#[path = "support/stores.rs"]
mod stores;

/// `C0` with events told by their id alone, so that a test can hold one from outside.
fn by_id<St: LeaseStore>(store: St) -> WebhookDedupLayer<St> {
    c0(store).key_by(KeyBy::Id)
}

fn e1() -> Key {
    Key::new("t", "e1")
}

/// `e1` in the nth of its many forms.
fn form(n: usize) -> Request<Full<Bytes>> {
    post_body(&format!(r#"{{"id":"e1","form":{n}}}"#))
}

fn forms(handler: &Handler) -> Vec<usize> {
    let form = |body: String| {
        let number = body.split("form\":").nth(1)?.strip_suffix('}')?;
        number.parse().ok()
    };
    handler.bodies().into_iter().filter_map(form).collect()
}

/// The handler's first run is in flight, as `e1`.
async fn first_in_flight<St: LeaseStore>(
    service: &WebhookDedup<Handler, St>,
    handler: &Handler,
) -> tokio::task::JoinHandle<Answer> {
    let first = send_later(service, post("e1"));
    handler.began(1).await;
    first
}

async fn done(store: &impl LeaseStore, key: &Key) -> Option<Record> {
    match store.inspect(key, Instant::now() + secs(1)).await.unwrap() {
        Some(Entry::Done { record, .. }) => Some(record),
        _ => None,
    }
}

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
    let service = by_id(store.clone())
        .in_flight(InFlight::RetryLater)
        .layer(handler.clone());
    store.hold(&e1(), secs(2)).await;
    sleep(secs(1)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    sleep(secs(2)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

#[tokio::test(start_paused = true)]
async fn an_event_that_goes_on_failing_is_lost_once_by_age_with_its_whole_request() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::statuses([500]);
    let service = by_id(store.clone())
        .limits(Limits::default().standby_age(secs(600)))
        .on_event(events.hook())
        .layer(handler.clone());
    store.hold(&e1(), millis(500)).await;
    let mut request = post("e1");
    *request.uri_mut() = "/hooks/x?source=a%20b".parse().unwrap();
    request
        .headers_mut()
        .append("x-twice", "1".parse().unwrap());
    request
        .headers_mut()
        .append("x-twice", "2".parse().unwrap());
    let asked = Instant::now();
    assert_eq!(send(&service, request).await.brief(), (200, "standby"));
    sleep(secs(7 * 24 * 3600)).await;

    let lost = events.lost();
    assert_eq!(lost.len(), 1);
    assert_eq!((&lost[0].key, lost[0].reason), (&e1(), LostReason::TooOld));
    let request = &lost[0].request;
    assert_eq!(request.method(), Method::POST);
    assert_eq!(request.uri(), "/hooks/x?source=a%20b");
    assert_eq!(request.headers()["content-type"], "application/json");
    let twice: Vec<_> = request.headers().get_all("x-twice").iter().collect();
    assert_eq!(twice, ["1", "2"]);
    assert_eq!(request.body(), r#"{"id":"e1","n":1}"#);

    let (at, _) = events
        .all()
        .into_iter()
        .find(|(_, event)| matches!(event, DedupEvent::Lost(_)))
        .unwrap();
    assert_eq!((at - asked).as_secs(), 600);
    assert!(handler.runs() > 10);
    // It stays runnable.
    let runs = handler.runs();
    assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
    assert_eq!(handler.runs(), runs + 1);
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_ends_by_age_drops_its_run_and_releases_the_event() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::new(|_| std::future::pending());
    let service = by_id(store.clone())
        .limits(Limits::default().standby_age(secs(60)))
        .on_event(events.hook())
        .layer(handler.clone());
    store.hold(&e1(), millis(500)).await;
    send(&service, post("e1")).await;
    sleep(secs(61)).await;
    assert_eq!(events.lost()[0].reason, LostReason::TooOld);
    assert_eq!(handler.runs(), 1);
    assert!(store.entry(&e1()).await.is_none());
}

/// The promise is made once more while its run goes on, which is then not cut off.
#[tokio::test(start_paused = true)]
async fn a_run_of_a_standby_whose_age_was_extended_goes_on() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::first_then(secs(14), 200, 200);
    let service = by_id(store.clone())
        .limits(Limits::default().standby_age(secs(10)))
        .on_event(events.hook())
        .layer(handler.clone());
    store.hold(&e1(), millis(500)).await;
    for _ in 0..2 {
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
        sleep(secs(8)).await;
    }
    handler.has_ended(1).await;
    sleep(secs(1)).await;
    assert_eq!(handler.runs(), 1);
    assert!(done(&store.inner, &e1()).await.is_some());
    assert!(events.lost().is_empty());
}

/// The promise is made once more while the store is asked for the last time.
#[tokio::test(start_paused = true)]
async fn a_standby_joined_during_its_last_look_is_not_lost() {
    let store = Faulty::broken(Operation::Inspect, Fault::DelayAfter(millis(200)));
    let events = Events::default();
    store.hold(&e1(), secs(3600)).await;
    let service = by_id(store.clone())
        .limits(Limits::default().standby_age(secs(10)))
        .on_event(events.hook())
        .layer(Handler::ok());
    for n in 0..2 {
        let answer = send(&service, form(n)).await;
        assert_eq!(answer.brief(), (200, "standby"));
        if n == 0 {
            store.called(Operation::Inspect, 1).await;
            sleep(millis(100)).await;
        }
    }
    sleep(secs(9)).await;
    assert!(events.lost().is_empty());
    sleep(secs(2)).await;
    assert_eq!(events.lost()[0].reason, LostReason::TooOld);
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
    for fault in [Fault::Hang, Fault::Before(StoreErrorKind::Unreachable)] {
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
        (Operation::Acquire, 6) => Fault::Before(StoreErrorKind::Unreachable),
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
            let joined = log
                .iter()
                .rposition(|event| matches!(event, DedupEvent::StoodBy { .. }));
            let lost = log
                .iter()
                .rposition(|event| matches!(event, DedupEvent::Lost(_)));
            assert!(lost > joined, "{offset} {yields}: {log:?}");
            let lost = events.lost();
            assert_eq!(lost.last().unwrap().request.body(), &form_bytes(1));
        }
    }
}

fn form_bytes(n: usize) -> Bytes {
    format!(r#"{{"id":"e1","form":{n}}}"#).into()
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

/// A handler that knows true forms of the event from forged ones.
fn verifying() -> Handler {
    Handler::new(|run: Run| async move {
        if run.request.headers().contains_key("x-signature") {
            200
        } else {
            401
        }
    })
}

fn signed(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    let headers = request.headers_mut();
    headers.insert("x-signature", "true".parse().unwrap());
    request
}

/// R23: an unverified forgery must not take the only place, nor the last word.
#[tokio::test(start_paused = true)]
async fn a_forged_request_in_the_standby_does_not_keep_the_true_one_from_running() {
    for true_is_newest in [true, false] {
        let (store, events) = (Faulty::new(), Events::default());
        let handler = verifying();
        store.hold(&e1(), secs(2)).await;
        let service = by_id(store.clone())
            .on_event(events.hook())
            .layer(handler.clone());
        let (forged, truth) = (form(666), signed(form(1)));
        let order = if true_is_newest {
            [forged, truth]
        } else {
            [truth, forged]
        };
        for request in order {
            assert_eq!(send(&service, request).await.brief(), (200, "standby"));
        }
        sleep(secs(60)).await;
        assert!(done(&store, &e1()).await.is_some());
        let tried = if true_is_newest {
            vec![1]
        } else {
            vec![666, 1]
        };
        assert_eq!(forms(&handler), tried);
        assert!(events.lost().is_empty());
    }
}

/// R23: the forged request runs first, and the true one comes meanwhile.
#[tokio::test(start_paused = true)]
async fn a_true_request_that_meets_a_forged_run_completes_the_event() {
    let store = MemoryStore::new();
    let handler = Handler::new(|run: Run| async move {
        sleep(secs(1)).await;
        if run.request.headers().contains_key("x-signature") {
            200
        } else {
            401
        }
    });
    let service = by_id(store.clone()).layer(handler.clone());
    let forged = send_later(&service, form(666));
    handler.began(1).await;
    let answer = send(&service, signed(form(1))).await;
    assert_eq!(answer.brief(), (200, "standby"));
    assert_eq!(forged.await.unwrap().brief(), (401, "run"));
    sleep(secs(60)).await;
    assert!(done(&store, &e1()).await.is_some());
    assert_eq!(forms(&handler), [666, 1]);
}

#[tokio::test(start_paused = true)]
async fn up_to_four_requests_of_an_event_are_kept_and_the_newest_is_tried_first() {
    let (store, handler) = (Faulty::new(), Handler::statuses([500]));
    store.hold(&e1(), secs(2)).await;
    let service = by_id(store.clone()).layer(handler.clone());
    for n in 1..=5 {
        send(&service, form(n)).await;
    }
    handler.began(8).await;
    assert_eq!(forms(&handler)[..8], [5, 4, 3, 2, 5, 4, 3, 2]);
}

#[tokio::test(start_paused = true)]
async fn identical_requests_of_an_event_are_kept_once() {
    let (store, handler) = (Faulty::new(), Handler::statuses([500]));
    store.hold(&e1(), secs(2)).await;
    let service = by_id(store.clone()).layer(handler.clone());
    for n in [1, 2, 2, 2, 2, 2, 2] {
        send(&service, form(n)).await;
    }
    // It differs by a header.
    send(&service, signed(form(2))).await;
    handler.began(6).await;
    assert_eq!(forms(&handler)[..6], [2, 2, 1, 2, 2, 1]);
    let signed: Vec<_> = handler
        .seen()
        .iter()
        .map(|seen| seen.headers.contains_key("x-signature"))
        .collect();
    assert_eq!(signed[..3], [true, false, false]);
}

/// The newcomer of a standby that is at work gets its turn.
#[tokio::test(start_paused = true)]
async fn a_request_that_joins_a_standby_between_its_runs_is_tried_next() {
    let (store, handler) = (Faulty::new(), verifying());
    store.hold(&e1(), millis(500)).await;
    let service = by_id(store.clone()).layer(handler.clone());
    send(&service, form(1)).await;
    handler.has_ended(3).await;
    // The event is free now and then, so hold it for the joiner to find.
    store.hold(&e1(), millis(10)).await;
    let joined = send(&service, signed(form(2))).await;
    assert_eq!(joined.brief(), (200, "standby"));
    handler.has_ended(4).await;
    sleep(millis(1)).await;
    assert_eq!(forms(&handler), [1, 1, 1, 2]);
    assert!(done(&store, &e1()).await.is_some());
}

fn refusal(answer: &Answer) -> Refusal {
    match answer.outcome() {
        Outcome::InFlight(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn no_promise_is_made_beyond_the_number_of_standbys() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    for id in ["e1", "e2"] {
        store.hold(&Key::new("t", id), secs(2)).await;
    }
    let service = by_id(store.clone())
        .limits(Limits::default().standbys(1))
        .layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    let refused = send(&service, post("e2")).await;
    assert_eq!(refused.brief(), (503, "in-flight"));
    assert_eq!(refused.header("retry-after"), Some("2"));
    assert!(matches!(refusal(&refused), Refusal::NoRoom { .. }));
    // One more of the first event needs no other standby.
    assert_eq!(send(&service, form(2)).await.brief(), (200, "standby"));

    // And there is room again afterwards.
    handler.has_ended(1).await;
    sleep(secs(10)).await;
    store.hold(&Key::new("t", "e3"), secs(2)).await;
    assert_eq!(send(&service, post("e3")).await.brief(), (200, "standby"));
    sleep(secs(10)).await;
    assert_eq!(handler.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn no_promise_is_made_beyond_the_bytes_that_may_be_held() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    let service = by_id(store.clone())
        .limits(Limits::default().bytes(25_000))
        .layer(handler.clone());
    let big = |id: &str| post_body(&format!(r#"{{"id":"{id}","x":"{}"}}"#, "x".repeat(10_000)));
    for round in 0..3 {
        let ids = [1, 2, 3].map(|n| format!("e{round}{n}"));
        for id in &ids {
            store.hold(&Key::new("t", id), secs(2)).await;
        }
        for id in &ids[..2] {
            assert_eq!(send(&service, big(id)).await.brief(), (200, "standby"));
        }
        let refused = send(&service, big(&ids[2])).await;
        assert_eq!(refused.brief(), (503, "in-flight"));
        assert!(matches!(refusal(&refused), Refusal::NoRoom { .. }));
        assert!(refused.headers.contains_key("retry-after"));
        sleep(secs(60)).await;
        // The bytes are given back with the standbys.
        assert_eq!(handler.runs(), 2 * (round + 1));
    }
}

/// A request that was replaced gives its bytes back, too.
#[tokio::test(start_paused = true)]
async fn requests_of_one_event_do_not_use_up_the_bytes() {
    let store = Faulty::new();
    store.hold(&e1(), secs(3600)).await;
    let service = by_id(store)
        .limits(Limits::default().bytes(60_000))
        .layer(Handler::ok());
    for n in 0..100 {
        let body = format!(r#"{{"id":"e1","n":{n},"x":"{}"}}"#, "x".repeat(10_000));
        let answer = send(&service, post_body(&body)).await;
        assert_eq!(answer.brief(), (200, "standby"), "{n}");
    }
}

/// Nor does the same request, once more, need any room.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_stood_by_for_is_acknowledged_again_without_room() {
    let store = Faulty::new();
    store.hold(&e1(), secs(3600)).await;
    let service = by_id(store)
        .limits(Limits::default().bytes(1_500))
        .layer(Handler::ok());
    assert_eq!(send(&service, form(1)).await.brief(), (200, "standby"));
    let other = send(&service, form(2)).await;
    assert!(matches!(refusal(&other), Refusal::NoRoom { .. }));
    assert_eq!(send(&service, form(1)).await.brief(), (200, "standby"));
}

/// The age counts from the last promise, be it for another request or the same.
#[tokio::test(start_paused = true)]
async fn whoever_is_acknowledged_late_is_stood_by_for_a_whole_age() {
    for late in [1, 2] {
        let (store, events) = (Faulty::new(), Events::default());
        store.hold(&e1(), secs(3600)).await;
        let service = by_id(store)
            .limits(Limits::default().standby_age(secs(100)))
            .on_event(events.hook())
            .layer(Handler::ok());
        send(&service, form(1)).await;
        sleep(secs(99)).await;
        assert_eq!(send(&service, form(late)).await.brief(), (200, "standby"));
        sleep(secs(99)).await;
        assert!(events.lost().is_empty());
        sleep(secs(2)).await;
        assert_eq!(events.lost().len(), 1);
    }
}

/// Its last look was long before.
#[tokio::test(start_paused = true)]
async fn an_event_that_is_done_when_its_standby_reaches_its_age_is_not_lost() {
    let (store, events) = (Faulty::new(), Events::default());
    let elsewhere = Dedup::new(store.elsewhere());
    let Begun::Acquired(lease) = elsewhere.begin(&e1()).await.unwrap() else {
        panic!("not acquired");
    };
    let service = by_id(store.clone())
        .lease(secs(120))
        .limits(Limits::default().standby_age(secs(100)))
        .on_event(events.hook())
        .layer(Handler::ok());
    send(&service, post("e1")).await;
    // It looks after 1, 3, 7, 15, 31 and 63 seconds.
    sleep(secs(90)).await;
    let looks = store.count(Operation::Acquire);
    assert!(lease.complete(Record::new(None, None)).await);
    sleep(secs(11)).await;
    assert_eq!(store.count(Operation::Acquire), looks);
    assert!(events.lost().is_empty());
    sleep(secs(600)).await;
    assert_eq!(store.count(Operation::Acquire), looks, "it has ended");
}

/// Its own run answered, and the reply to its completion is not here yet.
#[tokio::test(start_paused = true)]
async fn an_event_that_its_standby_is_completing_as_it_reaches_its_age_is_not_lost() {
    for fault in [Fault::Delay(millis(250)), Fault::Hang, Fault::HangAfter] {
        let (store, events) = (
            Faulty::broken(Operation::Complete, fault),
            Events::default(),
        );
        store.hold(&e1(), millis(500)).await;
        let service = by_id(store.clone())
            .limits(Limits::default().standby_age(millis(1_100)))
            .on_event(events.hook())
            .layer(Handler::ok());
        send(&service, post("e1")).await;
        store.called(Operation::Complete, 1).await;
        sleep(secs(1)).await;
        store.heal();
        sleep(secs(5)).await;
        assert!(done(&store.inner, &e1()).await.is_some(), "{fault:?}");
        assert!(events.lost().is_empty(), "{fault:?}");
    }
}

/// The limit of a drain is over, on another thread, while the task takes its first step.
#[tokio::test(start_paused = true)]
async fn a_standby_that_is_ended_in_its_first_step_drops_its_run() {
    let (store, events) = (Faulty::new(), Events::default());
    let token = store.hold(&e1(), secs(60)).await;
    let layer = by_id(store.clone()).on_event(events.hook());
    let drain = layer.drain_handle();
    let handler = Handler::new({
        let drain = drain.clone();
        move |_| {
            let drain = drain.clone();
            let ended = std::thread::spawn(move || {
                let runtime = Builder::new_current_thread().enable_time().build().unwrap();
                runtime.block_on(drain.drain(Duration::ZERO)).lost().len()
            });
            assert_eq!(ended.join().unwrap(), 1);
            async {
                sleep(secs(1)).await;
                200
            }
        }
    });
    // The heartbeat is awake already, so that the step does not end before the run begins.
    let _other = layer.dedup().begin(&Key::new("t", "e2")).await.unwrap();
    sleep(millis(1)).await;
    let service = layer.layer(handler.clone());
    send(&service, post("e1")).await;
    store.let_go(&e1(), token).await;
    assert!(drain.drain(secs(5)).await.is_complete());
    assert_eq!((handler.runs(), handler.ended()), (1, 0));
    assert_eq!(events.lost().len(), 1);
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

/// As far as a layer was promised to, it hears.
#[tokio::test(start_paused = true)]
async fn each_layer_that_acknowledged_an_event_hears_that_it_is_lost() {
    let store = Faulty::new();
    store.hold(&e1(), secs(3600)).await;
    let layer = by_id(store).limits(Limits::default().standby_age(secs(10)));
    let events = [Events::default(), Events::default()];
    for (n, events) in events.iter().enumerate() {
        let service = layer.clone().on_event(events.hook()).layer(Handler::ok());
        for copy in 0..2 {
            send(&service, form(2 * n + copy)).await;
        }
    }
    sleep(secs(20)).await;
    for events in events {
        let lost = events.lost();
        assert_eq!(lost.len(), 1);
        assert_eq!(lost[0].request.body(), &form_bytes(3));
        let others = lost[0].others.iter().map(|request| request.body().clone());
        assert_eq!(others.collect::<Vec<_>>(), [2, 1, 0].map(form_bytes));
    }
}

/// What it holds of the user's is dropped where that may come back to the layer.
#[test]
fn a_request_that_sends_another_when_it_is_replaced_does_not_lock_up() {
    struct OnDrop<F: FnMut()>(F);
    impl<F: FnMut()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let store = Faulty::new();
            store.hold(&e1(), secs(3600)).await;
            let service = by_id(store).layer(Handler::ok());
            let mut again = Some((service.clone(), ended));
            let on_drop = OnDrop(move || {
                let Some((service, ended)) = again.take() else {
                    return;
                };
                let answer = send(&service, form(5)).now_or_never().unwrap();
                ended.send(answer.status).unwrap();
            });
            let mut first = form(0);
            first.extensions_mut().insert(Arc::new(on_drop));
            send(&service, first).await;
            for n in 1..5 {
                send(&service, form(n)).await;
            }
        });
    });
    assert_eq!(end.recv_timeout(secs(10)), Ok(200));
}

#[tokio::test(start_paused = true)]
async fn while_draining_no_promise_is_made() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    store.hold(&e1(), secs(5)).await;
    let layer = by_id(store.clone());
    let service = layer.layer(handler.clone());
    assert!(layer.drain_handle().drain(secs(1)).await.is_complete());
    let refused = send(&service, post("e1")).await;
    assert_eq!(refused.brief(), (503, "in-flight"));
    assert!(refused.headers.contains_key("retry-after"));
    assert!(matches!(refusal(&refused), Refusal::Draining { .. }));
    // What is not in flight still runs.
    assert_eq!(send(&service, post("e2")).await.brief(), (200, "run"));
    sleep(secs(60)).await;
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn draining_waits_for_a_standby_and_has_it_try_at_once() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::ok();
    store.hold(&e1(), secs(60)).await;
    let layer = by_id(store.clone())
        .lease(secs(600))
        .on_event(events.hook());
    let service = layer.layer(handler.clone());
    send(&service, post("e1")).await;
    // By now it looks only once a minute.
    sleep(secs(59)).await;
    let begun = Instant::now();
    let looks = store.count(Operation::Acquire);
    let drained = layer.drain_handle().drain(secs(20)).await;
    assert!(drained.is_complete());
    assert!(drained.lost().is_empty() && drained.detached().is_empty());
    assert!(begun.elapsed() <= secs(3), "{:?}", begun.elapsed());
    assert!(store.count(Operation::Acquire) > looks + 1);
    assert_eq!(handler.runs(), 1);
    assert!(done(&store, &e1()).await.is_some());
    assert!(events.lost().is_empty());
}

#[tokio::test(start_paused = true)]
async fn at_the_limit_of_draining_lost_events_are_returned_and_reported() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::ok();
    let layer = by_id(store.clone()).on_event(events.hook());
    let service = layer.layer(handler.clone());
    for id in ["e1", "e2"] {
        store.hold(&Key::new("t", id), secs(3600)).await;
        assert_eq!(send(&service, post(id)).await.brief(), (200, "standby"));
    }
    let begun = Instant::now();
    let drained = layer.drain_handle().drain(secs(20)).await;
    assert_eq!(begun.elapsed().as_secs(), 20);
    assert!(!drained.is_complete());
    let mut bodies: Vec<_> = drained
        .lost()
        .iter()
        .map(|lost| {
            assert_eq!(lost.reason, LostReason::Drained);
            lost.request.body().clone()
        })
        .collect();
    bodies.sort();
    assert_eq!(bodies, [r#"{"id":"e1","n":1}"#, r#"{"id":"e2","n":1}"#]);
    // Once each, and the tasks are gone.
    sleep(secs(7 * 24 * 3600)).await;
    assert_eq!(events.lost().len(), 2);
    assert!(layer.drain_handle().drain(secs(1)).await.is_complete());
    assert_eq!(handler.runs(), 0);
}

#[test]
fn a_runtime_that_ends_under_a_standby_loses_it_with_a_report() {
    let (store, events) = (Faulty::new(), Events::default());
    let layer = by_id(store.clone()).on_event(events.hook());
    let service = layer.layer(Handler::ok());
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        store.hold(&e1(), secs(3600)).await;
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
        sleep(secs(10)).await;
    });
    assert!(events.lost().is_empty());
    drop(runtime);
    let lost = events.lost();
    assert_eq!(lost.len(), 1);
    assert_eq!((&lost[0].key, lost[0].reason), (&e1(), LostReason::Dropped));
    assert_eq!(lost[0].request.body(), r#"{"id":"e1","n":1}"#);
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
    assert_eq!(
        events.count(|event| matches!(event, DedupEvent::RunLimit { .. })),
        1
    );
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

/// The default answers at once; waiting is for those who ask for it.
const WAIT: InFlight = InFlight::Wait {
    max: secs(10),
    then: AfterWait::RetryLater,
};

/// R78
#[tokio::test(start_paused = true)]
async fn a_waiting_duplicate_is_a_duplicate_when_the_first_attempt_completes() {
    let handler = Handler::first_then(millis(500), 200, 200);
    let service = by_id(MemoryStore::new())
        .in_flight(WAIT)
        .layer(handler.clone());
    let first = first_in_flight(&service, &handler).await;
    let asked = Instant::now();
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert!(asked.elapsed() < secs(1), "{:?}", asked.elapsed());
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    assert_eq!(handler.runs(), 1);
}

/// R78
#[tokio::test(start_paused = true)]
async fn one_waiting_duplicate_takes_over_when_the_first_attempt_fails() {
    let handler = Handler::first_then(millis(500), 500, 200);
    let service = by_id(MemoryStore::new())
        .in_flight(WAIT)
        .layer(handler.clone());
    let first = first_in_flight(&service, &handler).await;
    let mut waiting = JoinSet::new();
    for _ in 0..20 {
        waiting.spawn(send(&service, post("e1")));
    }
    let answers = waiting.join_all().await;
    assert_eq!(first.await.unwrap().brief(), (500, "run"));
    let ran = answers.iter().filter(|it| it.brief() == (200, "run"));
    assert_eq!(ran.count(), 1);
    let others = answers.iter().filter(|it| it.brief() == (200, "duplicate"));
    assert_eq!(others.count(), 19);
    assert_eq!(handler.runs(), 2);
}

/// R78
#[tokio::test(start_paused = true)]
async fn a_thousand_waiting_duplicates_are_bounded_in_number_and_in_load() {
    let store = Faulty::new();
    store.hold(&e1(), secs(60)).await;
    let service = by_id(store.clone())
        .in_flight(WAIT)
        .limits(Limits::default().waiters(100))
        .layer(Handler::ok());
    let asked = Instant::now();
    let (at_once, waited) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut waiting = JoinSet::new();
    for _ in 0..1_000 {
        let (service, at_once, waited) = (service.clone(), at_once.clone(), waited.clone());
        waiting.spawn(async move {
            let answer = send(&service, post("e1")).await;
            assert_eq!(answer.brief(), (503, "in-flight"));
            let counter = match asked.elapsed().as_secs() {
                0 => at_once,
                10 => waited,
                other => panic!("after {other} s"),
            };
            counter.fetch_add(1, Ordering::Relaxed);
        });
    }
    waiting.join_all().await;
    assert_eq!(at_once.load(Ordering::Relaxed), 900);
    assert_eq!(waited.load(Ordering::Relaxed), 100);
    // Pauses from 50 ms up to a second.
    let looks = store.count(Operation::Acquire) - 1_000;
    assert!(looks <= 100 * 15, "{looks}");
}

/// R78
#[tokio::test(start_paused = true)]
async fn after_waiting_in_vain_the_event_is_stood_by_for_or_refused() {
    for (then, brief, runs) in [
        (AfterWait::Acknowledge, (200, "standby"), 1),
        (AfterWait::RetryLater, (503, "in-flight"), 0),
    ] {
        let (store, handler) = (Faulty::new(), Handler::ok());
        store.hold(&e1(), secs(20)).await;
        let service = by_id(store.clone())
            .in_flight(InFlight::Wait { max: secs(3), then })
            .layer(handler.clone());
        let asked = Instant::now();
        assert_eq!(send(&service, post("e1")).await.brief(), brief);
        assert_eq!(asked.elapsed().as_secs(), 3);
        sleep(secs(60)).await;
        assert_eq!(handler.runs(), runs);
    }
}

/// R78: store errors are waited out.
#[tokio::test(start_paused = true)]
async fn a_waiting_duplicate_outlasts_trouble_in_the_store() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    store.hold(&e1(), secs(2)).await;
    store.plan(|call| match call.n {
        2..=4 => Fault::Before(StoreErrorKind::Unreachable),
        5 => Fault::Hang,
        _ => Fault::None,
    });
    let service = by_id(store.clone()).in_flight(WAIT).layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

/// A sender that hangs up while it waits has been told nothing.
#[tokio::test(start_paused = true)]
async fn a_waiting_duplicate_that_hangs_up_is_forgotten() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    store.hold(&e1(), secs(2)).await;
    let layer = by_id(store.clone())
        .in_flight(WAIT)
        .limits(Limits::default().waiters(1));
    let service = layer.layer(handler.clone());
    let waiting = send_later(&service, post("e1"));
    sleep(secs(1)).await;
    waiting.abort();
    sleep(secs(60)).await;
    assert_eq!(handler.runs(), 0);
    // And its place is free.
    store.hold(&e1(), secs(2)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
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
