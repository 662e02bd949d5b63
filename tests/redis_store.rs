//! What `RedisStore` does on a server in good order.

mod support;

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use tokio::{task::JoinSet, time::Instant};
use tower_webhook_dedup::{
    Acquire, Entry, Key, LeaseStore, Record, RedisStore, RedisStoreError, Release, StoreError,
    StoreErrorKind, Token, store::contract,
};

use self::support::{FakeRedis, RedisServer, until};

const LEASE: Duration = Duration::from_secs(30);
const FAILED: Release = Release::Failed { status: Some(500) };

fn by() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn done() -> Record {
    Record::new(Some(200), None)
}

fn open(server: &RedisServer) -> RedisStore {
    RedisStore::open(&server.url()).unwrap()
}

/// A key of its own for each call.
fn fresh() -> Key {
    Key::new("test", &Token::random().to_string())
}

async fn acquire(store: &RedisStore, key: &Key) -> Result<Acquire, RedisStoreError> {
    store.acquire(key, Token::random(), LEASE, by()).await
}

async fn acquired(store: &RedisStore, key: &Key) -> Token {
    let token = Token::random();
    let acquired = store.acquire(key, token, LEASE, by()).await.unwrap();
    assert!(matches!(acquired, Acquire::Acquired { .. }), "{acquired:?}");
    token
}

#[tokio::test]
async fn keeps_the_contract() {
    let server = RedisServer::start();
    contract(open(&server)).await;
}

#[tokio::test]
async fn keeps_the_contract_boxed_in_another_database() {
    let server = RedisServer::start();
    let store = RedisStore::open(&format!("{}?db=3", server.url())).unwrap();
    contract(store.boxed()).await;
    assert_eq!(server.number(&["DBSIZE"]), 0, "database 0 stays empty");
}

#[tokio::test]
async fn keeps_the_contract_over_a_given_connection() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let multiplexed = client.get_multiplexed_async_connection().await.unwrap();
    contract(RedisStore::new(multiplexed)).await;
    let manager = client.get_connection_manager().await.unwrap();
    contract(RedisStore::new(manager)).await;
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
    let store = RedisStore::open(&old.url()).unwrap();
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
    let url = format!("{}?user=webhooks&pass=secret", server.url());
    contract(RedisStore::open(&url).unwrap()).await;
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

/// R52.
#[tokio::test]
async fn every_key_expires_and_when_it_should() {
    let server = RedisServer::start();
    let store = open(&server);
    let pttl = |key: &Key| server.number(&["PTTL", key.as_str()]);
    let exact = |key: &Key, time: Duration, since: std::time::Instant| {
        let left = pttl(key);
        let time = i64::try_from(time.as_millis()).unwrap();
        let passed = i64::try_from(since.elapsed().as_millis()).unwrap() + 1;
        assert!(
            time - passed <= left && left <= time,
            "{left} of {time} ms, after {passed}"
        );
    };

    for time in [500, 1_500].map(Duration::from_millis) {
        let (key, token) = (fresh(), Token::random());
        let start = std::time::Instant::now();
        store.acquire(&key, token, time, by()).await.unwrap();
        exact(&key, time, start);

        let start = std::time::Instant::now();
        assert!(store.renew(&key, token, time, by()).await.unwrap());
        exact(&key, time, start);

        let start = std::time::Instant::now();
        assert!(
            store
                .release(&key, token, FAILED, time, by())
                .await
                .unwrap()
        );
        exact(&key, time, start);

        let start = std::time::Instant::now();
        store.acquire(&key, token, time, by()).await.unwrap();
        exact(&key, time, start);

        let start = std::time::Instant::now();
        assert!(
            store
                .complete(&key, token, &done(), time, by())
                .await
                .unwrap()
        );
        exact(&key, time, start);

        server.command(&["DEL", key.as_str()]);
        let start = std::time::Instant::now();
        assert!(store.renew(&key, token, time, by()).await.unwrap());
        exact(&key, time, start);
    }

    for time in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let (key, token) = (fresh(), Token::random());
        for step in 0..5 {
            match step {
                0 => drop(store.acquire(&key, token, time, by()).await.unwrap()),
                1 => drop(store.renew(&key, token, time, by()).await.unwrap()),
                2 => drop(
                    store
                        .release(&key, token, FAILED, time, by())
                        .await
                        .unwrap(),
                ),
                3 => drop(store.acquire(&key, token, time, by()).await.unwrap()),
                _ => drop(
                    store
                        .complete(&key, token, &done(), time, by())
                        .await
                        .unwrap(),
                ),
            }
            assert_ne!(pttl(&key), -1, "step {step} with {time:?}");
        }
    }
}

