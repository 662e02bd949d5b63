//! The whole layer over a Redis in good order: what a delivery costs, what it leaves behind, and
//! whose lease counts.

mod support;

#[path = "support/hook.rs"]
mod hook;

use std::{
    collections::HashMap,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use tower_webhook_dedup::{DedupEvent, Entry};

use self::{
    hook::{FAIL, Hook},
    support::{PATIENCE, RedisServer, cached, until},
};

/// The one key of the event, in the namespace of these tests.
fn key(server: &RedisServer, id: &str) -> String {
    let keys = keys(server, &format!("webhook:lock:t:{id}:*"));
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].clone()
}

fn keys(server: &RedisServer, pattern: &str) -> Vec<String> {
    redis::from_redis_value(server.command(&["KEYS", pattern])).unwrap()
}

fn entry(server: &RedisServer, key: &str) -> Entry {
    server.text(&["GET", key]).parse().unwrap()
}

fn token(server: &RedisServer, key: &str) -> String {
    let value = server.text(&["GET", key]);
    value.split(' ').nth(2).unwrap().to_owned()
}

/// How often each command was called since the last look, by clients and by scripts.
fn command_stats(server: &RedisServer) -> HashMap<String, u64> {
    // cmdstat_set:calls=2,usec=…
    let stats = server.text(&["INFO", "commandstats"]);
    let calls = stats.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().unwrap()))
    });
    let calls = calls.collect();
    server.command(&["CONFIG", "RESETSTAT"]);
    calls
}

#[tokio::test]
async fn deliveries_cost_as_many_commands_as_promised() {
    let server = RedisServer::start();
    let hook = Hook::over(&server);
    // The server learns the scripts.
    hook.send_with("e0", FAIL).await.is(500, "run");
    hook.send("e0").await.is(200, "run");
    command_stats(&server);
    let mut watch = server.watch();

    // What MONITOR shows is what clients sent: a script counts as one. INFO commandstats counts
    // the commands inside scripts, too, as if clients had sent them: each script reads the value
    // with one GET, and ends with one SET or DEL. So `evalsha` plus `set` there is what clients
    // sent plus one SET for each script that wrote with it.
    let mut check = |what: &str, sent: &[&str], calls: [u64; 3]| {
        assert_eq!(watch.commands(), sent, "{what}");
        let stats = command_stats(&server);
        // The look itself.
        watch.commands();
        let stat = |name| stats.get(name).copied().unwrap_or(0);
        let [set, evalsha, get] = calls;
        assert_eq!(stat("evalsha"), evalsha, "{what}: {stats:?}");
        assert_eq!(stat("set"), set, "{what}: {stats:?}");
        assert_eq!(stat("get"), get, "{what}: {stats:?}");
        let others = ["eval", "script|load", "del", "pexpire", "ping", "select"];
        assert!(others.iter().all(|it| stat(it) == 0), "{what}: {stats:?}");
    };
    hook.send("e1").await.is(200, "run");
    check("first delivery", &["SET", "EVALSHA"], [2, 1, 1]);
    hook.send("e1").await.is(200, "duplicate");
    let asked = u64::from(!cached());
    check("duplicate", &["SET"][..asked as usize], [asked, 0, 0]);
    hook.send_with("e2", FAIL).await.is(500, "run");
    check("failed delivery", &["SET", "EVALSHA"], [2, 1, 1]);
    hook.send("e2").await.is(200, "run");
    check(
        "run after a failure",
        &["SET", "EVALSHA", "EVALSHA"],
        [3, 2, 2],
    );
}

/// R40, R39 in passing: what is refused or passed on without a lease costs nothing.
/// As an operator does it, who has the id of the event and nothing else.
#[tokio::test]
async fn an_event_that_is_found_by_its_id_can_be_let_run_again() {
    let server = RedisServer::start();
    let hook = Hook::over(&server);
    for id in ["e1", "e10", "e2"] {
        hook.send(id).await.is(200, "run");
    }
    let pattern = "webhook:lock:*:{id}:*";
    assert!(include_str!("../README.md").contains(pattern));
    let pattern = pattern.replace("{id}", "e1");
    let scan = ["SCAN", "0", "COUNT", "1000", "MATCH", &pattern];
    let (_, found): (String, Vec<String>) = redis::from_redis_value(server.command(&scan)).unwrap();
    let [key] = &found[..] else {
        panic!("{found:?}");
    };
    let key = key.parse().unwrap();
    assert!(hook.layer.dedup().forget(&key, false).await.unwrap());
    hook.send("e1").await.is(200, "run");
    hook.send("e10").await.is(200, "duplicate");
    hook.send("e2").await.is(200, "duplicate");
    assert_eq!(hook.runs("e1"), 2);
}

#[tokio::test]
async fn a_request_without_an_id_costs_no_command() {
    let server = RedisServer::start();
    let hook = Hook::over(&server);
    hook.send("e1").await.is(200, "run");
    let mut watch = server.watch();
    hook.send("").await.is(400, "refused");
    assert!(watch.commands().is_empty());
    assert_eq!(hook.runs(""), 0);
}

