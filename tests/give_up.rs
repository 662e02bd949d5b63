//! An event whose runs fail again and again is ended, and reported, where that is set.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{
    BodyHash, DeadLetter, DedupEvent, Duplicate, Entry, LeaseStore, LostReason, OnDisconnect,
    Operation, Outcome, Record, RequestBody, StoreErrorKind, StoreFailure, WebhookDedupLayer,
};

use http_support::{
    Events, Handler, Run, by_id, c0, e1, is, millis, poll_until, post, post_body, secs, send,
    send_later,
};
use stores::{Fault, Faulty, MemoryStore, cached};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

fn giving_up<St: LeaseStore>(store: St, runs: u32) -> WebhookDedupLayer<St> {
    by_id(store).lease(secs(3600)).give_up_after(runs)
}

fn letters(events: &Events) -> Vec<DeadLetter> {
    let letter = |(_, event)| match event {
        DedupEvent::GaveUp(letter) => Some(letter),
        _ => None,
    };
    events.all().into_iter().filter_map(letter).collect()
}

fn failed(events: &Events) -> usize {
    events.count(is!(Failed))
}

/// Of the memory store, which answers at once.
fn by() -> Instant {
    Instant::now() + secs(1)
}

async fn record<St: LeaseStore>(layer: &WebhookDedupLayer<St>) -> Option<Record> {
    match layer.dedup().inspect(&e1()).await.unwrap() {
        Some(Entry::Done { record, .. }) => Some(record),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_failed_run_ends_the_event_and_is_reported_whole() {
    let (handler, events) = (Handler::statuses([500, 503, 422]), Events::default());
    let layer = giving_up(MemoryStore::new(), 3).on_event(events.hook());
    let service = layer.layer(handler.clone());
    let delivery = || {
        let mut request = post("e1");
        request
            .headers_mut()
            .insert("x-attempt-of", "sender".parse().unwrap());
        request
    };
    for status in [500, 503] {
        assert_eq!(send(&service, delivery()).await.brief(), (status, "run"));
        assert!(letters(&events).is_empty() && record(&layer).await.is_none());
    }
    let last = send(&service, delivery()).await;
    assert_eq!(last.brief(), (200, "gave-up"));
    assert!(last.body.contains("given up"), "{}", last.body);
    assert!(matches!(last.outcome(), Outcome::GaveUp { attempts: 3 }));

    let letters = letters(&events);
    let [letter] = &letters[..] else {
        panic!("{letters:?}");
    };
    assert_eq!((&letter.key, letter.attempts), (&e1(), 3));
    assert_eq!(letter.status, Some(422));
    assert_eq!(letter.request.body(), r#"{"id":"e1","n":1}"#);
    assert_eq!(letter.request.headers(), delivery().headers());
    assert_eq!(letter.request.uri(), "/hooks/x");
    let shown = format!("{letter:?}");
    assert!(!shown.contains("sender"), "headers may be secret: {shown}");

    let record = record(&layer).await.unwrap();
    assert!(record.is_given_up());
    assert_eq!(record.status(), Some(422));
    assert_eq!(
        record.body_hash(),
        Some(BodyHash::of(letter.request.body()))
    );

    assert_eq!(send(&service, delivery()).await.brief(), (200, "duplicate"));
    assert_eq!((handler.runs(), failed(&events)), (3, 2));
    let completed = events.count(is!(Completed));
    assert_eq!(completed, 0, "nothing completed it");
}

#[tokio::test(start_paused = true)]
async fn an_event_that_succeeds_in_time_is_completed_as_any_other() {
    let (handler, events) = (Handler::statuses([500, 500, 200]), Events::default());
    let layer = giving_up(MemoryStore::new(), 3).on_event(events.hook());
    let service = layer.layer(handler);
    for status in [500, 500, 200] {
        assert_eq!(send(&service, post("e1")).await.brief(), (status, "run"));
    }
    assert!(!record(&layer).await.unwrap().is_given_up());
    assert!(letters(&events).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_first_run_may_be_the_last_one() {
    let events = Events::default();
    let layer = giving_up(MemoryStore::new(), 1).on_event(events.hook());
    let service = layer.layer(Handler::statuses([500]));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "gave-up"));
    assert_eq!(send(&service, post("e2")).await.brief(), (200, "gave-up"));
    assert_eq!(letters(&events).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn giving_up_costs_no_store_call_more_than_failing() {
    let store = Faulty::new();
    let service = giving_up(store.clone(), 2).layer(Handler::statuses([500, 500, 200]));
    let mut called = 0;
    let mut calls = || {
        let calls: Vec<_> = store.calls().iter().map(|call| call.operation).collect();
        let new = calls[called..].to_vec();
        called = calls.len();
        new
    };
    send(&service, post("e1")).await;
    assert_eq!(calls(), [Operation::Acquire, Operation::Release], "failed");
    send(&service, post("e1")).await;
    assert_eq!(
        calls(),
        [Operation::Acquire, Operation::Complete],
        "given up"
    );
    send(&service, post("e2")).await;
    assert_eq!(
        calls(),
        [Operation::Acquire, Operation::Complete],
        "succeeded"
    );
}

#[tokio::test(start_paused = true)]
async fn failures_of_all_processes_count_together() {
    let store = MemoryStore::new();
    let events = Events::default();
    let process = || {
        let layer = giving_up(store.clone(), 3).on_event(events.hook());
        layer.layer(Handler::statuses([500]))
    };
    assert_eq!(send(&process(), post("e1")).await.brief(), (500, "run"));
    assert_eq!(send(&process(), post("e1")).await.brief(), (500, "run"));
    assert_eq!(send(&process(), post("e1")).await.brief(), (200, "gave-up"));
    assert_eq!(letters(&events).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_handler_is_a_failure() {
    let events = Events::default();
    let layer = giving_up(MemoryStore::new(), 2).on_event(events.hook());
    let service = layer.layer(service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Err::<Response<Full<Bytes>>, _>(io::Error::other("mine"))
    }));
    let error = service.clone().oneshot(post("e1")).await.unwrap_err();
    assert_eq!(error.to_string(), "mine");
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "gave-up"));
    assert_eq!(letters(&events)[0].status, None);
    assert_eq!(record(&layer).await.unwrap().status(), None);
}

#[tokio::test(start_paused = true)]
async fn a_run_over_its_limit_is_a_failure() {
    let events = Events::default();
    let layer = giving_up(MemoryStore::new(), 2)
        .run_limit(secs(60))
        .on_event(events.hook());
    let service = layer.layer(Handler::new(|_| std::future::pending()));
    assert_eq!(send(&service, post("e1")).await.brief(), (504, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "gave-up"));
    let over = events.count(is!(RunLimit));
    assert_eq!((over, letters(&events).len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_cut_off_does_not_count() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::new(|run: Run| async move {
        assert!(run.n > 1, "a handler that panics");
        if run.n == 2 {
            std::future::pending::<()>().await;
        }
        500
    });
    let layer = giving_up(store.clone(), 1)
        .on_disconnect(OnDisconnect::Cancel)
        .on_event(events.hook());
    let service = layer.layer(handler.clone());
    let panicked = send_later(&service, post("e1")).await;
    assert!(panicked.unwrap_err().is_panic());
    store.called(Operation::Release, 1).await;
    poll_until(send(&service, post("e1")), handler.began(2)).await;
    store.called(Operation::Release, 2).await;
    assert!(letters(&events).is_empty());
    sleep(millis(1)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "gave-up"));
    assert_eq!(letters(&events)[0].attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_hung_up_on_the_last_run_has_it_reported_all_the_same() {
    let events = Events::default();
    let handler = Handler::first_then(secs(1), 500, 500);
    let layer = giving_up(MemoryStore::new(), 1).on_event(events.hook());
    let service = layer.layer(handler.clone());
    poll_until(send(&service, post("e1")), handler.began(1)).await;
    handler.has_ended(1).await;
    assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    assert_eq!(letters(&events).len(), 1);
    assert!(record(&layer).await.unwrap().is_given_up());
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_hangs_up_while_it_is_recorded_has_it_reported_all_the_same() {
    let store = Faulty::broken(Operation::Complete, Fault::Hang);
    let events = Events::default();
    let layer = giving_up(store.clone(), 1).on_event(events.hook());
    let service = layer.layer(Handler::statuses([500]));
    {
        let answer = pin!(send(&service, post("e1")));
        let recording = pin!(store.called(Operation::Complete, 1));
        let Either::Right(_) = select(answer, recording).await else {
            panic!("it was answered");
        };
    }
    store.heal();
    assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    assert_eq!((letters(&events).len(), failed(&events)), (1, 0));
    assert!(record(&layer).await.unwrap().is_given_up());
}

#[tokio::test(start_paused = true)]
async fn the_runs_of_a_standby_count_and_its_last_one_ends_it() {
    let events = Events::default();
    let handler = Handler::first_then(secs(10), 500, 500);
    let layer = giving_up(MemoryStore::new(), 3).on_event(events.hook());
    let service = layer.layer(handler.clone());
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    assert_eq!(first.await.unwrap().brief(), (500, "run"));
    handler.has_ended(3).await;
    sleep(secs(3600)).await;
    assert_eq!(handler.runs(), 3, "it goes on after it gave up");
    let letters = letters(&events);
    assert_eq!((letters.len(), letters[0].attempts), (1, 3));
    assert!(events.lost().is_empty(), "it was reported already");
    assert!(layer.drain_handle().drain(secs(1)).await.is_complete());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_lost_its_lease_gives_nothing_up() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::first_then(secs(60), 500, 200);
    let layer = giving_up(store.clone(), 1)
        .lease(secs(30))
        .on_event(events.hook());
    let service = layer.layer(handler.clone());
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    assert!(layer.dedup().forget(&e1(), true).await.unwrap());
    let other = store.hold(&e1(), secs(3600)).await;
    assert_eq!(first.await.unwrap().brief(), (500, "run"));
    assert!(letters(&events).is_empty(), "another run decides");
    store.let_go(&e1(), other).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_hears_of_its_lost_lease_only_at_the_end_acknowledges_nothing() {
    for overran in [false, true] {
        let (store, events) = (Faulty::new(), Events::default());
        let handler = Handler::first_then(secs(if overran { 60 } else { 1 }), 500, 200);
        // Nothing is renewed meanwhile, so that nobody notices.
        let layer = giving_up(store.clone(), 1)
            .run_limit(secs(10))
            .on_event(events.hook());
        let service = layer.layer(handler.clone());
        let first = send_later(&service, post("e1"));
        handler.began(1).await;
        assert!(store.inner.forget(&e1(), true, by()).await.unwrap());
        let other = store.hold(&e1(), secs(3600)).await;
        let status = if overran { 504 } else { 500 };
        assert_eq!(first.await.unwrap().brief(), (status, "run"), "{overran}");
        assert!(record(&layer).await.is_none(), "another run decides");
        let lost = events.count(is!(LeaseLost));
        assert_eq!(lost, 1);
        store.let_go(&e1(), other).await;
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_whose_last_run_lost_its_lease_goes_on() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::new(|run: Run| async move {
        sleep(secs(1)).await;
        if run.n > 2 { 200 } else { 500 }
    });
    let layer = giving_up(store.clone(), 2).on_event(events.hook());
    let service = layer.layer(handler.clone());
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    assert_eq!(first.await.unwrap().brief(), (500, "run"));
    handler.began(2).await;
    assert!(store.inner.forget(&e1(), true, by()).await.unwrap());
    let other = store.hold(&e1(), secs(60)).await;
    handler.has_ended(2).await;
    sleep(secs(1)).await;
    store.let_go(&e1(), other).await;
    handler.has_ended(3).await;
    assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    assert!(!record(&layer).await.unwrap().is_given_up());
    assert!(events.lost().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_stood_by_with_another_body_is_reported_beside_the_one_that_was_given_up() {
    const FORGED: &str = r#"{"id":"e1","forged":true}"#;
    // By a run of the standby, by that of another, and at the end of a drain.
    for (runs, drains) in [(2, false), (1, false), (1, true)] {
        let events = Events::default();
        let handler = Handler::first_then(secs(10), 500, 500);
        let store = Faulty::new();
        let layer = giving_up(store.clone(), runs).on_event(events.hook());
        let service = layer.layer(handler.clone());
        let first = send_later(&service, post_body(FORGED));
        handler.began(1).await;
        for body in [r#"{"id":"e1"}"#, FORGED] {
            let answer = send(&service, post_body(body)).await;
            assert_eq!(answer.brief(), (200, "standby"));
        }
        if drains {
            // The standby does not hear of it before it is ended.
            store.breaks(Operation::Acquire, Fault::UNREACHABLE);
            let drained = layer.drain_handle().drain(secs(60)).await;
            // From a cache it hears.
            assert_eq!(drained.lost().len(), usize::from(!cached()));
        }
        first.await.unwrap();
        assert!(layer.drain_handle().drain(secs(600)).await.is_complete());
        let letters = letters(&events);
        assert_eq!(letters.len(), 1);
        let lost = events.lost();
        assert!(
            lost.len() == 1 && lost[0].reason == LostReason::GivenUp,
            "{lost:?}"
        );
        assert!(lost[0].others.is_empty());
        // Each acknowledged body is in one of the reports, whichever ran last.
        let mut bodies = [letters[0].request.body(), lost[0].request.body()];
        bodies.sort();
        assert_eq!(bodies, [r#"{"id":"e1","forged":true}"#, r#"{"id":"e1"}"#]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_ends_in_a_run_takes_the_count_with_it() {
    let store = Faulty::new();
    let service = giving_up(store.clone(), 2).layer(Handler::statuses([500]));
    assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
    store.hold(&e1(), secs(30)).await;
    sleep(secs(31)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "gave-up"));
}

#[tokio::test(start_paused = true)]
async fn a_run_without_a_confirmed_lease_gives_nothing_up() {
    for fault in [Fault::UNREACHABLE, Fault::After(StoreErrorKind::TimedOut)] {
        let (store, events) = (Faulty::broken(Operation::Acquire, fault), Events::default());
        let layer = giving_up(store.clone(), 1)
            .store_failure(StoreFailure::Forward)
            .on_event(events.hook());
        let service = layer.layer(Handler::statuses([500, 200]));
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (500, "unprotected"), "{fault:?}");
        assert!(letters(&events).is_empty());
        store.heal();
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_is_over_for_this_process_before_the_store_knows() {
    let store = Faulty::broken(Operation::Complete, Fault::UNREACHABLE);
    let (handler, events) = (Handler::statuses([500]), Events::default());
    let layer = giving_up(store.clone(), 1).on_event(events.hook());
    let service = layer.layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "gave-up"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    store.heal();
    assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    assert!(record(&layer).await.unwrap().is_given_up());
    assert_eq!((handler.runs(), letters(&events).len()), (1, 1));
    let completed = events.count(is!(Completed));
    assert_eq!(completed, 0, "nothing completed it");
}

#[tokio::test(start_paused = true)]
async fn the_sender_hears_what_duplicates_hear_where_that_is_chosen() {
    let mut reply = Response::new(Bytes::from("[accepted]"));
    *reply.status_mut() = 202.try_into().unwrap();
    let layer = giving_up(MemoryStore::new(), 1).duplicate(Duplicate::Reply(reply));
    let answer = send(&layer.layer(Handler::statuses([500])), post("e1")).await;
    assert_eq!(answer.brief(), (202, "gave-up"));
    assert_eq!(answer.body, "[accepted]");
}

// R63
#[tokio::test(start_paused = true)]
async fn an_operator_lets_it_run_again_and_the_count_begins_anew() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let last = attempts.clone();
    let handler = Handler::new(move |run: Run| {
        last.store(run.delivery().attempt() as usize, Ordering::SeqCst);
        std::future::ready(if run.n > 3 { 200 } else { 500 })
    });
    let layer = giving_up(MemoryStore::new(), 2);
    let service = layer.layer(handler);
    send(&service, post("e1")).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "gave-up"));
    assert!(layer.dedup().forget(&e1(), false).await.unwrap());
    assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert!(!record(&layer).await.unwrap().is_given_up());
}

#[test]
fn not_even_one_run_is_refused() {
    let zero = AssertUnwindSafe(|| c0(MemoryStore::new()).give_up_after(0));
    assert!(catch_unwind(zero).is_err());
}
