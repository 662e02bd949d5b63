//! What `RedisStore` does when the server or the network fails under it.

mod support;

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};
use tower_webhook_dedup::{
    Acquire, Entry, LeaseStore, RedisStore, Release, StoreError, StoreErrorKind, Token,
};

use self::support::{
    FAILED, LEASE, PATIENCE, Proxy, RedisServer, acquired, by, done, fresh, refused,
    refused_by_name, store_at, until, works,
};

fn open(server: &RedisServer) -> RedisStore {
    store_at(&server.url())
}

/// R2, R72.
#[tokio::test]
async fn a_lost_reply_to_an_acquire_is_no_duplicate() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = store_at(&proxy.url());
    // The first on a new connection, and later ones.
    for cut in 1..=3 {
        proxy.cut_next_reply();
        acquired(&store, &fresh()).await;
        assert_eq!(proxy.cuts(), cut);
    }
}

#[tokio::test]
async fn a_lost_reply_to_any_other_step_does_no_harm() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = store_at(&proxy.url());
    // The server learns the scripts: a refusal to run an unknown one is not what is to get lost.
    let (key, token) = (fresh(), Token::random());
    let acquire = || store.acquire(&key, token, LEASE, by());
    let renew = || store.renew(&key, token, LEASE, by());
    let release = || store.release(&key, token, FAILED, LEASE, by());
    let done = done();
    let complete = || store.complete(&key, token, &done, LEASE, by());
    acquire().await.unwrap();
    assert!(renew().await.unwrap() && release().await.unwrap());
    acquire().await.unwrap();
    assert!(complete().await.unwrap());
    assert!(store.forget(&key, false, by()).await.unwrap());

    assert_eq!(acquire().await.unwrap(), Acquire::Acquired { attempt: 1 });
    proxy.cut_next_reply();
    assert!(renew().await.unwrap());
    proxy.cut_next_reply();
    // Nothing is left to release the second time: the one answer that changes.
    assert!(!release().await.unwrap());
    proxy.cut_next_reply();
    let failed = store.inspect(&key, by()).await.unwrap();
    assert!(
        matches!(failed, Some(Entry::Failed { attempts: 1, .. })),
        "counted once: {failed:?}"
    );

    // SET finds the failure; it is the reply to the script that takes over that gets lost.
    let mut watch = server.watch();
    proxy.cut_reply_after(1);
    assert_eq!(acquire().await.unwrap(), Acquire::Acquired { attempt: 2 });
    assert_eq!(watch.commands(), ["SET", "EVALSHA", "EVALSHA"]);
    proxy.cut_next_reply();
    assert!(complete().await.unwrap());
    proxy.cut_next_reply();
    let duplicate = store.acquire(&key, Token::random(), LEASE, by()).await;
    assert_eq!(duplicate.unwrap(), Acquire::Done(done.clone()));
    assert_eq!(proxy.cuts(), 6);
}

#[tokio::test]
async fn a_reply_that_is_lost_again_and_again_may_have_landed() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = store_at(&proxy.url());
    proxy.cut_all_replies();
    let (key, token) = (fresh(), Token::random());
    let error = store.acquire(&key, token, LEASE, by()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    assert!(error.may_have_landed());
    assert_eq!(proxy.cuts(), 2, "one repeat, not more");
    proxy.forward();
    // The caller who comes back with its token finds its lease.
    until("it works again", async || works(&store).await).await;
    let found = store.acquire(&key, token, LEASE, by()).await.unwrap();
    assert_eq!(found, Acquire::Acquired { attempt: 1 });
}

#[tokio::test]
async fn what_landed_is_not_forgotten_when_the_repeat_is_not_sent() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = store_at(&proxy.url());
    acquired(&store, &fresh()).await;
    proxy.cut_last_reply();
    let error = refused(&store).await;
    assert!(error.to_string().contains("still connecting"), "{error}");
    assert!(error.may_have_landed());
    assert_eq!(server.number(&["DBSIZE"]), 2, "it did land");
}

/// R72.
#[tokio::test]
async fn a_connection_closed_while_idle_is_not_noticed() {
    let server = RedisServer::with(&["--timeout", "1"]);
    let store = open(&server);
    acquired(&store, &fresh()).await;
    until("the server hung up", async || server.clients().is_empty()).await;
    acquired(&store, &fresh()).await;

    server.command(&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES"]);
    acquired(&store, &fresh()).await;
}

#[tokio::test]
async fn a_restarted_server_is_found_again() {
    let mut server = RedisServer::start();
    let store = open(&server);
    let key = fresh();
    let token = acquired(&store, &key).await;
    server.kill();
    let error = refused_by_name(&store).await;
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");

    server.restart();
    until("it works again", async || works(&store).await).await;
    assert!(
        store.renew(&key, token, LEASE, by()).await.unwrap(),
        "takes the lost lease again"
    );
    let entry = store.inspect(&key, by()).await.unwrap();
    assert!(entry.is_some_and(|entry| entry.token() == token));
}

/// R47.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_a_frozen_server_end_in_time() {
    let server = RedisServer::start();
    let store = open(&server);
    acquired(&store, &fresh()).await;
    server.freeze();
    let mut callers = JoinSet::new();
    for _ in 0..500 {
        let store = store.clone();
        callers.spawn(async move { refused(&store).await });
    }
    for error in callers.join_all().await {
        assert_eq!(error.kind(), StoreErrorKind::TimedOut, "{error}");
        assert!(error.may_have_landed(), "{error}");
    }
    // A new connection is being made by now, and no command was sent.
    let error = refused(&store).await;
    assert!(!error.may_have_landed(), "{error}");
    server.thaw();
    until("it works again", async || works(&store).await).await;
    acquired(&store, &fresh()).await;
}

