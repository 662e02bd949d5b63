//! The whole layer while Redis is stopped where it is, and accepts what it does not answer: each
//! request is answered in time, and what lands late does no harm when Redis goes on.

mod support;

#[path = "support/hook.rs"]
mod hook;

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};
use tower_webhook_dedup::{DedupEvent, Entry, InFlight, Limits, Operation, StoreFailure};

use self::{
    hook::{FAIL, Hook, assert_nothing_was_given_up, entry, is_done, keys, send_until_taken},
    support::{PATIENCE, Proxy, RedisServer, until},
};

/// Redis stops, requests are refused, Redis goes on: the very events that were refused run, once.
async fn works_again_after_a_stop(in_flight: InFlight) {
    let server = RedisServer::start();
    let hook = Hook::with(&server.url(), |layer| layer.in_flight(in_flight));
    hook.send("e0").await.is(200, "run");
    let events = ["e1", "e2", "e3", "e4", "e5"];

    server.freeze();
    hook.send_known("e0").await;
    for id in events {
        hook.send(id).await.is_refused();
        hook.send(id).await.is_refused();
    }
    assert_eq!(hook.all_runs(), 1);
    server.thaw();

    for id in events {
        // At once; or the late command of a refused request holds the event for a moment, and the
        // standby runs it, or the sender when it comes again.
        let answer = send_until_taken(&hook, id).await;
        assert!(["run", "standby"].contains(&&*answer.outcome), "{answer:?}");
    }
    for id in events {
        until("the event ran", async || hook.runs(id) == 1).await;
        until("it is recorded", async || is_done(&server, id)).await;
    }
    send_until_taken(&hook, "e0").await.is(200, "duplicate");
    hook.drain().await;
    for id in events {
        hook.send(id).await.is(200, "duplicate");
    }
    assert_eq!(hook.all_runs(), 6, "each ran once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_refused_while_redis_is_stopped_run_when_it_goes_on() {
    works_again_after_a_stop(InFlight::RetryLater).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_refused_while_redis_is_stopped_run_when_it_goes_on_through_the_standby() {
    works_again_after_a_stop(InFlight::Acknowledge).await;
}

/// R19.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_that_redis_did_not_hear_is_written_later() {
    let server = RedisServer::start();
    let (hook, other) = (Hook::over(&server), Hook::over(&server));
    other.send("e0").await.is(200, "run");
    let first = hook.begin("e1", &[]).await;

    server.freeze();
    let start = Instant::now();
    hook.handler.open();
    let first = first.await.unwrap();
    first.is(200, "run");
    let took = start.elapsed();
    assert!(
        took < hook::DEADLINE + Duration::from_millis(1400),
        "{took:?}"
    );
    assert!(hook.saw(|event| matches!(event, DedupEvent::CompletionPending { .. })));
    // This process knows; another cannot, and says so.
    hook.send("e1").await.is(200, "duplicate");
    other.send("e1").await.is_refused();

    server.thaw();
    until("the record is written", async || is_done(&server, "e1")).await;
    until("it is told", async || {
        hook.saw(|event| matches!(event, DedupEvent::Completed { .. }))
    })
    .await;
    send_until_taken(&other, "e1").await.is(200, "duplicate");
    hook.send("e1").await.is(200, "duplicate");
    let ttl = server.number(&["PTTL", &keys(&server, "e1")[0]]);
    assert!(ttl > 3_600_000, "for longer than the lease: {ttl}");
    hook.drain().await;
    assert_eq!((hook.runs("e1"), other.runs("e1")), (1, 0));
    assert_nothing_was_given_up(&hook);
}

/// R19, where Redis does not come back before the lease has run out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_is_written_after_the_lease_ran_out_too() {
    let server = RedisServer::start();
    let hook = Hook::with(&server.url(), |layer| layer.lease(4 * hook::DEADLINE));
    let first = hook.begin("e1", &[]).await;
    server.freeze();
    hook.handler.open();
    first.await.unwrap().is(200, "run");
    tokio::time::sleep(5 * hook::DEADLINE).await;
    hook.send("e1").await.is(200, "duplicate");
    server.thaw();
    until("the record is written", async || is_done(&server, "e1")).await;
    hook.drain().await;
    hook.send("e1").await.is(200, "duplicate");
    assert_eq!(hook.runs("e1"), 1);
    assert_nothing_was_given_up(&hook);
}

/// A failed run whose release Redis did not hear is released when it goes on, not a lease later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_redis_did_not_hear_is_sent_again() {
    let server = RedisServer::start();
    let hook = Hook::refusing(&server);
    let first = hook.begin("e1", FAIL).await;
    server.freeze();
    hook.handler.open();
    first.await.unwrap().is(500, "run");
    server.thaw();
    // The lease is longer than this waits.
    send_until_taken(&hook, "e1").await.is(200, "run");
    hook.drain().await;
    assert!(is_done(&server, "e1"));
    assert_eq!(hook.runs("e1"), 2);
}

