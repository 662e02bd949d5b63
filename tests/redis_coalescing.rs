//! What many calls at the same time have in common on a connection of `RedisStore`, and what they
//! do not.

mod support;

use std::time::Duration;

use tokio::{
    task::{JoinHandle, JoinSet},
    time::Instant,
};
use tower_webhook_dedup::{
    Acquire, Entry, Key, LeaseStore, RedisStore, RedisStoreError, StoreError, StoreErrorKind, Token,
};

use self::support::{
    LEASE, PATIENCE, Proxy, RedisServer, acquired, builder_at, by, done, fresh, store_at, until,
    works,
};

/// How many calls come at the same time.
const MANY: usize = 64;

const FIRST: Acquire = Acquire::Acquired { attempt: 1 };

type Acquired = Result<Acquire, RedisStoreError>;

/// A call of its own task.
struct Call {
    key: Key,
    token: Token,
    task: JoinHandle<Acquired>,
}

/// Acquires a fresh key.
fn call(store: &RedisStore, by: Instant) -> Call {
    let (store, key, token) = (store.clone(), fresh(), Token::random());
    let of = key.clone();
    let task = tokio::spawn(async move { store.acquire(&of, token, LEASE, by).await });
    Call { key, token, task }
}

fn calls(store: &RedisStore) -> Vec<Call> {
    (0..MANY).map(|_| call(store, by())).collect()
}

/// How often the server has read from its connections.
fn reads(server: &RedisServer) -> u32 {
    let stats = server.text(&["INFO", "stats"]);
    let reads = stats
        .lines()
        .find_map(|line| line.strip_prefix("total_reads_processed:"));
    reads.unwrap().parse().unwrap()
}