#[tokio::test]
async fn odd_ids_are_one_key_each() {
    let server = RedisServer::start();
    let store = open(&server);
    let ids = [
        "{a}",
        "{a}b",
        "}{",
        "a b",
        "a\r\nDEL x",
        "*",
        "é",
        "\u{0}",
        "a:b",
        "%7Ba%7D",
    ];
    for id in ids {
        acquired(&store, &Key::new("test", id)).await;
    }
    assert_eq!(
        server.number(&["DBSIZE"]),
        i64::try_from(ids.len()).unwrap()
    );
}

#[tokio::test]
async fn an_unreadable_value_is_an_error_and_stays() {
    let server = RedisServer::start();
    let store = open(&server);
    let token = "0".repeat(32);
    let values = [
        String::new(),
        "garbage".to_owned(),
        "locked".to_owned(),
        "v1".to_owned(),
        "v1 running".to_owned(),
        format!("v1 sleeping {token} 1 2 3"),
        format!("v1 running {} 1 2 3", &token[1..]),
        format!("v1 running {token}0 1 2 3"),
        format!("w1 running {token} 1 2 3"),
        format!("running {token} 1 2 3"),
    ];
    for value in &values {
        let key = fresh();
        server.command(&["SET", key.as_str(), value, "PX", "60000"]);
        all_steps_fail(&store, &key).await;
        assert_eq!(&server.text(&["GET", key.as_str()]), value);
    }

    // SET, GET of it and the scripts cannot even read these.
    let key = fresh();
    server.command(&["RPUSH", key.as_str(), "a", "b"]);
    all_steps_fail(&store, &key).await;
    assert_eq!(server.number(&["LLEN", key.as_str()]), 2);
    let key = fresh();
    server.command(&["SET", key.as_str(), ""]);
    server.command(&["SETBIT", key.as_str(), "0", "1"]);
    all_steps_fail(&store, &key).await;
}

async fn all_steps_fail(store: &RedisStore, key: &Key) {
    let token = Token::random();
    let (time, record) = (LEASE, done());
    let errors = [
        store.acquire(key, token, time, by()).await.map(drop),
        store.renew(key, token, time, by()).await.map(drop),
        store
            .complete(key, token, &record, time, by())
            .await
            .map(drop),
        store
            .release(key, token, FAILED, time, by())
            .await
            .map(drop),
        store.inspect(key, by()).await.map(drop),
        store.forget(key, true, by()).await.map(drop),
    ];
    for (step, result) in errors.into_iter().enumerate() {
        let error = result.expect_err("a value that makes no sense");
        assert_eq!(
            error.kind(),
            StoreErrorKind::BadReply,
            "step {step}: {error}"
        );
        assert!(!error.may_have_landed(), "step {step}: {error}");
    }
}

#[tokio::test]
async fn values_of_later_versions_are_understood() {
    let server = RedisServer::start();
    let store = open(&server);
    let mine = Token::random();
    let put =
        |key: &Key, value: String| server.command(&["SET", key.as_str(), &value, "PX", "60000"]);

    let key = fresh();
    put(&key, format!("v2 running {mine} later fields"));
    assert!(matches!(
        acquire(&store, &key).await.unwrap(),
        Acquire::InFlight { .. }
    ));
    assert!(store.renew(&key, mine, LEASE, by()).await.unwrap());
    assert!(
        !store
            .renew(&key, Token::random(), LEASE, by())
            .await
            .unwrap()
    );
    assert!(
        store
            .release(&key, mine, FAILED, LEASE, by())
            .await
            .unwrap()
    );
    let taken = acquire(&store, &key).await.unwrap();
    assert_eq!(taken, Acquire::Acquired { attempt: 2 });

    let key = fresh();
    put(&key, format!("v12 done {mine}"));
    assert!(matches!(
        acquire(&store, &key).await.unwrap(),
        Acquire::Done(_)
    ));
    assert!(
        store
            .complete(&key, mine, &done(), LEASE, by())
            .await
            .unwrap()
    );

    let key = fresh();
    put(&key, format!("v2 failed {mine} 7"));
    assert!(matches!(
        acquire(&store, &key).await.unwrap(),
        Acquire::Acquired { .. }
    ));
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

#[tokio::test]
async fn a_person_can_read_what_is_stored() {
    let server = RedisServer::start();
    let store = open(&server);
    let key = Key::new("test", "evt_1");
    let token = acquired(&store, &key).await;
    let value = server.text(&["GET", "webhook:lock:test:evt_1:*"]);
    assert!(
        value.starts_with(&format!("v1 running {token} ")),
        "{value}"
    );
    assert!(value.ends_with(" 30000 1"), "{value}");

    store
        .release(&key, token, FAILED, LEASE, by())
        .await
        .unwrap();
    let value = server.text(&["GET", key.as_str()]);
    let entry: Entry = value.parse().unwrap();
    assert_eq!(
        entry.to_string(),
        value,
        "the script writes as the crate does"
    );
    let Entry::Failed { at, .. } = entry else {
        panic!("{value}")
    };
    assert!(SystemTime::now().duration_since(at).unwrap() < LEASE);
}