/// R36: renewals fail for a while, and the run keeps its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_shorter_than_the_lease_does_not_lose_it() {
    let server = RedisServer::start();
    let hook = Hook::with(&server.url(), |layer| {
        layer
            .lease(Duration::from_secs(6))
            .in_flight(InFlight::RetryLater)
    });
    let first = hook.begin("e1", &[]).await;
    server.freeze();
    until("a renewal failed", async || {
        hook.saw(|event| {
            matches!(event, DedupEvent::StoreFailed { error, .. } if error.operation() == Operation::Renew)
        })
    })
    .await;
    server.thaw();
    let ttl = || server.number(&["PTTL", &keys(&server, "e1")[0]]);
    until("a renewal came through", async || ttl() > 5_000).await;
    send_until_in_flight(&hook, "e1").await;
    hook.handler.open();
    first.await.unwrap().is(200, "run");
    assert!(is_done(&server, "e1"));
    assert_eq!(hook.runs("e1"), 1);
    assert_nothing_was_given_up(&hook);
}

async fn send_until_in_flight(hook: &Hook, id: &str) {
    until("the duplicate meets the run", async || {
        let answer = hook.send(id).await;
        assert_eq!(answer.status, 503, "{answer:?}");
        answer.outcome == "in-flight"
    })
    .await;
}

/// A request is forwarded while its `SET` is on the way: the run's end is recorded for all that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_forwarded_by_a_stopped_redis_is_recorded_when_it_goes_on() {
    let server = RedisServer::start();
    let hook = Hook::with(&server.url(), |layer| {
        layer.store_failure(StoreFailure::Forward)
    });
    hook.send("e0").await.is(200, "run");
    server.freeze();
    hook.send("e1").await.is(200, "unprotected");
    hook.send_with("e2", FAIL).await.is(500, "unprotected");
    server.thaw();
    until("the record is written", async || is_done(&server, "e1")).await;
    until("the failed one is free", async || {
        let entry = entry(&server, "e2");
        !matches!(entry, Some(Entry::Running { .. } | Entry::Done { .. }))
    })
    .await;
    hook.drain().await;
    hook.send("e1").await.is(200, "duplicate");
    hook.send("e2").await.is(200, "run");
    assert_eq!((hook.runs("e1"), hook.runs("e2")), (1, 2));
}

/// R47.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_requests_to_a_stopped_redis_are_answered_in_time_and_leave_nothing() {
    let server = RedisServer::start();
    let hook = Hook::over(&server);
    hook.send("e0").await.is(200, "run");
    let all = || (0..500).map(|n| format!("n{n}"));

    server.freeze();
    let mut requests = JoinSet::new();
    for id in all() {
        let hook = hook.clone();
        requests.spawn(async move { hook.send(&id).await });
    }
    for answer in requests.join_all().await {
        answer.is_refused();
    }
    assert_eq!(hook.all_runs(), 1);
    server.thaw();

    // What lands late is released, long before its lease of a minute has run out.
    until("no event is held", async || {
        keys(&server, "*").iter().all(|key| key.contains(":e0:"))
    })
    .await;
    hook.drain().await;
    assert_eq!(keys(&server, "*").len(), 1, "and none comes later");

    for id in all() {
        hook.send(&id).await.is(200, "run");
    }
    for id in all() {
        hook.send(&id).await.is(200, "duplicate");
    }
    assert_eq!(hook.all_runs(), 501, "each ran once");
}

/// The same, and the senders come again at once, without waiting for what lands late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_refused_requests_that_come_again_at_once_run_once_each() {
    let server = RedisServer::start();
    // Room for a standby for each.
    let hook = Hook::with(&server.url(), |layer| {
        layer.limits(Limits::default().standbys(500))
    });
    hook.send("e0").await.is(200, "run");
    let all = || (0..500).map(|n| format!("n{n}"));
    let send_all = async || {
        let mut requests = JoinSet::new();
        for id in all() {
            let hook = hook.clone();
            requests.spawn(async move { (hook.send(&id).await, id) });
        }
        requests.join_all().await
    };

    server.freeze();
    for (answer, _) in send_all().await {
        answer.is_refused();
    }
    server.thaw();
    let mut taken = 0;
    let end = Instant::now() + PATIENCE;
    while taken < 500 {
        // Each request is answered; those with 200 are the layer's from then on.
        let answers = send_all().await;
        taken = answers.iter().filter(|(it, _)| it.status == 200).count();
        assert!(Instant::now() < end, "only {taken} were taken");
    }
    until("all ran", async || hook.all_runs() == 501).await;
    hook.drain().await;
    for id in all() {
        assert_eq!(hook.runs(&id), 1, "{id}");
        hook.send(&id).await.is(200, "duplicate");
    }
}

/// The sender hangs up while the acquire is on its way: what lands late is released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_that_hangs_up_during_the_acquire_holds_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    // With time enough for the sender to hang up before it is over.
    let hook = Hook::with(&proxy.url(), |layer| {
        let layer = layer.in_flight(InFlight::RetryLater);
        layer.store_timeout(Duration::from_secs(10))
    });
    hook.send("e0").await.is(200, "run");
    let mut watch = server.watch();
    server.freeze();
    let before = proxy.passed();
    let gone = tokio::spawn({
        let hook = hook.clone();
        async move { hook.send("e1").await }
    });
    until("it is on its way", async || proxy.passed() > before).await;
    gone.abort();
    assert!(gone.await.is_err_and(|error| error.is_cancelled()));
    server.thaw();
    hook.drain().await;
    assert_eq!(watch.commands().first().unwrap(), "SET", "it did land");
    assert!(keys(&server, "e1").is_empty());
    hook.send("e1").await.is(200, "run");
    assert_eq!(hook.runs("e1"), 1);
}