#[tokio::test]
async fn a_late_reply_counts_if_the_deadline_is_later() {
    let server = RedisServer::start();
    let store = open(&server);
    acquired(&store, &fresh()).await;
    server.freeze();
    let call = tokio::spawn(async move { acquired(&store, &fresh()).await });
    // Longer than the client's own limit of 500 ms, and the repeat's.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert!(!call.is_finished());
    server.thaw();
    call.await.unwrap();
}

#[tokio::test]
async fn a_connection_that_stopped_answering_is_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = store_at(&proxy.url());
    acquired(&store, &fresh()).await;
    // The old connection stays dumb, while a new one would be fine.
    proxy.black_hole();
    for _ in 0..3 {
        assert_eq!(refused(&store).await.kind(), StoreErrorKind::TimedOut);
        assert_eq!(proxy.connections(), 1);
    }
    until("it is closed", async || server.clients().is_empty()).await;
    proxy.forward();
    acquired(&store, &fresh()).await;
    assert_eq!(proxy.connections(), 2);
}

/// A call that went out over the old one, and has more time than the others.
#[tokio::test]
async fn a_connection_is_not_given_up_for_the_one_before_it() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = store_at(&proxy.url());
    acquired(&store, &fresh()).await;
    proxy.black_hole();
    let patient = tokio::spawn({
        let (store, by) = (store.clone(), Instant::now() + Duration::from_secs(6));
        async move { store.inspect(&fresh(), by).await }
    });
    for _ in 0..3 {
        assert_eq!(refused(&store).await.kind(), StoreErrorKind::TimedOut);
    }
    proxy.forward();
    acquired(&store, &fresh()).await;
    let error = patient.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TimedOut, "{error}");
    acquired(&store, &fresh()).await;
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test]
async fn a_call_without_time_is_not_sent() {
    let server = RedisServer::start();
    let store = open(&server);
    acquired(&store, &fresh()).await;
    let key = fresh();
    let acquire = store.acquire(&key, Token::random(), LEASE, Instant::now());
    let error = acquire.await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TimedOut, "{error}");
    assert!(!error.may_have_landed(), "{error}");
    acquired(&store, &fresh()).await;
    assert_eq!(server.number(&["DBSIZE"]), 2);
}

/// Also where the answer is an error: the server is there.
#[tokio::test]
async fn a_connection_that_answers_now_and_then_is_kept() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = store_at(&proxy.url());
    acquired(&store, &fresh()).await;
    let list = fresh();
    server.command(&["LPUSH", list.as_str(), "a"]);
    for refuses in [false, true, false] {
        server.freeze();
        for _ in 0..2 {
            assert_eq!(refused(&store).await.kind(), StoreErrorKind::TimedOut);
        }
        server.thaw();
        if refuses {
            let error = store.inspect(&list, by()).await.unwrap_err();
            assert_eq!(error.code(), Some("WRONGTYPE"), "{error}");
        } else {
            acquired(&store, &fresh()).await;
        }
    }
    assert_eq!(proxy.connections(), 1);
}

/// R45.
#[tokio::test]
async fn a_full_server_refuses_and_still_releases() {
    let server = RedisServer::start();
    let store = open(&server);
    let (key, second) = (fresh(), fresh());
    let token = acquired(&store, &key).await;
    let other = acquired(&store, &second).await;
    let clients = server.clients();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);

    let error = store
        .acquire(&fresh(), Token::random(), LEASE, by())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::OutOfMemory, "{error}");
    assert!(
        !error.may_have_landed() && error.to_string().contains("OOM"),
        "{error}"
    );
    let error = store
        .complete(&key, token, &done(), LEASE, by())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::OutOfMemory, "{error}");

    assert!(store.renew(&key, token, LEASE, by()).await.unwrap());
    assert!(
        store
            .release(&key, token, FAILED, LEASE, by())
            .await
            .unwrap()
    );
    assert_eq!(
        store.inspect(&key, by()).await.unwrap(),
        None,
        "without the count"
    );
    assert!(
        !store
            .release(&second, token, FAILED, LEASE, by())
            .await
            .unwrap()
    );
    assert!(
        store
            .release(&second, other, Release::Abandoned, LEASE, by())
            .await
            .unwrap()
    );

    let same = server.clients().len() == 1 && clients.len() == 1;
    assert!(
        same,
        "no new connection: {clients:?}, {:?}",
        server.clients()
    );
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    acquired(&store, &key).await;
}

/// R13: an address leads to another server, and the old one became a replica.
#[tokio::test]
async fn a_connection_to_a_replica_is_replaced() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::before(&old).await;
    let store = store_at(&proxy.url());
    acquired(&store, &fresh()).await;
    old.command(&["REPLICAOF", "127.0.0.1", "1"]);
    proxy.lead_to(&new);
    let error = refused_by_name(&store).await;
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    assert_eq!(error.code(), Some("READONLY"));
    assert!(!error.may_have_landed());
    acquired(&store, &fresh()).await;
    assert_eq!(new.number(&["DBSIZE"]), 1);
}

#[tokio::test]
async fn a_server_that_stays_a_replica_is_not_stormed() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = store_at(&proxy.url());
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let start = Instant::now();
    let mut told = false;
    while !told || start.elapsed() < Duration::from_secs(1) {
        match refused(&store).await.kind() {
            StoreErrorKind::ReadOnly => told = true,
            // The machine is busy.
            StoreErrorKind::TimedOut => {}
            other => panic!("{other}"),
        }
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(
        proxy.connections() <= 8,
        "{} connections",
        proxy.connections()
    );
    server.command(&["REPLICAOF", "NO", "ONE"]);
    until("it takes writes", async || {
        store
            .acquire(&fresh(), Token::random(), LEASE, by())
            .await
            .is_ok()
    })
    .await;
}