/// R52, R7: no key outlives its lease, and none is without an expiry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_has_the_expiry_that_was_configured() {
    let server = RedisServer::start();
    let (lease, retention) = (
        Duration::from_millis(1600),
        Duration::from_millis(7_777_777),
    );
    let hook = Hook::with(&server.url(), |layer| {
        layer.lease(lease).retention(retention)
    });
    let ttl = |key: &str| u64::try_from(server.number(&["PTTL", key])).expect("it has an expiry");

    let first = hook.begin("e1", &[]).await;
    let e1 = key(&server, "e1");
    let mut watch = server.watch();
    let mut renewals = 0;
    // Over more than one lease, which is renewed meanwhile.
    while renewals < 4 {
        let ttl = ttl(&e1);
        assert!(ttl > 0 && ttl <= 1600, "{ttl}");
        renewals += watch
            .commands()
            .iter()
            .filter(|name| name.starts_with("EVAL"))
            .count();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    hook.handler.open();
    first.await.unwrap().is(200, "run");
    let slack = 60_000;
    assert!((7_777_777 - slack..=7_777_777).contains(&ttl(&e1)));

    hook.send_with("e2", FAIL).await.is(500, "run");
    let e2 = ttl(&key(&server, "e2"));
    assert!((7_777_777 - slack..=7_777_777).contains(&e2), "{e2}");

    // A failure is worth remembering for a day at most; an event done, by default, for longer
    // than any sender retries (R32).
    let hook = Hook::with(&server.url(), |layer| {
        layer.retention(Duration::from_secs(4 * 24 * 3600))
    });
    hook.send_with("e3", FAIL).await.is(500, "run");
    let day = 24 * 3600 * 1000;
    assert!((day - slack..=day).contains(&ttl(&key(&server, "e3"))));
    hook.send("e3").await.is(200, "run");
    assert!((4 * day - slack..=4 * day).contains(&ttl(&key(&server, "e3"))));
}

/// R52: half a second is half a second, not none and not a whole one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_half_a_second_is_exact() {
    let server = RedisServer::start();
    let hook = Hook::with(&server.url(), |layer| {
        layer
            .lease(Duration::from_millis(500))
            .store_timeout(Duration::from_millis(125))
    });
    let mut watch = server.watch();
    let first = hook.begin("e1", &[]).await;
    let ttl = server.number(&["PTTL", &key(&server, "e1")]);
    assert!(ttl > 0 && ttl <= 500, "{ttl}");
    assert_eq!(watch.commands()[0], "SET");
    hook.handler.open();
    first.await.unwrap().is(200, "run");
}

/// R42.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_flush_at_any_step_has_no_visible_effect() {
    let server = RedisServer::start();
    let hook = Hook::with(&server.url(), |layer| layer.lease(Duration::from_secs(2)));
    let mut watch = server.watch();
    let flush = || server.command(&["SCRIPT", "FLUSH"]);
    let mut by_text = |what: &str| {
        let end = Instant::now() + PATIENCE;
        // The server and the handler's runtime go on in other threads.
        while !watch.commands().iter().any(|name| name == "EVAL") {
            assert!(Instant::now() < end, "not sent as text: {what}");
            thread::sleep(Duration::from_millis(10));
        }
    };

    flush();
    let first = hook.begin("e1", &[]).await;
    flush();
    by_text("renew");
    flush();
    hook.handler.open();
    first.await.unwrap().is(200, "run");
    by_text("complete");
    flush();
    hook.send("e1").await.is(200, "duplicate");

    let second = hook.begin("e2", FAIL).await;
    flush();
    hook.handler.open();
    second.await.unwrap().is(500, "run");
    by_text("release");
    flush();
    let third = hook.begin("e2", &[]).await;
    by_text("take over");
    flush();
    hook.handler.open();
    third.await.unwrap().is(200, "run");
    by_text("complete");
    hook.send("e2").await.is(200, "duplicate");
    assert_eq!((hook.runs("e1"), hook.runs("e2")), (1, 2));
    assert!(hook.troubles().is_empty(), "{:?}", hook.troubles());
}

