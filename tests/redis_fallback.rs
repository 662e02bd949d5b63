//! `Fallback` from a real Redis to this process's memory, and back.

mod support;

#[path = "support/child.rs"]
mod child;

#[path = "support/hook.rs"]
mod hook;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use tokio::{sync::Semaphore, time::Instant};
use tower_webhook_dedup::{
    DedupEvent, Fallback, Limits, MemoryStore, RedisStore, StoreErrorKind, Switch,
};

use self::{
    child::{Process, Setup},
    hook::{Answer, Hook},
    support::{Pair, RedisServer, until},
};

const EVENTS: usize = 1000;
const DELIVERIES: usize = 10 * EVENTS;

/// How many are on their way when Redis dies.
const FEW: usize = 200;

/// Just enough: one more entry would displace a completed event, which would then run again.
const CAPACITY: usize = EVENTS;

/// The server that a test starts in a process of its own.
#[test]
fn child_server() {
    child::serve();
}

type Store = Fallback<RedisStore, MemoryStore>;

/// A process whose store falls back to its memory.
struct Degradable {
    hook: Hook<Store>,
    store: Store,
    memory: MemoryStore,
    switches: Arc<Mutex<Vec<Switch>>>,
}

impl Degradable {
    fn over(redis: RedisStore, store_timeout: Duration) -> Self {
        let (memory, switches) = (
            MemoryStore::with_capacity(CAPACITY),
            Arc::<Mutex<Vec<_>>>::default(),
        );
        let told = switches.clone();
        let store = Fallback::new(redis, memory.clone())
            .probe_pause(Duration::from_millis(200))
            .on_switch(move |switch| told.lock().unwrap().push(switch.clone()));
        Self {
            hook: Hook::with_store(store.clone(), |layer| {
                let limits = Limits::default().standbys(DELIVERIES);
                layer.store_timeout(store_timeout).limits(limits)
            }),
            store,
            memory,
            switches,
        }
    }

    fn switches(&self) -> Vec<Switch> {
        self.switches.lock().unwrap().clone()
    }

    /// Delivers one event, whose answer has to come in time.
    async fn deliver(&self, n: usize) -> Answer {
        let answer = self.hook.send(&format!("e{n}")).await;
        answer.is_in_time();
        assert!(self.memory.len() <= CAPACITY);
        answer
    }

    async fn come_back(&self) {
        until("Redis is trusted again", async || !self.store.is_degraded()).await;
        self.hook.drain().await;
    }
}

/// How many events are recorded as done.
fn done(server: &RedisServer) -> usize {
    let mut command = vec!["MGET".to_owned(), "none".to_owned()];
    command.extend(hook::keys(server, "*"));
    let command: Vec<_> = command.iter().map(String::as_str).collect();
    let values: Vec<Option<String>> = redis::from_redis_value(server.command(&command)).unwrap();
    let is_done = |value: &&String| value.contains(" done ");
    values.iter().flatten().filter(is_done).count()
}

