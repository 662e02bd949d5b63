//! `RedisStore`, and the layer, over a Redis Cluster: in good order, while slots move, and while
//! nodes fail.

mod support;

#[path = "support/hook.rs"]
mod hook;

#[path = "support/promises.rs"]
mod promises;

use std::{collections::HashSet, time::Duration};

use tokio::{task::JoinSet, time::Instant};
use tower_webhook_dedup::{
    Acquire, DedupEvent, Finding, Key, LeaseStore, RedisStore, StoreError, StoreErrorKind, Token,
    store::contract,
};

use self::{
    hook::{Answer, FAIL, Hook, assert_nothing_was_given_up, send_until_taken},
    support::{
        Cluster, FAILED, LEASE, Proxy, RedisServer, acquired, by, done, fresh, refused,
        refused_by_name, until, works,
    },
};

fn open(cluster: &Cluster) -> RedisStore {
    RedisStore::open(&cluster.url()).unwrap()
}

/// The client's own connection to the cluster, which repeats commands by itself.
async fn given(urls: &[String]) -> RedisStore {
    let client = redis::cluster::ClusterClient::new(urls.to_vec()).unwrap();
    RedisStore::new(client.get_async_connection().await.unwrap())
}

fn urls(cluster: &Cluster) -> Vec<String> {
    let addresses = cluster.nodes().iter().map(|node| node.address());
    addresses.map(|it| format!("redis://{it}")).collect()
}

/// The node that keeps the event's key.
fn keeper<'a>(cluster: &'a Cluster, id: &str) -> Option<&'a RedisServer> {
    let mut servers = cluster.nodes()[..3].iter().map(|node| &node.server);
    servers.find(|server| !hook::keys(server, id).is_empty())
}

/// Everything that needs no fault, on one cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_in_good_order_keeps_the_promises() {
    let cluster = Cluster::start();
    contract(open(&cluster)).await;
    contract(given(&urls(&cluster)).await).await;
    let store = open(&cluster);
    promises::a_late_owner_does_no_harm(&store).await;
    let keeper = |key: &Key| &cluster.nodes()[cluster.owner(key.as_str())].server;
    promises::a_crash_wedges_nothing(|| open(&cluster), keeper).await;
    for n in 0..3 {
        let flush = || {
            for node in &cluster.nodes()[..3] {
                node.server.command(&["SCRIPT", "FLUSH"]);
            }
        };
        let key = cluster.fresh_on(n);
        promises::a_script_flush_has_no_visible_effect(&store, &key, flush).await;
    }
    of_many_acquires_one_wins(&cluster).await;
    braces_in_ids_do_not_choose_the_slot(&cluster).await;
    a_full_node_refuses_and_still_releases(&cluster).await;
    the_documented_rights_are_enough(&cluster).await;
    let found = store.check().await;
    let alone = found
        .iter()
        .any(|it| matches!(it, Finding::NoReplicas { .. }));
    assert!(!alone, "{found:?}");
}

async fn of_many_acquires_one_wins(cluster: &Cluster) {
    let stores = [open(cluster), open(cluster)];
    for round in 0..20 {
        let key = fresh();
        let mut callers = JoinSet::new();
        for n in 0..50 {
            let (store, key) = (stores[n % 2].clone(), key.clone());
            callers.spawn(async move {
                let acquire = store.acquire(&key, Token::random(), LEASE, by());
                acquire.await.unwrap()
            });
        }
        let answers = callers.join_all().await;
        let won = answers
            .iter()
            .filter(|it| matches!(it, Acquire::Acquired { .. }));
        assert_eq!(won.count(), 1, "round {round}: {answers:?}");
    }
}

