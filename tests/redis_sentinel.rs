//! `RedisStore`, and the layer, over the primary that Sentinels name: in good order, and when
//! another server becomes the primary.

mod support;

#[path = "support/hook.rs"]
mod hook;

#[path = "support/promises.rs"]
mod promises;

use std::time::Duration;

use tokio::{sync::watch, time::Instant};
use tower_webhook_dedup::{
    DedupEvent, LeaseStore, RedisStore, StoreError, StoreErrorKind, store::contract,
};

use self::{
    hook::{FAIL, Hook, send_until_taken},
    support::{
        FakeRedis, PATIENCE, Proxy, RedisServer, Service, acquired, fresh, listening,
        refused_by_name, until, works,
    },
};

fn open(service: &Service) -> RedisStore {
    RedisStore::open(&service.url()).unwrap()
}

fn primary(service: &Service) -> &RedisServer {
    service.servers().nth(service.primary()).unwrap()
}

/// Everything that needs no failover, on one service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_in_good_order_keeps_the_promises() {
    let service = Service::start();
    contract(open(&service)).await;
    let in_database = format!("{}/3", service.url());
    contract(RedisStore::open(&in_database).unwrap().boxed()).await;
    let store = open(&service);
    promises::a_late_owner_does_no_harm(&store).await;
    promises::a_crash_wedges_nothing(|| open(&service), |_| primary(&service)).await;
    let flush = || drop(primary(&service).command(&["SCRIPT", "FLUSH"]));
    promises::a_script_flush_has_no_visible_effect(&store, &fresh(), flush).await;
    promises::braces_in_ids_are_nothing_special(&Hook::with(&service.url(), |layer| layer)).await;
    a_full_primary_is_an_outage_and_still_releases(&service).await;
    a_completion_that_redis_did_not_hear_is_written_later(&service).await;
    the_documented_rights_are_enough(&service).await;
}

/// R45.
async fn a_full_primary_is_an_outage_and_still_releases(service: &Service) {
    let full = |bytes| primary(service).command(&["CONFIG", "SET", "maxmemory", bytes]);
    let hook = Hook::refusing_at(&service.url());
    let first = hook.begin("full", FAIL).await;
    full("1");
    hook.send("full-2").await.is_refused();
    assert_eq!(hook.troubles(), [StoreErrorKind::OutOfMemory]);
    hook.handler.open();
    first.await.unwrap().is(500, "run");
    assert!(hook::entry(primary(service), "full").is_none());
    full("0");
    hook.send("full").await.is(200, "run");
}

/// R19.
async fn a_completion_that_redis_did_not_hear_is_written_later(service: &Service) {
    let hook = Hook::with(&service.url(), |layer| layer);
    let first = hook.begin("heard", &[]).await;
    let server = primary(service);
    // For less time than it takes to be held for dead.
    server.freeze();
    hook.handler.open();
    first.await.unwrap().is(200, "run");
    server.thaw();
    assert!(hook.saw(|event| matches!(event, DedupEvent::CompletionPending { .. })));
    until("the record is written", async || {
        service.servers().any(|it| hook::is_done(it, "heard"))
    })
    .await;
    hook.drain().await;
    send_until_taken(&hook, "heard").await.is(200, "duplicate");
    assert_eq!(hook.runs("heard"), 1);
}

async fn the_documented_rights_are_enough(service: &Service) {
    let rights = "webhooks on >secret ~webhook:lock:* resetchannels -@all +set +get +eval +evalsha +del +pexpire";
    let mut command = vec!["ACL", "SETUSER"];
    command.extend(rights.split(' '));
    for role in [false, true] {
        if role {
            command.push("+role");
        }
        for server in service.servers() {
            server.command(&command);
        }
        let url = service.url().replace("://", "://webhooks:secret@");
        let store = RedisStore::open(&url).unwrap();
        contract(store.clone()).await;
        let shown = format!("{store:?}");
        assert!(
            shown.contains(Service::NAME) && !shown.contains("secret"),
            "{shown}"
        );
    }
}

