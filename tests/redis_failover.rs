//! What a failover costs: 500 deliveries a second go through the layer while another server becomes
//! the primary. Each test prints its figures, which the README quotes:
//!
//! ```sh
//! cargo test --all-features --test redis_failover -- --nocapture --test-threads 1
//! ```

mod support;

#[path = "support/hook.rs"]
mod hook;

use std::{
    sync::{
        Arc, Mutex as StdMutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream};
use tokio::{
    sync::Mutex,
    task::JoinSet,
    time::{Instant, interval, sleep},
};
use tokio_util::sync::CancellationToken;
use tower_webhook_dedup::{InFlight, Key, KeyBy, RedisStore, RedisStoreBuilder};

use self::{
    hook::{Answer, Hook, send_until_taken},
    support::{Cluster, RedisServer, Service, fresh, until},
};

/// Deliveries a second.
const RATE: u32 = 500;

/// A machine that cannot take that much is given half as much, every so often.
const SLOWS: Duration = Duration::from_secs(5);

/// But not before a failover must be over.
const FAILOVER: Duration = Duration::from_secs(20);

/// When it must be over. Sentinels let some 10 s pass before they make an old primary a replica.
const LIMIT: Duration = Duration::from_secs(60);

/// Two calls to the store, one for the lease and one for the record; the rest is for a busy machine.
const IN_TIME: Duration = hook::DEADLINE
    .saturating_mul(2)
    .saturating_add(Duration::from_secs(4));

/// Each test is to have the machine for itself.
static ALONE: Mutex<()> = Mutex::const_new(());

/// How long everything is well before and after.
const CALM: Duration = Duration::from_secs(1);

/// How many deliveries are all answered as usual in the end, and how many of them at once.
const STEADY: (usize, usize) = (100, 16);

/// One delivery of an event that was not delivered before.
#[derive(Clone, Debug)]
struct Delivery {
    id: String,
    answered: Instant,
    answer: Answer,
}

impl Delivery {
    /// The answer came in time, and was either the usual one, or a refusal that tells when to come
    /// again.
    fn check(&self) {
        match self.answer.status {
            200 => self.answer.is(200, "run"),
            _ => {
                self.answer.is(503, "refused");
                assert!(self.answer.retry_after.is_some(), "{self:?}");
            }
        }
        assert!(self.answer.took < IN_TIME, "{self:?}");
    }
}

/// Deliveries on their way, and those that were answered.
struct Traffic {
    answered: Arc<StdMutex<Vec<Delivery>>>,
    stop: CancellationToken,
    sending: JoinSet<()>,
    /// How many ticks lie between two deliveries.
    ticks: Arc<AtomicU32>,
    begin: Instant,
}

impl Traffic {
    /// Delivers these events at the rate, however long the answers take, or slower.
    fn of(hook: &Hook, ids: impl Iterator<Item = String> + Send + 'static) -> Self {
        let (answered, stop) = (Arc::<StdMutex<Vec<_>>>::default(), CancellationToken::new());
        let slower = Arc::new(AtomicU32::new(1));
        let mut sending = JoinSet::new();
        let (sender, book, over) = (hook.clone(), answered.clone(), stop.clone());
        let between = slower.clone();
        sending.spawn(async move {
            let mut ticks = interval(Duration::from_secs(1) / RATE);
            let mut deliveries = JoinSet::new();
            for id in ids {
                for _ in 0..between.load(Ordering::Relaxed) {
                    ticks.tick().await;
                }
                if over.is_cancelled() {
                    break;
                }
                let (hook, book) = (sender.clone(), book.clone());
                deliveries.spawn(async move {
                    let delivery = deliver(&hook, id).await;
                    book.lock().unwrap().push(delivery);
                });
            }
            assert!(over.is_cancelled(), "there were too few events");
            deliveries.join_all().await;
        });
        Self {
            answered,
            stop,
            sending,
            ticks: slower,
            begin: Instant::now(),
        }
    }

    /// Whether nearly all that was answered in the last moments was answered as usual. Not all: a
    /// busy machine is late now and then, and at this rate that is most of the time.
    fn is_calm(&self) -> bool {
        let answered = self.answered.lock().unwrap();
        let since = Instant::now() - CALM;
        let last = answered.iter().filter(|it| it.answered > since);
        let (usual, others): (Vec<_>, Vec<_>) = last.partition(|it| it.answer.status == 200);
        usual.len() > 9 * others.len()
    }

    /// The deliveries in the order of their answers.
    async fn end(self) -> Vec<Delivery> {
        self.stop.cancel();
        self.sending.join_all().await;
        let took = self.begin.elapsed();
        let mut deliveries = std::mem::take(&mut *self.answered.lock().unwrap());
        deliveries.sort_by_key(|it| it.answered);
        println!(
            "{} deliveries, {:.0} a second",
            deliveries.len(),
            deliveries.len() as f64 / took.as_secs_f64()
        );
        deliveries
    }
}

async fn deliver(hook: &Hook, id: String) -> Delivery {
    let answer = hook.send(&id).await;
    Delivery {
        id,
        answered: Instant::now(),
        answer,
    }
}

/// Delivers events, no faster than they are answered, until a whole round of them is answered as
/// usual: nothing has stayed behind that goes wrong now and then.
async fn steady(hook: &Hook, mut ids: impl Iterator<Item = String>) -> Vec<Delivery> {
    let (round, at_once) = STEADY;
    let end = Instant::now() + LIMIT;
    let mut all = vec![];
    loop {
        let ids: Vec<_> = ids.by_ref().take(round).collect();
        assert_eq!(ids.len(), round, "there were too few events");
        let round = stream::iter(ids).map(|id| deliver(hook, id));
        let round: Vec<_> = round.buffered(at_once).collect().await;
        let usual = round.iter().all(|it| it.answer.status == 200);
        all.extend(round);
        if usual {
            return all;
        }
        assert!(Instant::now() < end, "answers became as usual");
    }
}

/// Waits until the replicas have all that was written before the moment returned.
fn replicated(primary: &RedisServer, replicas: &str, mark: &Key) -> Instant {
    let safe = Instant::now();
    let client = redis::Client::open(primary.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    // It is about what its own connection wrote, and all before that.
    let mut both = redis::pipe();
    both.cmd("SET").arg(mark.as_str()).arg("1");
    both.cmd("WAIT").arg(replicas).arg(20_000);
    let (_, confirmed) = both.query::<((), u32)>(&mut connection).unwrap();
    assert_eq!(confirmed.to_string(), replicas);
    safe
}

/// What the sender heard.
fn tell(name: &str, deliveries: &[Delivery]) {
    let usual = deliveries.iter().filter(|it| it.answer.status == 200);
    let times: Vec<_> = usual.clone().map(|it| it.answered).collect();
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    let longest = gaps.max().unwrap();
    deliveries.iter().for_each(Delivery::check);
    let took = deliveries.iter().map(|it| it.answer.took);
    println!(
        "{name}: {longest:.1?} without a usual answer; {} usual answers, {} of 503 with retry-after; \
         the slowest took {:.0?}",
        times.len(),
        deliveries.len() - times.len(),
        took.max().unwrap(),
    );
    assert!(longest < LIMIT, "{longest:?}");
}

/// Whether each event is recorded as done there.
fn are_done(server: &RedisServer, ids: &[&str]) -> Vec<bool> {
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut pipe = redis::pipe();
    for id in ids {
        pipe.cmd("GET").arg(Key::new("t", id).as_str());
    }
    let values: Vec<Option<String>> = pipe.query(&mut connection).unwrap();
    let is_done = |value: &Option<String>| value.as_ref().is_some_and(|it| it.contains(" done "));
    values.iter().map(is_done).collect()
}

/// No event is lost, and none runs again, in another process, unless its record was lost with the
/// old primary. How many records were: none from before the `safe` moment.
async fn settle(
    (hook, other): (&Hook, &Hook),
    deliveries: &[Delivery],
    primary: &RedisServer,
    safe: Instant,
) -> usize {
    // As their sender does.
    let refused = deliveries.iter().filter(|it| it.answer.status != 200);
    let again = stream::iter(refused).map(|it| send_until_taken(hook, &it.id));
    again.buffer_unordered(64).collect::<Vec<_>>().await;
    hook.drain().await;
    let ids: Vec<_> = deliveries.iter().map(|it| &*it.id).collect();
    let done = are_done(primary, &ids);
    // A lease may have outlived its record.
    let answers = stream::iter(&ids).map(|id| send_until_taken(other, id));
    let answers: Vec<_> = answers.buffered(256).collect().await;
    let mut lost = 0;
    for ((delivery, done), answer) in deliveries.iter().zip(done).zip(answers) {
        let runs = (hook.runs(&delivery.id), other.runs(&delivery.id));
        if done {
            answer.is(200, "duplicate");
            assert_eq!(runs, (1, 0), "{delivery:?}");
        } else {
            answer.is(200, "run");
            assert_eq!(runs, (1, 1), "{delivery:?}");
            assert!(delivery.answered > safe, "{delivery:?}");
            lost += 1;
        }
    }
    println!("{lost} records lost with the old primary: these events ran once more");
    lost
}

/// A process at this store.
fn process(store: RedisStore) -> Hook {
    Hook::with_store(store, |layer| {
        let layer = layer.key_by(KeyBy::Id).lease(Duration::from_secs(4));
        layer.in_flight(InFlight::RetryLater)
    })
}

/// Waits until answers are as usual. If they are not after so long, the machine may be too busy.
async fn calm(traffic: &Traffic, long: Duration) {
    sleep(CALM).await;
    let (begin, mut slows) = (Instant::now(), long);
    while !traffic.is_calm() {
        assert!(begin.elapsed() < LIMIT, "answers became as usual");
        if begin.elapsed() > slows {
            let ticks = traffic.ticks.load(Ordering::Relaxed);
            traffic.ticks.store(2 * ticks, Ordering::Relaxed);
            println!("too busy for {} a second", RATE / ticks);
            slows += SLOWS;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// R13.
async fn behind_sentinels(
    name: &str,
    set: impl FnOnce(RedisStoreBuilder) -> RedisStoreBuilder,
    fail_over: impl FnOnce(&mut Service),
) -> usize {
    let _alone = ALONE.lock().await;
    let mut service = Service::start();
    let hook = process(set(RedisStore::builder(&service.url())).open().unwrap());
    let other = process(RedisStore::open(&service.url()).unwrap());
    send_until_taken(&hook, "warm-up").await.is(200, "run");
    let old = service.primary();
    let traffic = Traffic::of(&hook, (0..100_000).map(|n| format!("e{n}")));
    calm(&traffic, SLOWS).await;
    let safe = replicated(service.servers().nth(old).unwrap(), "2", &fresh());
    fail_over(&mut service);
    until("another is the primary", async || service.primary() != old).await;
    calm(&traffic, FAILOVER).await;
    let mut deliveries = traffic.end().await;
    tell(name, &deliveries);
    let after = steady(&hook, (0..).map(|n| format!("after{n}"))).await;
    after.iter().for_each(Delivery::check);
    deliveries.extend(after);
    let primary = service.servers().nth(service.primary()).unwrap();
    settle((&hook, &other), &deliveries, primary, safe).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_are_told_to_fail_over() {
    let name = "SENTINEL FAILOVER";
    behind_sentinels(name, |builder| builder, |service| service.fail_over()).await;
}

/// The replica that is promoted does not confirm any more what the old primary goes on to take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_confirmation_of_all_replicas_no_record_is_lost() {
    let name = "SENTINEL FAILOVER, confirmed by both replicas";
    let all = |builder: RedisStoreBuilder| builder.min_replicas(2, Duration::from_millis(100));
    let lost = behind_sentinels(name, all, |service| service.fail_over()).await;
    assert_eq!(lost, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_behind_sentinels_is_killed() {
    let kill = |service: &mut Service| {
        let primary = service.primary();
        service.server_mut(primary).kill();
    };
    let name = "primary killed behind Sentinels";
    behind_sentinels(name, |builder| builder, kill).await;
}

/// R13: all events have their keys on the node that is replaced.
async fn in_a_cluster(name: &str, fail_over: impl FnOnce(&mut Cluster, usize)) -> usize {
    let _alone = ALONE.lock().await;
    let mut cluster = Cluster::start();
    let [hook, other] = [(); 2].map(|()| process(RedisStore::open(&cluster.url()).unwrap()));
    // It gets to know all nodes, not only those that the URL names.
    send_until_taken(&hook, "warm-up").await.is(200, "run");
    let mut ids = cluster.ids_on(0, 100_000);
    let after = ids.split_off(50_000);
    let replica = cluster.replica_of(0);
    let traffic = Traffic::of(&hook, ids.into_iter());
    calm(&traffic, SLOWS).await;
    let safe = replicated(&cluster.nodes()[0].server, "1", &cluster.fresh_on(0));
    fail_over(&mut cluster, replica);
    until("the replica takes over", async || {
        let server = &cluster.nodes()[replica].server;
        server
            .text(&["INFO", "replication"])
            .contains("role:master")
    })
    .await;
    calm(&traffic, FAILOVER).await;
    let mut deliveries = traffic.end().await;
    tell(name, &deliveries);
    let after = steady(&hook, after.into_iter()).await;
    after.iter().for_each(Delivery::check);
    deliveries.extend(after);
    let primary = &cluster.nodes()[replica].server;
    settle((&hook, &other), &deliveries, primary, safe).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_is_told_to_fail_over() {
    let tell = |cluster: &mut Cluster, replica: usize| {
        let server = &cluster.nodes()[replica].server;
        server.command(&["CLUSTER", "FAILOVER"]);
    };
    // The old primary waits for its replica to catch up.
    assert_eq!(in_a_cluster("CLUSTER FAILOVER", tell).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_is_killed() {
    let kill = |cluster: &mut Cluster, _| cluster.node_mut(0).server.kill();
    in_a_cluster("primary killed in a cluster", kill).await;
}
