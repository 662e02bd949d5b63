//! The whole layer while Redis is gone, full, demoted, emptied or holds nonsense: each request is
//! answered in time, nothing unheard of is taken for a duplicate, and all goes on when Redis does.

mod support;

#[path = "support/hook.rs"]
mod hook;

use std::time::Duration;

use tokio::time::Instant;
use tower_webhook_dedup::{Entry, InFlight, StoreErrorKind, StoreFailure};

use self::{
    hook::{FAIL, Hook, assert_nothing_was_given_up, entry, is_done, keys, send_until_taken},
    support::{Proxy, RedisServer, cached, until},
};

/// R28, closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_requests_are_refused_until_it_is_there() {
    let mut server = RedisServer::start();
    server.kill();
    let hook = Hook::over(&server);
    hook.send("e1").await.is_refused();
    hook.send("e1").await.is_refused();
    assert_eq!(hook.runs("e1"), 0);
    server.restart();
    send_until_taken(&hook, "e1").await.is(200, "run");
    hook.send("e1").await.is(200, "duplicate");
    assert_eq!(hook.runs("e1"), 1);
}

/// R28, open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_requests_are_forwarded_where_that_is_chosen() {
    let mut server = RedisServer::start();
    server.kill();
    let hook = Hook::with(&server.url(), |layer| {
        layer.store_failure(StoreFailure::Forward)
    });
    for _ in 0..2 {
        let answer = hook.send("e1").await;
        answer.is(200, "unprotected");
        answer.is_in_time();
    }
    assert_eq!(hook.runs("e1"), 2);
    server.restart();
    until("it is protected again", async || {
        hook.send("e2").await.outcome != "unprotected"
    })
    .await;
    hook.send("e1").await.is(200, "run");
    hook.send("e1").await.is(200, "duplicate");
    assert_eq!(hook.runs("e1"), 3);
}

/// R13.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_redis_is_an_outage_until_the_address_leads_to_the_new_one() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::before(&old).await;
    let hook = Hook::with(&proxy.url(), |layer| layer);
    hook.send("e0").await.is(200, "run");
    // A replica of nobody who answers: it refuses writes.
    old.command(&["REPLICAOF", "127.0.0.1", "1"]);
    hook.send_known("e0").await;
    hook.send("e1").await.is_refused();
    let asked = 1 + usize::from(!cached());
    assert_eq!(hook.troubles(), vec![StoreErrorKind::ReadOnly; asked]);

    proxy.lead_to(&new);
    let start = Instant::now();
    let mut refused = 0;
    for n in 1..=20 {
        let id = format!("e{n}");
        let answer = hook.send(&id).await;
        if answer.status == 503 {
            answer.is_refused();
            refused += 1;
            let slack = Duration::from_secs(1);
            assert!(refused < 5 || start.elapsed() < Duration::from_secs(2) + slack);
        } else {
            answer.is(200, "run");
            hook.send(&id).await.is(200, "duplicate");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(hook.runs("e20") == 1, "it did not recover");
    assert_eq!(hook.all_runs(), 21 - refused);
}

/// R45.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_is_an_outage_and_a_failed_run_is_released_for_all_that() {
    let server = RedisServer::start();
    let full = |full: bool| {
        let bytes = if full { "1" } else { "0" };
        server.command(&["CONFIG", "SET", "maxmemory", bytes]);
    };
    let hook = Hook::refusing(&server);
    hook.send("e0").await.is(200, "run");
    let connections = server.clients().len();

    full(true);
    hook.send_known("e0").await;
    for _ in 0..2 {
        hook.send("e1").await.is_refused();
    }
    let asked = 2 + usize::from(!cached());
    assert_eq!(hook.troubles(), vec![StoreErrorKind::OutOfMemory; asked]);
    assert_eq!(hook.all_runs(), 1);
    assert_eq!(
        server.clients().len(),
        connections,
        "it is no reason to reconnect"
    );
    full(false);
    hook.send("e1").await.is(200, "run");

    // Full while the handler runs that fails.
    let second = hook.begin("e2", FAIL).await;
    full(true);
    hook.handler.open();
    second.await.unwrap().is(500, "run");
    assert!(entry(&server, "e2").is_none(), "released at once");
    full(false);
    hook.send("e2").await.is(200, "run");

    // Full while the handler runs that succeeds.
    let third = hook.begin("e3", &[]).await;
    full(true);
    hook.handler.open();
    third.await.unwrap().is(200, "run");
    hook.send("e3").await.is(200, "duplicate");
    assert!(!is_done(&server, "e3"));
    full(false);
    until("the record is written", async || is_done(&server, "e3")).await;
    hook.drain().await;
    hook.send("e3").await.is(200, "duplicate");
    assert_eq!((hook.runs("e2"), hook.runs("e3")), (2, 1));
}