/// R35.
async fn braces_in_ids_do_not_choose_the_slot(cluster: &Cluster) {
    let hook = Hook::with(&cluster.url(), |layer| layer);
    promises::braces_in_ids_are_nothing_special(&hook).await;
    let mut owners = HashSet::new();
    // The promise has used 1 and 2.
    for n in 3..=302 {
        hook.send(&format!("{{x}}{n}")).await.is(200, "run");
    }
    for (n, node) in cluster.nodes()[..3].iter().enumerate() {
        let keys = node.server.command(&["KEYS", "webhook:lock:t:*x*"]);
        let keys: Vec<String> = redis::from_redis_value(keys).unwrap();
        assert!(keys.len() > 50, "{} of 300", keys.len());
        owners.insert(n);
    }
    assert_eq!(owners.len(), 3);
    assert!(hook.troubles().is_empty(), "{:?}", hook.troubles());
}

/// R45: the other nodes go on.
async fn a_full_node_refuses_and_still_releases(cluster: &Cluster) {
    let store = open(cluster);
    let key = cluster.fresh_on(0);
    let token = acquired(&store, &key).await;
    let full = |bytes| {
        let server = &cluster.nodes()[0].server;
        server.command(&["CONFIG", "SET", "maxmemory", bytes]);
    };
    full("1");
    let other = cluster.fresh_on(0);
    let error = store
        .acquire(&other, Token::random(), LEASE, by())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::OutOfMemory, "{error}");
    assert!(!error.may_have_landed());
    acquired(&store, &cluster.fresh_on(1)).await;
    let released = store.release(&key, token, FAILED, LEASE, by());
    assert!(released.await.unwrap());
    full("0");
    acquired(&store, &other).await;
}

async fn the_documented_rights_are_enough(cluster: &Cluster) {
    let rights = "webhooks on >secret ~webhook:lock:* resetchannels -@all +set +get +eval +evalsha +del +pexpire +cluster|slots +asking";
    for node in cluster.nodes() {
        let mut command = vec!["ACL", "SETUSER"];
        command.extend(rights.split(' '));
        node.server.command(&command);
    }
    let url = cluster.url().replace("://", "://webhooks:secret@");
    let store = RedisStore::open(&url).unwrap();
    contract(store.clone()).await;
    assert!(!format!("{store:?}").contains("secret"));
    let wrong = cluster.url().replace("://", "://webhooks:wrong@");
    let error = refused_by_name(&RedisStore::open(&wrong).unwrap()).await;
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
}

/// R2: ours repeats once, and the client's cluster connection as often as it likes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_an_acquire_is_no_duplicate() {
    let cluster = Cluster::of_one();
    let server = &cluster.nodes()[0].server;
    let proxy = Proxy::before(server).await;
    let port = proxy.url().rsplit_once(':').unwrap().1.to_owned();
    // All connections go through the proxy.
    server.command(&["CONFIG", "SET", "cluster-announce-port", &port]);
    let url = proxy.url().replace("redis://", "redis+cluster://");

    let ours = RedisStore::open(&url).unwrap();
    let theirs = given(&[proxy.url()]).await;
    let mut cuts = 0;
    for store in [&ours, &theirs] {
        for _ in 0..3 {
            proxy.cut_next_reply();
            acquired(store, &fresh()).await;
            cuts += 1;
            assert_eq!(proxy.cuts(), cuts);
        }
        // The one that takes over after a failure.
        let key = fresh();
        let token = acquired(store, &key).await;
        let released = store.release(&key, token, FAILED, LEASE, by());
        assert!(released.await.unwrap());
        proxy.cut_reply_after(1);
        let again = store.acquire(&key, Token::random(), LEASE, by()).await;
        assert_eq!(again.unwrap(), Acquire::Acquired { attempt: 2 });
        cuts += 1;
        assert_eq!(proxy.cuts(), cuts);
    }

    let hook = Hook::with(&url, |layer| layer);
    send_until_taken(&hook, "e0").await.is(200, "run");
    proxy.cut_next_reply();
    hook.send("e1").await.is(200, "run");
    assert_eq!(proxy.cuts(), cuts + 1);
    assert_eq!(hook.runs("e1"), 1);
    assert!(hook::is_done(server, "e1"));
    hook.send("e1").await.is(200, "duplicate");
}

