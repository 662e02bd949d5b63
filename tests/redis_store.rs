//! What `RedisStore` does on a server in good order.

mod support;

use std::{collections::HashSet, time::Duration};

use tokio::task::JoinSet;
use tower_webhook_dedup::{
    Acquire, Cached, Key, LeaseStore, RedisStore, RedisStoreError, Release, StoreError,
    StoreErrorKind, Token, store::contract,
};

use self::support::{
    FAILED, FakeRedis, LEASE, RedisServer, acquired, by, done, fresh, store_at, until,
};

fn open(server: &RedisServer) -> RedisStore {
    store_at(&server.url())
}

async fn acquire(store: &RedisStore, key: &Key) -> Result<Acquire, RedisStoreError> {
    store.acquire(key, Token::random(), LEASE, by()).await
}

#[tokio::test]
async fn keeps_the_contract() {
    let server = RedisServer::start();
    contract(open(&server)).await;
}

#[tokio::test]
async fn keeps_the_contract_cached() {
    let server = RedisServer::start();
    contract(Cached::new(open(&server))).await;
}

#[tokio::test]
async fn keeps_the_contract_boxed_in_another_database() {
    let server = RedisServer::start();
    let store = store_at(&format!("{}?db=3", server.url()));
    contract(store.boxed()).await;
    assert_eq!(server.number(&["DBSIZE"]), 0, "database 0 stays empty");
}

#[tokio::test]
async fn keeps_the_contract_over_given_connections() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let multiplexed = client.get_multiplexed_async_connection().await.unwrap();
    let manager = client.get_connection_manager().await.unwrap();
    tokio::join!(
        contract(RedisStore::new(multiplexed)),
        contract(RedisStore::new(manager)),
    );
}

/// A server that refuses NX with GET, as those before 7.0 do, and is in order otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_the_contract_on_an_old_server() {
    let server = RedisServer::start();
    let behind = server.url();
    let old = FakeRedis::start(move |command| {
        let is = |name: &str| command.iter().any(|argument| argument == name);
        if is("SET") && is("NX") && is("GET") {
            return "-ERR syntax error".to_owned();
        }
        let mut connection = redis::Client::open(&*behind)
            .and_then(|client| client.get_connection())
            .unwrap();
        match redis::cmd(&command[0])
            .arg(&command[1..])
            .query(&mut connection)
        {
            Ok(redis::Value::Nil) => "$-1".to_owned(),
            Ok(redis::Value::Int(n)) => format!(":{n}"),
            Ok(redis::Value::BulkString(bytes)) => {
                format!("${}\r\n{}", bytes.len(), String::from_utf8(bytes).unwrap())
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                format!(
                    "-{} {}",
                    error.code().unwrap(),
                    error.detail().unwrap_or_default()
                )
            }
        }
    })
    .await;
    let store = store_at(&old.url());
    contract(store.clone()).await;

    let refused = |commands: &[Vec<String>]| commands.iter().filter(|it| it[0] == "SET").count();
    let before = refused(&old.commands());
    acquired(&store, &fresh()).await;
    let after = refused(&old.commands());
    assert_eq!(before, after, "the store remembers, and its clones do");
}

#[tokio::test]
async fn a_user_with_the_documented_rights_can_do_all() {
    let server = RedisServer::start();
    let rights = "webhooks on >secret ~webhook:lock:* resetchannels -@all +set +get +eval +evalsha +del +pexpire";
    let mut command = vec!["ACL", "SETUSER"];
    command.extend(rights.split(' '));
    server.command(&command);
    // As it is documented, to the letter.
    let documented = include_str!("../README.md").split_whitespace();
    let documented = documented.collect::<Vec<_>>().join(" ");
    assert!(documented.contains(&format!("`ACL SETUSER {rights}`")));
    let url = format!("{}?user=webhooks&pass=secret", server.url());
    contract(store_at(&url)).await;

    // Another database is one right more.
    let url = format!("{url}&db=1");
    let key = fresh();
    let error = acquire(&store_at(&url), &key).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    server.command(&["ACL", "SETUSER", "webhooks", "+select"]);
    acquired(&store_at(&url), &key).await;
}

