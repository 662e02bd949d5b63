//! One sender, one request at a time: what the layer adds to the answer's time, beside the round trips
//! to Redis.

use std::{
    io::stdin,
    iter,
    ops::RangeFrom,
    time::{Duration, Instant},
};

use redis::{Client, aio::MultiplexedConnection, cmd};
use tokio::{runtime::Builder, time::Instant as Deadline};
use tower_webhook_dedup::{BodyHash, Key, LeaseStore, Record, RedisStore, Token};

use crate::{
    Options, Result,
    generator::{Event, Generator, Ids, Path, Until},
    lab::Lab,
    machine::Cores,
    measure::{median, micros},
    process::Process,
    report::table::Table,
    servers::{Running, Server},
};

/// What was measured on cores that are idle but for this, in two ways.
#[derive(Debug)]
pub(crate) struct Latency {
    /// The system halts a core that has nothing to do, as it does everywhere. In a virtual machine
    /// that is a way to the hypervisor and back each time that something is waited for.
    pub(crate) halting: Turns,
    /// Something of the least priority runs on the cores all the time. `None` where none is pinned.
    pub(crate) awake: Option<Turns>,
}

/// All that is compared, measured in turns. A machine may be slower for some seconds, as when its
/// neighbours are busy: a turn takes some tenths of a second, so that all in it meets the same.
#[derive(Debug, Default)]
pub(crate) struct Turns(Vec<Turn>);

/// One measurement of each: the p50 of some hundred requests or calls, in microseconds.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Of requests to bare axum.
    bare: f64,
    /// Of first deliveries to what is written by hand, which asks Redis once.
    by_hand: f64,
    /// Of first deliveries to the layer.
    first: f64,
    duplicate: f64,
    /// The same with `busy_poll`.
    busy_first: f64,
    busy_duplicate: f64,
    /// Of a `PING` from a process like the server, on the server's core.
    round_trip: f64,
    /// Of the store calls of a first delivery, there.
    first_calls: f64,
    /// And of a duplicate.
    duplicate_call: f64,
}

/// How many turns each round has, each way.
const TURNS: u32 = 10;

/// The requests of a turn to one server are sent for this part of the time of a measurement.
const SHORTER: u32 = 30;

pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<Latency> {
    let (mut halting, mut awake) = (Turns::default(), Turns::default());
    for _ in 0..options.rounds {
        lab.redis.flush()?;
        let mut subjects = Subjects::start(lab)?;
        for _ in 0..TURNS {
            halting.0.push(subjects.turn(lab, options)?);
            if let Some(Cores { server, load }) = lab.cores {
                let keep_awake = |core| Process::start(Some(core), &["keep-awake"]);
                let _until_measured = (keep_awake(server)?, keep_awake(load)?);
                awake.0.push(subjects.turn(lab, options)?);
            }
        }
    }
    Ok(Latency {
        halting,
        awake: (!awake.0.is_empty()).then_some(awake),
    })
}

impl Latency {
    /// Both ways, and what to say of them.
    pub(crate) fn ways(&self) -> impl Iterator<Item = (&'static str, &Turns)> {
        let halting = iter::once(("", &self.halting));
        let awake = self.awake.iter();
        halting.chain(awake.map(|turns| (", cores kept awake", turns)))
    }

    pub(crate) fn table(&self) -> Table {
        let ways: Vec<_> = self.ways().map(|(_, turns)| turns).collect();
        let heads = ["p50 µs", "cores kept awake"];
        let mut table = Table::new(&[&["what"], &heads[..ways.len()]].concat());
        let mut row = |what: &str, figure: fn(&Turn) -> f64| {
            let figures = ways
                .iter()
                .map(|turns| format!("{:.0}", turns.median(figure)));
            table.row([what.to_owned()].into_iter().chain(figures));
        };
        row("a round trip to Redis, alone", |it| it.round_trip);
        row("`RedisStore` alone, acquire", |it| it.duplicate_call);
        row("`RedisStore` alone, acquire and complete", |it| {
            it.first_calls
        });
        row("bare axum", |it| it.bare);
        row("hand-rolled `SET NX EX`, first delivery", |it| it.by_hand);
        row("– over bare axum and a round trip", |it| {
            it.by_hand - it.bare - it.round_trip
        });
        row("layer, first delivery", |it| it.first);
        row("– over bare axum and two round trips", Turn::first_over);
        row("layer, duplicate", |it| it.duplicate);
        row("– over bare axum and a round trip", Turn::duplicate_over);
        row("layer with `busy_poll`, first delivery", |it| it.busy_first);
        row(
            "– over bare axum and two round trips",
            Turn::busy_first_over,
        );
        row("layer with `busy_poll`, duplicate", |it| it.busy_duplicate);
        row(
            "– over bare axum and a round trip",
            Turn::busy_duplicate_over,
        );
        table
    }
}

impl Turns {
    /// The median of a figure, or of what is computed from the figures of each turn by itself.
    pub(crate) fn median(&self, figure: fn(&Turn) -> f64) -> f64 {
        median(self.0.iter().map(figure))
    }
}

impl Turn {
    /// What a first delivery takes over bare axum and two round trips.
    pub(crate) fn first_over(&self) -> f64 {
        self.over(self.first, 2.0)
    }

    /// What a duplicate takes over bare axum and a round trip.
    pub(crate) fn duplicate_over(&self) -> f64 {
        self.over(self.duplicate, 1.0)
    }

    /// What a first delivery takes with `busy_poll`.
    pub(crate) fn busy_first_over(&self) -> f64 {
        self.over(self.busy_first, 2.0)
    }