/// Ten deliveries of each of a thousand events; in the middle of them Redis is killed. With its data
/// or without, it comes back, and knows.
async fn redis_is_killed_in_the_middle(arguments: &[&str]) {
    let mut server = RedisServer::with(arguments);
    let redis = RedisStore::open(&server.url()).unwrap();
    let process = Degradable::over(redis, hook::DEADLINE);
    // Each comes five times at once, and five times once a hundred others have come.
    let deliveries = (0..EVENTS + 100).flat_map(|n| {
        let earlier = n.checked_sub(100);
        let both = [Some(n).filter(|n| *n < EVENTS), earlier];
        both.into_iter().flatten().flat_map(|n| [n; 5])
    });
    let places = Semaphore::new(DELIVERIES / 2 - FEW);
    let deliver = async {
        let answers = stream::iter(deliveries).map(async |n| {
            places.acquire().await.unwrap().forget();
            process.deliver(n).await
        });
        answers.buffer_unordered(64).collect::<Vec<_>>().await
    };
    let kill = async {
        until("nearly half is on its way", async || {
            places.available_permits() == 0
        })
        .await;
        // While these are.
        places.add_permits(FEW);
        tokio::task::yield_now().await;
        server.kill();
        places.add_permits(DELIVERIES / 2);
        process.hook.all_runs()
    };
    let (answers, before) = tokio::join!(deliver, kill);
    assert!(process.store.is_degraded());
    // Whoever comes while another attempt runs is acknowledged.
    for answer in &answers {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let of = |outcome: &str| answers.iter().filter(|it| it.outcome == outcome).count();
    assert_eq!(of("run") + of("duplicate") + of("standby"), DELIVERIES);
    println!(
        "{} answers, {before} of the runs before Redis died: {} run, {} duplicate, {} standby; the \
         slowest took {:?}; {} entries in memory",
        answers.len(),
        of("run"),
        of("duplicate"),
        of("standby"),
        answers.iter().map(|it| it.took).max().unwrap(),
        process.memory.len(),
    );

    server.restart();
    process.come_back().await;
    // It may have gone out and back more than once: a busy machine misses deadlines.
    let dropped = |switch: &Switch| matches!(switch, Switch::Back { dropped, .. } if *dropped > 0);
    let switches = process.switches();
    assert!(!switches.iter().any(dropped), "{switches:?}");
    until("Redis knows of all", async || done(&server) == EVENTS).await;
    for n in 0..EVENTS {
        let id = format!("e{n}");
        assert_eq!(process.hook.runs(&id), 1, "{id}");
    }
    assert!(
        !process
            .hook
            .saw(|event| matches!(event, DedupEvent::Lost(_)))
    );

    let other = Process::with(&server, "other", Setup::default()).await;
    let again = stream::iter(0..EVENTS).map(|n| {
        let sender = other.sender();
        async move { sender.send(&format!("e{n}"), &[]).await }
    });
    for answer in again.buffer_unordered(32).collect::<Vec<_>>().await {
        answer.is(200, "duplicate");
    }
    let started = server.command(&["KEYS", "started:*"]);
    let started: Vec<String> = redis::from_redis_value(started).unwrap();
    assert!(started.is_empty(), "{started:?}");
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_events_run_once_when_redis_dies_and_comes_back_empty() {
    redis_is_killed_in_the_middle(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_events_run_once_when_redis_dies_and_comes_back_with_its_data() {
    let keeps = ["--appendonly", "yes", "--appendfsync", "always"];
    redis_is_killed_in_the_middle(&keeps).await;
}

/// A primary that writes, but whose replicas do not confirm it, is one that failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_no_replica_confirms_go_to_memory_until_one_does() {
    let pair = Pair::start().await;
    let builder = RedisStore::builder(&pair.primary.url());
    let at_most = Duration::from_millis(500);
    let redis = builder.min_replicas(1, at_most).open().unwrap();
    let process = Degradable::over(redis, 4 * at_most);
    let hook = &process.hook;
    let running = hook.begin("e1", &[]).await;

    pair.replica.freeze();
    hook.send("e2").await.is(200, "run");
    assert!(process.store.is_degraded());
    let switches = process.switches();
    let Some(Switch::Out { kind, .. }) = switches.last() else {
        panic!("{switches:?}");
    };
    assert_eq!(*kind, StoreErrorKind::ReadOnly);
    let start = Instant::now();
    hook.send("e2").await.is(200, "duplicate");
    hook.send("e3").await.is(200, "run");
    assert!(start.elapsed() < at_most, "nobody waits for a replica");
    hook.handler.open();
    running.await.unwrap().is(200, "run");
    pair.replica.thaw();
    process.come_back().await;
    for id in ["e1", "e2", "e3"] {
        until("the replica has it", async || {
            hook::is_done(&pair.replica, id)
        })
        .await;
        hook.send(id).await.is(200, "duplicate");
        assert_eq!(hook.runs(id), 1, "{id}");
    }
}