/// Runs, duplicates and new events while their slot moves to another node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_under_traffic_is_not_noticed() {
    let cluster = Cluster::start();
    let hook = Hook::with(&cluster.url(), |layer| layer.lease(Duration::from_secs(2)));
    let other = Hook::refusing_at(&cluster.url());
    let store = open(&cluster);
    let first = hook.begin("e1", &[]).await;
    let key = hook::keys(keeper(&cluster, "e1").unwrap(), "e1")[0].clone();
    let (slot, from) = (cluster.slot(&key), cluster.owner(&key));
    let to = (from + 1) % 3;

    // The key is still there, the slot is on its way.
    cluster.begin_to_move(slot, from, to);
    other.send("e1").await.is_in_flight();
    // A new key of this slot is made on the other side.
    let tagged = in_slot(&cluster, slot);
    let mut watch = cluster.nodes()[to].server.watch();
    let token = acquired(&store, &tagged).await;
    assert!(watch.commands().contains(&"ASKING".to_owned()));
    assert!(store.renew(&tagged, token, LEASE, by()).await.unwrap());
    let record = done();
    let complete = store.complete(&tagged, token, &record, LEASE, by());
    assert!(complete.await.unwrap());
    // Many at once ask, on one connection.
    let mut callers = JoinSet::new();
    for n in 0..50 {
        let store = store.clone();
        let key = if n % 2 == 0 { tagged.clone() } else { fresh() };
        callers.spawn(async move {
            let acquire = store.acquire(&key, Token::random(), LEASE, by());
            (n, acquire.await.unwrap())
        });
    }
    for (n, answer) in callers.join_all().await {
        assert_eq!(matches!(answer, Acquire::Done(_)), n % 2 == 0, "{answer:?}");
    }

    // The key moves, under the run.
    cluster.move_key(&key, from, to);
    other.send("e1").await.is_in_flight();
    let end = Instant::now() + support::PATIENCE;
    while !watch.commands().iter().any(|it| it.starts_with("EVAL")) {
        assert!(Instant::now() < end, "not renewed there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    hook.handler.open();
    first.await.unwrap().is(200, "run");
    other.send("e1").await.is(200, "duplicate");

    cluster.finish_move(slot, from, to);
    other.send("e1").await.is(200, "duplicate");
    hook.send("e1").await.is(200, "duplicate");
    cluster.wait_until_ok();
    let mut watch = cluster.nodes()[from].server.watch();
    let end = Instant::now() + support::PATIENCE;
    loop {
        hook.send("e1").await.is(200, "duplicate");
        if !watch.commands().contains(&"SET".to_owned()) {
            break;
        }
        assert!(
            Instant::now() < end,
            "it does not learn: always on the way around"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!((hook.runs("e1"), other.runs("e1")), (1, 0));
    assert!(hook.troubles().is_empty() && other.troubles().is_empty());
    assert_nothing_was_given_up(&hook);
}

/// A key that nobody used yet, in this slot: one in 16 384 is.
fn in_slot(cluster: &Cluster, slot: u16) -> Key {
    let url = cluster.nodes()[0].server.url();
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_connection().unwrap();
    loop {
        let keys: Vec<_> = (0..10_000).map(|_| fresh()).collect();
        let mut pipe = redis::pipe();
        for key in &keys {
            pipe.cmd("CLUSTER").arg("KEYSLOT").arg(key.as_str());
        }
        let slots: Vec<u16> = pipe.query(&mut connection).unwrap();
        if let Some(n) = slots.iter().position(|it| *it == slot) {
            return keys[n].clone();
        }
    }
}

/// Sends an event after the other until told to stop; each until it is taken.
fn traffic(
    hook: &Hook,
    stop: &tokio_util::sync::CancellationToken,
) -> JoinSet<Vec<(String, Vec<Answer>)>> {
    let mut senders = JoinSet::new();
    for sender in 0..4 {
        let (hook, stop) = (hook.clone(), stop.clone());
        senders.spawn(async move {
            let mut all = Vec::new();
            for n in 0.. {
                if stop.is_cancelled() {
                    break;
                }
                let id = format!("s{sender}-{n}");
                let mut answers = Vec::new();
                let end = Instant::now() + support::PATIENCE;
                loop {
                    let answer = hook.send(&id).await;
                    answer.is_in_time();
                    let taken = answer.status == 200;
                    answers.push(answer);
                    if taken {
                        break;
                    }
                    assert!(
                        Instant::now() < end,
                        "{id} is refused for ever: {answers:?}"
                    );
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                all.push((id, answers));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            all
        });
    }
    senders
}

/// R13: an orderly failover, which loses nothing, in the middle of traffic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orderly_failover_under_traffic_runs_each_event_once() {
    let cluster = Cluster::start();
    let hook = Hook::with(&cluster.url(), |layer| layer);
    send_until_taken(&hook, "e0").await.is(200, "run");
    let stop = tokio_util::sync::CancellationToken::new();
    let senders = traffic(&hook, &stop);
    let goes_on = async |runs| {
        let enough = hook.all_runs() + runs;
        until("events go on", async || hook.all_runs() >= enough).await;
    };
    for n in 0..3 {
        goes_on(40).await;
        let replica = &cluster.nodes()[cluster.replica_of(n)];
        replica.server.command(&["CLUSTER", "FAILOVER"]);
        until("it took over", async || {
            replica
                .server
                .text(&["INFO", "replication"])
                .contains("role:master")
        })
        .await;
    }
    goes_on(80).await;
    stop.cancel();
    let sent: Vec<_> = senders.join_all().await.into_iter().flatten().collect();
    hook.drain().await;
    for (id, answers) in &sent {
        let runs = hook.runs(id);
        assert_eq!(runs, 1, "{id}: {answers:?}");
        send_until_taken(&hook, id).await.is(200, "duplicate");
    }
}

/// R13, R47: a primary is killed, and another stops where it is; a replica takes over for each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_and_silent_primaries_are_replaced_and_the_others_not_held_up() {
    let mut cluster = Cluster::start();
    let hook = Hook::with(&cluster.url(), |layer| layer);
    let store = open(&cluster);
    // They get to know all nodes, not only those that the URL names.
    send_until_taken(&hook, "e").await.is(200, "run");
    for n in 0..3 {
        acquired(&store, &cluster.fresh_on(n)).await;
    }
    let keys = [0, 1, 2].map(|n| (0..200).map(|_| cluster.fresh_on(n)).collect::<Vec<_>>());
    for (n, dead) in [(0, true), (1, false)] {
        if dead {
            cluster.node_mut(n).server.kill();
        } else {
            cluster.nodes()[n].server.freeze();
        }
        let start = Instant::now();
        let mut tries = keys[n].iter();
        // Nobody waits for the one that is gone.
        let mut slowest = Duration::ZERO;
        let mut others = keys[2].iter().skip(100 * n);
        loop {
            let key = tries.next().unwrap();
            // Both limits are below the connect timeout.
            let (begin, deadline) = (Instant::now(), Instant::now() + hook::DEADLINE);
            let acquire = store.acquire(key, Token::random(), LEASE, deadline);
            let answer = acquire.await;
            assert!(begin.elapsed() < Duration::from_millis(1800), "{answer:?}");
            let begin = Instant::now();
            let key = others.next().unwrap();
            let deadline = begin + Duration::from_millis(1800);
            let acquire = store.acquire(key, Token::random(), LEASE, deadline);
            let other = acquire.await;
            assert!(matches!(other, Ok(Acquire::Acquired { .. })), "{other:?}");
            slowest = slowest.max(begin.elapsed());
            if answer.is_ok() {
                break;
            }
            assert!(start.elapsed() < support::PATIENCE, "{answer:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        println!(
            "{n} was replaced after {:?}, the others took {slowest:?} at most",
            start.elapsed()
        );
    }
    for n in 0..30 {
        send_until_taken(&hook, &format!("e{n}"))
            .await
            .is(200, "run");
    }
    cluster.nodes()[1].server.thaw();
    // It comes back as a replica.
    until("it learnt", async || {
        let replication = cluster.nodes()[1].server.text(&["INFO", "replication"]);
        replication.contains("role:slave")
    })
    .await;
    for n in 0..30 {
        let answer = send_until_taken(&hook, &format!("e{n}")).await;
        answer.is(200, "duplicate");
    }
}

/// R19, R45 at the layer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_that_its_node_did_not_hear_is_written_later() {
    // Without a replica, so that it is this node that has to come back.
    let cluster = Cluster::of_one();
    let server = &cluster.nodes()[0].server;
    let hook = Hook::with(&cluster.url(), |layer| layer);
    let other = Hook::with(&cluster.url(), |layer| layer);
    send_until_taken(&other, "e0").await.is(200, "run");
    let first = hook.begin("e1", &[]).await;
    server.freeze();
    hook.handler.open();
    let first = first.await.unwrap();
    first.is(200, "run");
    assert!(hook.saw(|event| matches!(event, DedupEvent::CompletionPending { .. })));
    hook.send("e1").await.is(200, "duplicate");
    other.send("e1").await.is_refused();
    server.thaw();
    until("the record is written", async || {
        hook::is_done(server, "e1")
    })
    .await;
    send_until_taken(&other, "e1").await.is(200, "duplicate");
    assert_eq!((hook.runs("e1"), other.runs("e1")), (1, 0));

    let second = hook.begin("e2", FAIL).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    hook.send("e3").await.is_refused();
    hook.handler.open();
    second.await.unwrap().is(500, "run");
    assert!(hook::entry(server, "e2").is_none(), "released at once");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    hook.send("e2").await.is(200, "run");
    hook.drain().await;
}

/// R48.
#[tokio::test]
async fn a_cluster_that_cannot_be_reached_is_an_error_in_time() {
    let store = RedisStore::open("redis+cluster://127.0.0.1:1,127.0.0.1:2").unwrap();
    for _ in 0..3 {
        let error = refused(&store).await;
        assert!(!error.may_have_landed(), "{error}");
        assert!(
            matches!(
                error.kind(),
                StoreErrorKind::Unreachable | StoreErrorKind::TimedOut
            ),
            "{error}"
        );
    }
    // One of the seeds is gone, and one is silent: the third is enough.
    let cluster = Cluster::of_one();
    let silent = RedisServer::start();
    let proxy = Proxy::before(&silent).await;
    proxy.black_hole();
    let silent = proxy.url().replace("redis://", "");
    let node = cluster.nodes()[0].address();
    let url = format!("redis+cluster://127.0.0.1:1,{silent},{node}");
    let store = RedisStore::open(&url).unwrap();
    acquired(&store, &fresh()).await;
    // A server that is in no cluster.
    let alone = RedisServer::with(&["--requirepass", "right"]);
    let proxy = Proxy::before(&alone).await;
    let url = proxy.url().replace("redis://", "redis+cluster://:right@");
    let error = refused_by_name(&RedisStore::open(&url).unwrap()).await;
    assert!(
        error.to_string().contains("cluster support disabled"),
        "{error}"
    );
    assert!(works(&store).await);
}

#[test]
fn another_runtime_goes_on_with_the_store() {
    let cluster = Cluster::of_one();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let store = open(&cluster);
    for _ in 0..3 {
        runtime().block_on(acquired(&store, &fresh()));
    }
    // A runtime that ended while it was looking around.
    let store = open(&cluster);
    let server = &cluster.nodes()[0].server;
    server.freeze();
    let error = runtime().block_on(refused(&store));
    assert!(!error.may_have_landed(), "{error}");
    server.thaw();
    let start = Instant::now();
    runtime().block_on(acquired(&store, &fresh()));
    assert!(start.elapsed() < Duration::from_secs(2));
}