/// Redis restarts empty while a handler runs: the renewal takes the lease again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_redis_forgot_is_taken_again_with_the_same_token() {
    let mut server = RedisServer::start();
    let hook = Hook::with(&server.url(), |layer| {
        layer
            .lease(Duration::from_secs(6))
            .in_flight(InFlight::RetryLater)
    });
    let first = hook.begin("e1", &[]).await;
    let Some(Entry::Running { token: before, .. }) = entry(&server, "e1") else {
        panic!("it runs");
    };
    server.restart();
    assert!(entry(&server, "e1").is_none());
    until("the lease is there again", async || {
        entry(&server, "e1").is_some()
    })
    .await;
    let Some(Entry::Running { token: after, .. }) = entry(&server, "e1") else {
        panic!("it still runs");
    };
    assert_eq!(after, before);
    hook.send("e1").await.is_in_flight();
    hook.handler.open();
    first.await.unwrap().is(200, "run");
    assert!(is_done(&server, "e1"));
    hook.send("e1").await.is(200, "duplicate");
    assert_eq!(hook.runs("e1"), 1);
    assert_nothing_was_given_up(&hook);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_value_is_an_outage_of_its_event_and_never_a_duplicate() {
    let server = RedisServer::start();
    Hook::over(&server).send("e1").await.is(200, "run");
    let hook = Hook::over(&server);
    let key = &*keys(&server, "e1")[0];
    let nonsense = [
        "locked",
        "",
        "1",
        "v1 done",
        "v1 done x 1 200",
        "v1 running - 1 1 1",
    ];
    for value in nonsense {
        server.command(&["SET", key, value]);
        hook.send("e1").await.is_refused();
    }
    server.command(&["DEL", key]);
    server.command(&["LPUSH", key, "another type"]);
    hook.send("e1").await.is_refused();
    assert_eq!(hook.troubles(), [StoreErrorKind::BadReply; 7]);
    hook.send("e2").await.is(200, "run");
    assert_eq!(hook.runs("e1"), 0);
    server.command(&["DEL", key]);
    hook.send("e1").await.is(200, "run");
}

/// The same under a running handler: its success is not forgotten, and written when the key can
/// be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_becomes_unreadable_under_a_run_does_not_undo_it() {
    let server = RedisServer::start();
    let hook = Hook::over(&server);
    let first = hook.begin("e1", &[]).await;
    let key = &*keys(&server, "e1")[0];
    server.command(&["SET", key, "nonsense"]);
    hook.handler.open();
    first.await.unwrap().is(200, "run");
    assert_eq!(server.text(&["GET", key]), "nonsense", "it is not ours");
    hook.send("e1").await.is(200, "duplicate");
    server.command(&["DEL", key]);
    until("the record is written", async || is_done(&server, "e1")).await;
    hook.drain().await;
    hook.send("e1").await.is(200, "duplicate");
    assert_eq!(hook.runs("e1"), 1);
    assert_nothing_was_given_up(&hook);
}