    /// What a duplicate takes with `busy_poll`.
    pub(crate) fn busy_duplicate_over(&self) -> f64 {
        self.over(self.busy_duplicate, 1.0)
    }

    fn over(&self, delivery: f64, round_trips: f64) -> f64 {
        delivery - self.bare - round_trips * self.round_trip
    }
}

/// What is measured in each turn.
struct Subjects {
    bare: Subject,
    by_hand: Subject,
    layer: Subject,
    busy: Subject,
    round_trips: Process,
    /// An event that the layer has recorded as done.
    done: u64,
}

/// A server, and a connection to it.
struct Subject {
    _server: Running,
    sender: Generator,
}

impl Subjects {
    fn start(lab: &mut Lab) -> Result<Self> {
        let core = lab.cores.map(|cores| cores.server);
        let mut subjects = Self {
            bare: Subject::start(Server::Bare, lab)?,
            by_hand: Subject::start(Server::HandRolled, lab)?,
            layer: Subject::start(Server::Layer, lab)?,
            busy: Subject::start(Server::BusyPoll, lab)?,
            round_trips: Process::start(core, &["round-trips", &lab.redis.url()])?,
            done: lab.ids.next(),
        };
        let done = Event::Same(subjects.done);
        subjects.layer.sender.run(done, Until::Requests(1))?;
        Ok(subjects)
    }

    fn turn(&mut self, lab: &mut Lab, options: &Options) -> Result<Turn> {
        let time = options.seconds / SHORTER;
        let bare = self.bare.p50(&mut lab.ids, None, time)?;
        let by_hand = self.by_hand.p50(&mut lab.ids, None, time)?;
        let first = self.layer.p50(&mut lab.ids, None, time)?;
        let duplicate = self.layer.p50(&mut lab.ids, Some(self.done), time)?;
        let busy_first = self.busy.p50(&mut lab.ids, None, time)?;
        let busy_duplicate = self.busy.p50(&mut lab.ids, Some(self.done), time)?;

        self.round_trips.ask()?;
        let mut micros = || Result::Ok(self.round_trips.line()?.parse::<f64>()? / 1e3);
        Ok(Turn {
            bare,
            by_hand,
            first,
            duplicate,
            busy_first,
            busy_duplicate,
            round_trip: micros()?,
            first_calls: micros()?,
            duplicate_call: micros()?,
        })
    }
}

impl Subject {
    fn start(server: Server, lab: &Lab) -> Result<Self> {
        let server = Running::start(server, lab)?;
        let sender = Generator::connect(&[server.port], 1, 1024, Path::Webhook)?;
        Ok(Self {
            _server: server,
            sender,
        })
    }

    /// Of deliveries of this event, or else of new ones, after a short while for which nothing is
    /// counted.
    fn p50(&mut self, ids: &mut Ids, event: Option<u64>, time: Duration) -> Result<f64> {
        let mut run = |time| {
            let event = match event {
                Some(id) => Event::Same(id),
                None => Event::New(ids),
            };
            self.sender.run(event, Until::Time(time))
        };
        run(time / 5)?;
        Ok(micros(run(time)?.percentile(0.5)))
    }
}

/// Whenever a line comes, prints the medians of some calls, one at a time, on a runtime like the
/// server's: a `PING` by the client, and what `RedisStore` does for a first delivery and for a
/// duplicate.
pub(crate) fn round_trips(redis: &str) -> Result<()> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let client = Client::open(redis)?;
    let mut calls = Calls {
        connection: runtime.block_on(client.get_multiplexed_async_connection())?,
        store: RedisStore::open(redis)?,
        events: 0..,
    };
    for line in stdin().lines() {
        line?;
        // In a task, as requests are.
        let task = runtime.spawn(async move { calls.time().await.map(|times| (times, calls)) });
        let times;
        (times, calls) = runtime.block_on(task)??;
        for mut times in times {
            times.drain(..Calls::UNCOUNTED);
            times.sort_unstable();
            println!("{}", times[times.len() / 2].as_nanos());
        }
    }
    Ok(())
}

/// Those that are timed.
struct Calls {
    connection: MultiplexedConnection,
    store: RedisStore,
    /// Numbers of events that are new.
    events: RangeFrom<u64>,
}

impl Calls {
    const UNCOUNTED: usize = 50;
    const COUNTED: usize = 250;

    async fn time(&mut self) -> Result<[Vec<Duration>; 3]> {
        let lasts = Duration::from_secs(60);
        let hash = BodyHash::of(b"{}");
        let record = Record::new(Some(200), Some(hash));
        let [mut pings, mut firsts, mut duplicates] = [const { vec![] }; 3];
        for _ in 0..Self::UNCOUNTED + Self::COUNTED {
            let began = Instant::now();
            cmd("PING").query_async::<()>(&mut self.connection).await?;
            pings.push(began.elapsed());
        }
        for n in self.events.by_ref().take(Self::UNCOUNTED + Self::COUNTED) {
            let key = Key::with_hash("/webhook", format!("evt_1NG8Du2eZvKYlo2CUI79vXWy{n}"), hash);
            let by = Deadline::now() + lasts;
            let began = Instant::now();
            let token = Token::random();
            self.store.acquire(&key, token, lasts, by).await?;
            self.store.complete(&key, token, &record, lasts, by).await?;
            firsts.push(began.elapsed());

            let began = Instant::now();
            self.store.acquire(&key, Token::random(), lasts, by).await?;
            duplicates.push(began.elapsed());
        }
        Ok([pings, firsts, duplicates])
    }
}