#[tokio::test]
async fn costs_as_many_commands_as_promised() {
    let server = RedisServer::start();
    let store = open(&server);
    // The server learns the scripts.
    contract(store.clone()).await;
    let mut watch = server.watch();

    let key = fresh();
    let token = acquired(&store, &key).await;
    assert!(
        store
            .complete(&key, token, &done(), LEASE, by())
            .await
            .unwrap()
    );
    assert_eq!(watch.commands(), ["SET", "EVALSHA"], "first delivery");

    acquire(&store, &key).await.unwrap();
    assert_eq!(watch.commands(), ["SET"], "duplicate");

    let key = fresh();
    let token = acquired(&store, &key).await;
    assert!(
        store
            .release(&key, token, FAILED, LEASE, by())
            .await
            .unwrap()
    );
    assert_eq!(watch.commands(), ["SET", "EVALSHA"], "failed run");

    let token = acquired(&store, &key).await;
    assert!(
        store
            .complete(&key, token, &done(), LEASE, by())
            .await
            .unwrap()
    );
    assert_eq!(
        watch.commands(),
        ["SET", "EVALSHA", "EVALSHA"],
        "run after a failure"
    );

    let token = acquired(&store, &fresh()).await;
    store.renew(&key, token, LEASE, by()).await.unwrap();
    store.inspect(&key, by()).await.unwrap();
    assert_eq!(watch.commands(), ["SET", "EVALSHA", "GET"]);
}

/// R42.
#[tokio::test]
async fn a_script_flush_has_no_visible_effect() {
    let server = RedisServer::start();
    let store = open(&server);
    let key = fresh();
    let token = acquired(&store, &key).await;
    let mut watch = server.watch();
    let flush = || server.command(&["SCRIPT", "FLUSH"]);

    flush();
    assert!(store.renew(&key, token, LEASE, by()).await.unwrap());
    flush();
    assert!(
        store
            .release(&key, token, FAILED, LEASE, by())
            .await
            .unwrap()
    );
    flush();
    let token = acquired(&store, &key).await;
    flush();
    assert!(
        store
            .complete(&key, token, &done(), LEASE, by())
            .await
            .unwrap()
    );
    flush();
    assert!(store.forget(&key, false, by()).await.unwrap());
    let sent: HashSet<_> = watch.commands().into_iter().collect();
    let expected = ["SCRIPT", "SET", "EVALSHA", "EVAL"].map(str::to_owned);
    assert_eq!(sent, HashSet::from(expected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_acquires_through_two_stores_one_wins() {
    let server = RedisServer::start();
    let stores = [open(&server), open(&server)];
    for round in 0..100 {
        let key = fresh();
        if round % 2 == 1 {
            // Half of the races are for a failed event.
            let token = acquired(&stores[0], &key).await;
            let released = stores[0].release(&key, token, FAILED, LEASE, by());
            assert!(released.await.unwrap());
        }
        let mut callers = JoinSet::new();
        for n in 0..50 {
            let (store, key) = (stores[n % 2].clone(), key.clone());
            callers.spawn(async move { acquire(&store, &key).await.unwrap() });
        }
        let answers = callers.join_all().await;
        let won = answers
            .iter()
            .filter(|it| matches!(it, Acquire::Acquired { .. }));
        assert_eq!(won.count(), 1, "round {round}: {answers:?}");
    }
}

/// R9: the owner of a lease that ran out comes back late.
#[tokio::test]
async fn a_late_owner_does_no_harm() {
    let server = RedisServer::start();
    let store = open(&server);
    let (key, late) = (fresh(), Token::random());
    store
        .acquire(&key, late, Duration::from_millis(20), by())
        .await
        .unwrap();
    until("the lease is over", async || {
        store.inspect(&key, by()).await.unwrap().is_none()
    })
    .await;
    let owner = acquired(&store, &key).await;
    let value = server.text(&["GET", key.as_str()]);

    for release in [FAILED, Release::Abandoned] {
        assert!(
            !store
                .release(&key, late, release, LEASE, by())
                .await
                .unwrap()
        );
    }
    assert!(!store.renew(&key, late, LEASE, by()).await.unwrap());
    assert!(
        !store
            .complete(&key, late, &done(), LEASE, by())
            .await
            .unwrap()
    );
    assert_eq!(server.text(&["GET", key.as_str()]), value);
    assert!(
        store
            .release(&key, owner, FAILED, LEASE, by())
            .await
            .unwrap()
    );
}