/// R2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_an_acquire_is_no_duplicate() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    // A Sentinel that knows the primary behind the proxy.
    let (port, sentinel) = listening(&["--sentinel"]);
    let (host, behind) = proxy.url()["redis://".len()..]
        .split_once(':')
        .map(|(host, port)| (host.to_owned(), port.to_owned()))
        .unwrap();
    sentinel.command(&["SENTINEL", "MONITOR", Service::NAME, &host, &behind, "1"]);
    let url = format!("redis+sentinel://127.0.0.1:{port}/{}", Service::NAME);
    let store = RedisStore::open(&url).unwrap();
    for cut in 1..=3 {
        proxy.cut_next_reply();
        acquired(&store, &fresh()).await;
        assert_eq!(proxy.cuts(), cut);
    }
    let hook = Hook::with(&url, |layer| layer);
    proxy.cut_next_reply();
    hook.send("e1").await.is(200, "run");
    assert_eq!((proxy.cuts(), hook.runs("e1")), (4, 1));
    assert!(hook::is_done(&server, "e1"));
}

/// R13: an operator forces it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_forced_failover_the_new_primary_is_found() {
    let service = Service::start();
    let hook = Hook::with(&service.url(), |layer| layer);
    send_until_taken(&hook, "e0").await.is(200, "run");
    let running = hook.begin("e1", &[]).await;
    let before = service.primary();
    let start = Instant::now();
    service.fail_over();
    // The old one does not know yet that it was replaced, and would take more: it is left all the
    // same.
    until("the new one is found", async || {
        hook.send("found").await;
        service.servers().nth(service.primary()).is_some_and(|new| {
            let calls = new.text(&["INFO", "commandstats"]);
            calls.contains("cmdstat_set:")
        })
    })
    .await;
    let old = service.servers().nth(before).unwrap();
    let unaware = old.text(&["INFO", "replication"]).contains("role:master");
    assert!(unaware, "found after {:?} only", start.elapsed());
    let mut refused = 0;
    for n in 2..20 {
        let answer = hook.send(&format!("e{n}")).await;
        answer.is_in_time();
        if answer.status == 503 {
            answer.is_refused();
            refused += 1;
        } else {
            answer.is(200, "run");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(refused < 5, "{refused} of 18 after the failover");
    hook.handler.open();
    running.await.unwrap().is(200, "run");
    hook.drain().await;
    let new = primary(&service);
    assert!(hook::is_done(new, "e1"));
    for n in 0..20 {
        let answer = send_until_taken(&hook, &format!("e{n}")).await;
        assert_eq!(answer.status, 200);
        let runs = hook.runs(&format!("e{n}"));
        assert_eq!(runs, 1, "e{n}");
    }
}

/// R13, R47: the primary dies, or stops where it is, in the middle of traffic.
async fn the_primary_is_gone(dead: bool) {
    let mut service = Service::start();
    // One of the Sentinels, too: two are enough.
    service.sentinel_mut(0).freeze();
    let hook = Hook::with(&service.url(), |layer| layer);
    send_until_taken(&hook, "e0").await.is(200, "run");
    let old = service.primary();
    if dead {
        service.server_mut(old).kill();
    } else {
        service.server_mut(old).freeze();
    }
    let start = Instant::now();
    let mut n = 0;
    loop {
        n += 1;
        let answer = hook.send(&format!("e{n}")).await;
        answer.is_in_time();
        if answer.status == 200 {
            answer.is(200, "run");
            break;
        }
        answer.is_refused();
        assert!(start.elapsed() < PATIENCE, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("gone for {:?}", start.elapsed());
    for n in 0..=n {
        let answer = send_until_taken(&hook, &format!("e{n}")).await;
        assert_eq!(answer.status, 200);
    }
    hook.drain().await;
    for n in 1..=n {
        assert_eq!(hook.runs(&format!("e{n}")), 1);
    }
    assert_ne!(service.primary(), old);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_dies_is_replaced() {
    the_primary_is_gone(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_falls_silent_is_replaced() {
    the_primary_is_gone(false).await;
}

/// Not at each call.
#[tokio::test]
async fn sentinels_are_asked_once_a_second_where_the_primary_is() {
    let (tell, told) = watch::channel(String::new());
    // Sentinel and primary in one.
    let fake = FakeRedis::start(move |command| match command[0].as_str() {
        "SENTINEL" => told.borrow().clone(),
        "ROLE" => "*1\r\n$6\r\nmaster".into(),
        _ => "$-1".into(),
    });
    let fake = fake.await;
    let url = fake.url().replace("redis://", "redis+sentinel://");
    let port = url.rsplit(':').next().unwrap();
    tell.send_replace(format!(
        "*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}",
        port.len()
    ));
    let asked = || {
        fake.commands()
            .iter()
            .filter(|it| it[0] == "SENTINEL")
            .count() as u64
    };
    let store = RedisStore::open(&format!("{url}/{}", Service::NAME)).unwrap();
    let start = Instant::now();
    until("they were asked twice more", async || {
        works(&store).await && asked() >= 3
    })
    .await;
    let most = 1 + start.elapsed().as_secs();
    assert!(asked() <= most, "more than {most} times");
}

/// R48.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_cannot_help_are_an_error_in_time() {
    let store = RedisStore::open("redis+sentinel://127.0.0.1:1,127.0.0.1:2/webhooks").unwrap();
    let error = refused_by_name(&store).await;
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    assert!(!error.may_have_landed());

    // A Sentinel that asks for a password, and knows of nothing at first.
    let (port, sentinel) = listening(&["--sentinel"]);
    let url = format!("redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/webhooks");
    let unknown = refused_by_name(&RedisStore::open(&url).unwrap()).await;
    assert_eq!(unknown.kind(), StoreErrorKind::Unreachable, "{unknown}");
    assert!(!unknown.may_have_landed());

    let (server_port, server) = listening(&["--requirepass", "right"]);
    let server_port = server_port.to_string();
    sentinel.command(&[
        "SENTINEL",
        "MONITOR",
        "webhooks",
        "127.0.0.1",
        &server_port,
        "1",
    ]);
    sentinel.command(&["SENTINEL", "SET", "webhooks", "auth-pass", "right"]);
    sentinel.command(&["ACL", "SETUSER", "default", "resetpass", ">s3cr3t"]);
    let with_login = url.replace("://", "://:right@");
    let denied = refused_by_name(&RedisStore::open(&with_login).unwrap()).await;
    assert_eq!(denied.kind(), StoreErrorKind::Denied, "{denied}");
    let login = |password| {
        let builder = RedisStore::builder(&with_login);
        builder.sentinel_login("default", password).open().unwrap()
    };
    let wrong = refused_by_name(&login("wr0ng")).await;
    assert_eq!(wrong.code(), Some("WRONGPASS"), "{wrong}");
    assert!(!format!("{wrong:?}").contains("wr0ng"));
    let store = login("s3cr3t");
    acquired(&store, &fresh()).await;
    let shown = format!("{store:?}");
    assert!(
        !shown.contains("s3cr3t") && !shown.contains("right"),
        "{shown}"
    );

    // What it names is a replica, and says so.
    let url = format!("{}?pass=right", server.url());
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut demote = redis::cmd("REPLICAOF");
    demote
        .arg("127.0.0.1")
        .arg("1")
        .exec(&mut connection)
        .unwrap();
    until("it is not trusted", async || !works(&login("s3cr3t")).await).await;
    let error = refused_by_name(&login("s3cr3t")).await;
    assert!(error.to_string().contains("replica"), "{error}");
}
