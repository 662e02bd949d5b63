//! Promise 2: what a standby could not bring to an end, by its age or a drain, is reported whole.

use std::time::Duration;

use http::Method;
use tokio::{
    runtime::Builder,
    time::{Instant, sleep},
};
use tower::Layer;
use tower_webhook_dedup::{
    Begun, Dedup, DedupEvent, Key, Limits, LostReason, Operation, Record, Refusal,
};

use http_support::{Events, Handler, by_id, e1, millis, post, secs, send};
use runtime::paused_runtime;
use standbys::{done, form, form_bytes};
use stores::{Fault, Faulty};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/runtime.rs"]
mod runtime;
#[path = "support/standby.rs"]
mod standbys;
#[path = "support/stores.rs"]
mod stores;

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
    assert!(matches!(refused.refusal(), Refusal::Draining { .. }));
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
    let runtime = paused_runtime();
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