/// All calls are in the queue of the one thread before the first of them runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn commands_at_the_same_time_go_out_together() {
    let server = RedisServer::start();
    // Whatever the environment says.
    let store = RedisStore::open(&server.url()).unwrap();
    acquired(&store, &fresh()).await;
    let task = tokio::spawn(async move {
        let before = reads(&server);
        for call in calls(&store) {
            assert_eq!(call.task.await.unwrap().unwrap(), FIRST);
        }
        reads(&server) - before
    });
    let reads = task.await.unwrap();
    // The server takes 16 KiB at once, and the test itself has asked too.
    assert!(reads <= 12, "{reads} reads for {MANY} commands");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_command_gets_its_own_reply_and_its_own_error() {
    let server = RedisServer::start();
    let store = store_at(&server.url());
    let (running, finished, list, nonsense) = (fresh(), fresh(), fresh(), fresh());
    acquired(&store, &running).await;
    let token = acquired(&store, &finished).await;
    let record = done();
    let completed = store.complete(&finished, token, &record, LEASE, by()).await;
    assert!(completed.unwrap());
    server.command(&["RPUSH", list.as_str(), "x"]);
    server.command(&["SET", nonsense.as_str(), "x"]);

    let mut calls = JoinSet::new();
    for n in 0..MANY * 4 {
        let (store, record) = (store.clone(), record.clone());
        let of = [&running, &finished, &list, &nonsense, &fresh()][n % 5].clone();
        calls.spawn(async move {
            let acquired = store.acquire(&of, Token::random(), LEASE, by()).await;
            match n % 5 {
                0 => assert!(
                    matches!(acquired, Ok(Acquire::InFlight { .. })),
                    "{acquired:?}"
                ),
                1 => assert_eq!(acquired.unwrap(), Acquire::Done(record)),
                2 => assert_eq!(acquired.unwrap_err().code(), Some("WRONGTYPE")),
                3 => {
                    let error = acquired.unwrap_err();
                    assert_eq!(error.kind(), StoreErrorKind::BadReply, "{error}");
                    assert!(!error.may_have_landed());
                }
                _ => assert_eq!(acquired.unwrap(), FIRST),
            }
        });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_the_server_forgets_is_sent_again_by_each() {
    let server = RedisServer::start();
    let store = store_at(&server.url());
    let mut runs = JoinSet::new();
    for _ in 0..MANY {
        let store = store.clone();
        runs.spawn(async move {
            for _ in 0..8 {
                let key = fresh();
                let token = acquired(&store, &key).await;
                let renewed = store.renew(&key, token, LEASE, by()).await;
                assert!(renewed.unwrap());
                let completed = store.complete(&key, token, &done(), LEASE, by()).await;
                assert!(completed.unwrap());
            }
        });
    }
    while let Some(run) = runs.join_next().await {
        run.unwrap();
        server.command(&["SCRIPT", "FLUSH"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_is_no_harm_to_those_that_share_it() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = store_at(&proxy.url());
    acquired(&store, &fresh()).await;
    for round in 1..=5 {
        proxy.cut_next_reply();
        for call in calls(&store) {
            assert_eq!(call.task.await.unwrap().unwrap(), FIRST);
            let entry = store.inspect(&call.key, by()).await.unwrap();
            assert_eq!(entry.map(|it: Entry| it.token()), Some(call.token));
        }
        assert_eq!(proxy.cuts(), round);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_the_server_kills_is_no_harm_to_those_that_share_it() {
    let server = RedisServer::start();
    let store = store_at(&server.url());
    acquired(&store, &fresh()).await;
    for _ in 0..5 {
        let calls = calls(&store);
        server.command(&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES"]);
        for call in calls {
            assert_eq!(call.task.await.unwrap().unwrap(), FIRST);
        }
        // If all of them were faster than the kill, this one notices it, and not the next round,
        // which has a kill of its own: a call is repeated once.
        acquired(&store, &fresh()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_is_told_whether_its_command_may_have_landed() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = store_at(&proxy.url());
    acquired(&store, &fresh()).await;
    proxy.cut_all_replies();
    let mut failed = Vec::new();
    for call in calls(&store) {
        let error = call.task.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
        failed.push((call.key, call.token, error));
    }
    assert!(failed.iter().any(|(.., error)| error.may_have_landed()));
    for (key, _, error) in &failed {
        let landed = server.number(&["EXISTS", key.as_str()]) == 1;
        assert!(error.may_have_landed() || !landed, "{error}");
    }
    proxy.forward();
    until("it works again", async || works(&store).await).await;
    for (key, token, _) in failed {
        let again = store.acquire(&key, token, LEASE, by()).await;
        assert_eq!(again.unwrap(), FIRST);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_whose_time_is_over_and_those_that_are_dropped_leave_the_others_alone() {
    let server = RedisServer::start();
    // A call that starts after the connection was given up connects, which must not end first.
    let store = builder_at(&server.url()).connect_timeout(PATIENCE);
    let store = store.open().unwrap();
    acquired(&store, &fresh()).await;
    server.freeze();
    let start = Instant::now();
    let (mut hurried, mut dropped, mut patient) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..MANY / 2 {
        hurried.push(call(&store, start + Duration::from_millis(200)));
        dropped.push(call(&store, start + PATIENCE));
        patient.push(call(&store, start + PATIENCE));
    }
    for call in hurried {
        let error = call.task.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::TimedOut, "{error}");
    }
    for call in &dropped {
        call.task.abort();
    }
    assert!(patient.iter().all(|call| !call.task.is_finished()));
    server.thaw();
    for call in patient {
        assert_eq!(call.task.await.unwrap().unwrap(), FIRST);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_is_a_timeout_for_each_and_another_connection_then_works() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = store_at(&proxy.url());
    acquired(&store, &fresh()).await;
    proxy.black_hole();
    let soon = Instant::now() + Duration::from_millis(200);
    let calls: Vec<_> = (0..MANY).map(|_| call(&store, soon)).collect();
    for call in calls {
        let error = call.task.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::TimedOut, "{error}");
    }
    proxy.forward();
    until("it works again", async || works(&store).await).await;
    assert!(proxy.connections() > 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn works_the_same_where_it_is_off() {
    let server = RedisServer::start();
    let store = RedisStore::builder(&server.url()).coalesce(false);
    let store = store.open().unwrap();
    for call in calls(&store) {
        assert_eq!(call.task.await.unwrap().unwrap(), FIRST);
    }
}
