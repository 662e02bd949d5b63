//! What `RedisStore` keeps in Redis, for how long, and how it reads what others left there.

mod support;

use std::time::{Duration, SystemTime};

use tower_webhook_dedup::{
    Acquire, Entry, Key, LeaseStore, RedisStore, RedisStoreError, StoreError, StoreErrorKind, Token,
};

use self::support::{FAILED, LEASE, RedisServer, acquired, by, done, fresh};

fn open(server: &RedisServer) -> RedisStore {
    RedisStore::open(&server.url()).unwrap()
}

async fn acquire(store: &RedisStore, key: &Key) -> Result<Acquire, RedisStoreError> {
    store.acquire(key, Token::random(), LEASE, by()).await
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

    let year = 365 * 24 * 3600 * 1000;
    for time in [500, 1_500, year].map(Duration::from_millis) {
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
        for step in ["acquire", "renew", "release", "take over", "complete"] {
            match step {
                "renew" => drop(store.renew(&key, token, time, by()).await.unwrap()),
                "release" => {
                    let released = store.release(&key, token, FAILED, time, by());
                    released.await.unwrap();
                }
                "complete" => {
                    let record = done();
                    let completed = store.complete(&key, token, &record, time, by());
                    completed.await.unwrap();
                }
                _ => drop(store.acquire(&key, token, time, by()).await.unwrap()),
            }
            assert_ne!(pttl(&key), -1, "{step} with {time:?}");
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