/// R9: the handler blocks the only thread of its runtime, so that nobody renews its lease, which
/// runs out, and another process takes the event over.
async fn late_owner(status: &'static str) {
    let server = RedisServer::start();
    let late = Hook::with(&server.url(), |layer| {
        layer
            .lease(Duration::from_millis(600))
            .store_timeout(Duration::from_millis(150))
    });
    let other = Hook::refusing(&server);

    let hook = late.clone();
    let blocked = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let headers = [("x-block", "1"), ("x-status", status)];
            let answer = hook.send_with("e1", &headers).await;
            hook.drain().await;
            answer
        })
    });
    until("the late one runs", async || late.runs("e1") == 1).await;
    let owner = {
        let other = other.clone();
        tokio::spawn(async move {
            let gate = [("x-gate", "1")];
            loop {
                let answer = other.send_with("e1", &gate).await;
                if answer.outcome != "in-flight" {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    };
    until("the lease ran out", async || other.runs("e1") == 1).await;
    let key = key(&server, "e1");
    let owned = token(&server, &key);

    let mut watch = server.watch();
    late.handler.unblock();
    let answer = blocked.join().unwrap();
    answer.is(status.parse().unwrap(), "run");
    // One atomic step that compares, or the same again where its answer was late; never a bare
    // DEL or SET.
    let sent = watch.commands();
    assert!(
        !sent.is_empty() && sent.iter().all(|name| name.starts_with("EVAL")),
        "{sent:?}"
    );
    assert_eq!(token(&server, &key), owned, "the owner's lease stands");
    other.send("e1").await.is_in_flight();

    other.handler.open();
    owner.await.unwrap().is(200, "run");
    assert!(matches!(entry(&server, &key), Entry::Done { .. }));
    assert_eq!(token(&server, &key), owned);
    other.send("e1").await.is(200, "duplicate");
    assert_eq!((late.runs("e1"), other.runs("e1")), (1, 1));
    if status == "200" {
        let lost = |event: &DedupEvent| matches!(event, DedupEvent::LeaseLost { .. });
        assert!(late.saw(lost), "the late one is told");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_failure_does_not_release_the_lease_of_another() {
    late_owner("500").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_success_does_not_complete_over_another() {
    late_owner("200").await;
}

/// R23, with the verification inside, where it should not be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_request_does_not_take_the_place_of_the_signed_one() {
    let server = RedisServer::start();
    let hook = Hook::refusing(&server);
    hook.handler.verifies.store(true, Ordering::SeqCst);
    let signed = [("x-signature", "s")];

    hook.send("e1").await.is(401, "run");
    hook.send_with("e1", &signed).await.is(200, "run");
    hook.send("e1").await.is(200, "duplicate");
    assert_eq!(hook.runs("e1"), 1);

    // The forged one is still in flight.
    let forged = hook.begin("e2", &[]).await;
    hook.send_with("e2", &signed).await.is_in_flight();
    hook.handler.open();
    forged.await.unwrap().is(401, "run");
    hook.send_with("e2", &signed).await.is(200, "run");
    assert_eq!(hook.runs("e2"), 1);
}

/// R23 under the default: the signed one is acknowledged, so it must run without another request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signed_request_acknowledged_behind_a_forged_one_runs() {
    let server = RedisServer::start();
    let hook = Hook::over(&server);
    hook.handler.verifies.store(true, Ordering::SeqCst);
    let forged = hook.begin("e1", &[]).await;
    let signed = [("x-signature", "s")];
    hook.send_with("e1", &signed).await.is(200, "standby");
    hook.handler.open();
    forged.await.unwrap().is(401, "run");
    until("the standby ran it", async || hook.runs("e1") == 1).await;
    hook.drain().await;
    hook.send_with("e1", &signed).await.is(200, "duplicate");
    assert_eq!(hook.runs("e1"), 1);
}

/// R17.
#[tokio::test]
async fn namespaces_on_one_redis_keep_their_events_apart() {
    let server = RedisServer::start();
    let a = Hook::with(&server.url(), |layer| layer.namespace("a"));
    let b = Hook::with(&server.url(), |layer| layer.namespace("b"));
    for hook in [&a, &b] {
        hook.send("e1").await.is(200, "run");
        hook.send("e1").await.is(200, "duplicate");
        assert_eq!(hook.runs("e1"), 1);
    }
    assert_eq!(keys(&server, "webhook:lock:a:e1:*").len(), 1);
    assert_eq!(keys(&server, "webhook:lock:b:e1:*").len(), 1);

    // One layer, a tenant in the path.
    let tenants = Hook::with(&server.url(), |layer| {
        layer.namespace_with(|parts| parts.uri.path().replace("/hooks/", "tenant/"))
    });
    for path in ["/hooks/red", "/hooks/blue"] {
        tenants.send_to(path, "e1", &[]).await.is(200, "run");
        tenants.send_to(path, "e1", &[]).await.is(200, "duplicate");
    }
    assert_eq!(tenants.runs("e1"), 2);
    assert_eq!(keys(&server, "webhook:lock:tenant%2Fred:e1:*").len(), 1);

    // One namespace by mistake: the second swallows the event, and each layer says at its start
    // under which name it goes.
    let same = Hook::with(&server.url(), |layer| layer.namespace("a"));
    same.send("e1").await.is(200, "duplicate");
    for hook in [&a, &same] {
        assert!(hook.saw(|event| matches!(
            event,
            DedupEvent::Configured { namespace: Some(name), .. } if &**name == "a"
        )));
    }
}

/// Two processes that do not know of each other share what they know through Redis alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_process_runs_another_knows() {
    let server = RedisServer::start();
    let (a, b) = (Hook::refusing(&server), Hook::refusing(&server));
    let first = a.begin("e1", &[]).await;
    b.send("e1").await.is_in_flight();
    a.handler.open();
    first.await.unwrap().is(200, "run");
    b.send("e1").await.is(200, "duplicate");
    assert_eq!((a.runs("e1"), b.runs("e1")), (1, 0));
}
