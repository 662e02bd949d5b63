//! Writes that count only when replicas have them.

mod support;

#[path = "support/hook.rs"]
mod hook;

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};
use tower_webhook_dedup::{
    Acquire, Entry, LeaseStore, RedisStore, StoreError, StoreErrorKind, Token, store::contract,
};

use self::{
    hook::{Hook, send_until_taken},
    support::{FAILED, FakeRedis, LEASE, PATIENCE, Pair, Proxy, acquired, by, done, fresh, until},
};

const ENOUGH: Duration = Duration::from_secs(2);

/// How late an answer may be on a busy machine. In line, those that come late would wait for 12 s.
const SLACK: Duration = Duration::from_secs(4);

fn over(pair: &Pair, at_most: Duration) -> RedisStore {
    open(&pair.primary.url(), at_most)
}

fn open(url: &str, at_most: Duration) -> RedisStore {
    let builder = RedisStore::builder(url).min_replicas(1, at_most);
    builder.open().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_writes_keep_the_contract() {
    let pair = Pair::start().await;
    let store = over(&pair, ENOUGH);
    contract(store.clone()).await;
    let (key, mut watch) = (fresh(), pair.primary.watch());
    let token = acquired(&store, &key).await;
    let mut sent = watch.commands();
    sent.retain(|it| it != "REPLCONF");
    assert_eq!(sent, ["SET", "WAIT"]);
    let get = || pair.replica.text(&["GET", key.as_str()]);
    assert!(get().contains("running"), "it is there at once");
    let record = done();
    let complete = store.complete(&key, token, &record, LEASE, by());
    assert!(complete.await.unwrap());
    assert!(get().contains("done"), "it is there at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_no_replica_confirms_is_given_back() {
    let pair = Pair::start().await;
    let patient = over(&pair, ENOUGH);
    let store = over(&pair, Duration::from_millis(200));
    let (kept, failed) = (fresh(), fresh());
    let token = acquired(&patient, &kept).await;
    let before = acquired(&patient, &failed).await;
    let released = store.release(&failed, before, FAILED, LEASE, by());
    assert!(released.await.unwrap());

    pair.replica.freeze();
    let key = fresh();
    let error = store
        .acquire(&key, Token::random(), LEASE, by())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    assert!(error.may_have_landed(), "{error}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert_eq!(pair.primary.text(&["GET", key.as_str()]), "");
    // The failures before it are not forgotten.
    let again = store.acquire(&failed, Token::random(), LEASE, by()).await;
    assert_eq!(again.unwrap_err().kind(), StoreErrorKind::ReadOnly);
    let entry = store.inspect(&failed, by()).await.unwrap();
    assert!(
        matches!(entry, Some(Entry::Failed { attempts: 1, .. })),
        "{entry:?}"
    );
    let record = done();
    let complete = store.complete(&kept, token, &record, LEASE, by());
    let error = complete.await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    assert!(error.may_have_landed());

    // What needs no confirmation is not held up: a duplicate, a renewal.
    let start = Instant::now();
    let duplicate = patient.acquire(&kept, Token::random(), LEASE, by()).await;
    assert_eq!(duplicate.unwrap(), Acquire::Done(record.clone()));
    assert!(start.elapsed() < ENOUGH, "it waited for the replica");

    pair.replica.thaw();
    until("the replica has caught up", async || {
        let complete = store.complete(&kept, token, &record, LEASE, by());
        complete.await.is_ok_and(|written| written)
    })
    .await;
    until("the event is runnable", async || {
        let acquire = store.acquire(&key, Token::random(), LEASE, by());
        acquire.await.is_ok()
    })
    .await;
}

/// Also where it may take longer than the call: what is in vain is given back in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_replicas_ends_before_the_deadline_but_not_long_before() {
    const DEADLINE: Duration = Duration::from_secs(4);
    let pair = Pair::start().await;
    let store = over(&pair, 10 * DEADLINE);
    acquired(&store, &fresh()).await;
    pair.replica.freeze();
    let (key, start) = (fresh(), Instant::now());
    let acquire = store.acquire(&key, Token::random(), LEASE, start + DEADLINE);
    let error = acquire.await.unwrap_err();
    let took = start.elapsed();
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    assert_eq!(pair.primary.text(&["GET", key.as_str()]), "");
    assert!(took > DEADLINE / 2, "only for {took:?}");
}

/// To wait for 0 ms would be to wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shortest_time_to_wait_is_short() {
    let pair = Pair::start().await;
    let store = over(&pair, Duration::from_nanos(1));
    pair.replica.freeze();
    let key = fresh();
    let acquire = store.acquire(&key, Token::random(), LEASE, by());
    let error = acquire.await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
}

#[tokio::test]
async fn what_is_no_number_confirms_nothing() {
    for answer in ["+OK", ":-1", "$-1"] {
        let fake = FakeRedis::start(move |command| match command[0].as_str() {
            "WAIT" => answer.into(),
            _ => "$-1".into(),
        });
        let fake = fake.await;
        let store = open(&fake.url(), ENOUGH);
        let key = fresh();
        let acquire = store.acquire(&key, Token::random(), LEASE, by());
        let error = acquire.await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_whose_confirmation_is_refused_may_have_landed() {
    let pair = Pair::start().await;
    pair.primary
        .command(&["ACL", "SETUSER", "w", "on", ">p", "~*", "+@all", "-wait"]);
    let store = open(&format!("{}?user=w&pass=p", pair.primary.url()), ENOUGH);
    let key = fresh();
    let acquire = store.acquire(&key, Token::random(), LEASE, by());
    let error = acquire.await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    assert!(error.may_have_landed(), "{error}");
    assert_eq!(pair.primary.number(&["EXISTS", key.as_str()]), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_under_the_wait_is_replaced() {
    let pair = Pair::start().await;
    let store = over(&pair, PATIENCE);
    pair.replica.freeze();
    let acquiring = tokio::spawn(async move { acquired(&store, &fresh()).await });
    until("it waits", async || {
        let clients = pair.primary.clients();
        clients.iter().any(|it| it.contains("cmd=wait"))
    })
    .await;
    let kill = ["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES"];
    pair.primary.command(&kill);
    pair.replica.thaw();
    acquiring.await.unwrap();
}

/// R2: the repeat finds its own lease, which another connection wrote. That one's replicas are not
/// this one's to ask about.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_found_by_the_repeat_is_confirmed_too() {
    let pair = Pair::start().await;
    let proxy = Proxy::before(&pair.primary).await;
    let store = open(&proxy.url(), ENOUGH);
    acquired(&store, &fresh()).await;
    proxy.cut_next_reply();
    let key = fresh();
    acquired(&store, &key).await;
    assert!(
        pair.replica
            .text(&["GET", key.as_str()])
            .contains("running")
    );

    pair.replica.freeze();
    proxy.cut_next_reply();
    let key = fresh();
    let error = store
        .acquire(&key, Token::random(), LEASE, by())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    assert_eq!(proxy.cuts(), 2);
    assert_eq!(pair.primary.text(&["GET", key.as_str()]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_wait_do_not_hold_up_the_others_beyond_their_deadline() {
    const DEADLINE: Duration = Duration::from_secs(3);
    let pair = Pair::start().await;
    let store = over(&pair, ENOUGH);
    let key = fresh();
    let token = acquired(&store, &key).await;
    pair.replica.freeze();
    let mut callers = JoinSet::new();
    for _ in 0..100 {
        let store = store.clone();
        callers.spawn(async move {
            let start = Instant::now();
            let deadline = start + DEADLINE;
            let key = fresh();
            let acquire = store.acquire(&key, Token::random(), LEASE, deadline);
            (acquire.await.unwrap_err(), start.elapsed())
        });
    }
    // On its shared connection.
    let start = Instant::now();
    assert!(store.renew(&key, token, LEASE, by()).await.unwrap());
    assert!(start.elapsed() < ENOUGH, "it waited for a replica");
    for (error, took) in callers.join_all().await {
        assert!(took < DEADLINE + SLACK, "{error}");
    }
    // 16 on their own connections, one to share, and this test's own; the server may not have noticed
    // yet that others were closed.
    until("no more than that are open", async || {
        pair.primary.clients().len() <= 18
    })
    .await;
    pair.replica.thaw();
    acquired(&store, &fresh()).await;
}

/// The whole layer: refused while there is no replica, and nothing is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_replicas_events_are_refused_until_one_is_back() {
    let pair = Pair::start().await;
    let hook = Hook::with_store(over(&pair, ENOUGH), |layer| layer.store_timeout(2 * ENOUGH));
    hook.send("e0").await.is(200, "run");
    let running = hook.begin("e1", &[]).await;
    pair.replica.freeze();
    hook.send("e2").await.is(503, "refused");
    hook.send("e0").await.is(200, "duplicate");
    assert!(hook.troubles().contains(&StoreErrorKind::ReadOnly));
    hook.handler.open();
    running.await.unwrap().is(200, "run");
    pair.replica.thaw();
    send_until_taken(&hook, "e2").await.is(200, "run");
    hook.drain().await;
    for id in ["e0", "e1", "e2"] {
        hook.send(id).await.is(200, "duplicate");
        assert_eq!(hook.runs(id), 1);
    }
}

#[cfg(feature = "cluster")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_node_of_a_cluster_confirms_its_own() {
    let cluster = support::Cluster::start();
    let store = open(&cluster.url(), ENOUGH);
    contract(store.clone()).await;
    let quick = open(&cluster.url(), Duration::from_millis(150));
    for n in 0..3 {
        acquired(&store, &cluster.fresh_on(n)).await;
    }
    let replica = &cluster.nodes()[cluster.replica_of(0)].server;
    let key = cluster.fresh_on(0);
    let other = cluster.fresh_on(1);
    replica.freeze();
    let error = quick.acquire(&key, Token::random(), LEASE, by()).await;
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::ReadOnly);
    acquired(&store, &other).await;
    replica.thaw();
}
