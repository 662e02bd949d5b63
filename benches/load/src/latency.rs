//! One sender, one request at a time: what the layer adds to the answer's time, in round trips to
//! Redis.

use std::time::{Duration, Instant};

use redis::{Client, cmd};
use tokio::{runtime::Builder, time::Instant as Deadline};
use tower_webhook_dedup::{BodyHash, Key, LeaseStore, Record, RedisStore, Token};

use crate::{
    Options, Result,
    lab::Lab,
    machine::Cores,
    measure::{Kind, Load, measure, median},
    process::Process,
    servers::{Running, Server},
};

/// What was measured on idle cores, in two ways.
#[derive(Debug)]
pub(crate) struct Latency {
    /// The system halts a core that has nothing to do, as it does everywhere. In a virtual machine
    /// that is a way to the hypervisor and back each time that something is waited for.
    pub(crate) halting: Medians,
    /// Something of the least priority runs on the cores all the time. `None` where none is pinned.
    pub(crate) awake: Option<Medians>,
}

/// In microseconds.
#[derive(Debug)]
pub(crate) struct Medians {
    /// The p50 of a request to bare axum.
    pub(crate) bare: f64,
    /// Of a first delivery to what is written by hand, which asks Redis once.
    pub(crate) by_hand: f64,
    pub(crate) first: f64,
    pub(crate) duplicate: f64,
    /// The p50 of a `PING` from a process like the server, on the server's core.
    pub(crate) round_trip: f64,
    /// The same of the store calls of a first delivery.
    pub(crate) first_calls: f64,
    /// And of a duplicate.
    pub(crate) duplicate_call: f64,
}

impl Medians {
    pub(crate) fn over_bare(&self, p50: f64) -> f64 {
        p50 - self.bare
    }
}

/// There are so many rounds in place of each that was asked for, and each is that much shorter: a
/// neighbour of this machine that is busy for some seconds then disturbs all that is compared.
const SHORTER: u32 = 2;

pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<Latency> {
    let (mut halting, mut awake) = (vec![], vec![]);
    for _ in 0..options.rounds * SHORTER {
        halting.push(round(lab, options)?);
        if let Some(Cores { server, load }) = lab.cores {
            let keep_awake = |core| Process::start(Some(core), &["keep-awake"]);
            let _until_measured = (keep_awake(server)?, keep_awake(load)?);
            awake.push(round(lab, options)?);
        }
    }
    Ok(Latency {
        halting: Medians::of(&halting),
        awake: (!awake.is_empty()).then(|| Medians::of(&awake)),
    })
}

impl Medians {
    fn of(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(rounds.iter().map(figure));
        Self {
            bare: of(|it| it.bare),
            by_hand: of(|it| it.by_hand),
            first: of(|it| it.first),
            duplicate: of(|it| it.duplicate),
            round_trip: of(|it| it.round_trip),
            first_calls: of(|it| it.first_calls),
            duplicate_call: of(|it| it.duplicate_call),
        }
    }
}

fn round(lab: &mut Lab, options: &Options) -> Result<Medians> {
    let mut p50 = |server, kind| p50(lab, options, server, kind);
    let bare = p50(Server::Bare, Kind::First)?;
    let by_hand = p50(Server::HandRolled, Kind::First)?;
    let first = p50(Server::Layer, Kind::First)?;
    let duplicate = p50(Server::Layer, Kind::Duplicate)?;

    let core = lab.cores.map(|cores| cores.server);
    let mut process = Process::start(core, &["round-trip", &lab.redis.url()])?;
    let mut micros = || Result::Ok(process.line()?.parse::<f64>()? / 1e3);
    Ok(Medians {
        bare,
        by_hand,
        first,
        duplicate,
        round_trip: micros()?,
        first_calls: micros()?,
        duplicate_call: micros()?,
    })
}

fn p50(lab: &mut Lab, options: &Options, server: Server, kind: Kind) -> Result<f64> {
    lab.redis.flush()?;
    let servers = [Running::start(server, lab)?];
    let load = Load {
        connections: 1,
        body: 1024,
        kind,
        time: options.seconds / 2 / SHORTER,
    };
    Ok(measure(lab, &servers, load)?.p50)
}

/// Prints the medians of many calls, one at a time, on a runtime like the server's: a `PING` by the
/// client, and what `RedisStore` does for a first delivery and for a duplicate.
pub(crate) fn round_trips(redis: &str) -> Result<()> {
    const UNCOUNTED: usize = 500;
    const COUNTED: usize = 2_000;

    let client = Client::open(redis)?;
    let store = RedisStore::open(redis)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    // In a task, as requests are.
    let times = runtime.spawn(async move {
        let mut connection = client.get_multiplexed_async_connection().await?;
        let hash = BodyHash::of(b"{}");
        let record = Record::new(Some(200), Some(hash));
        let lasts = Duration::from_secs(60);
        let [mut pings, mut firsts, mut duplicates] = [const { vec![] }; 3];
        for _ in 0..UNCOUNTED + COUNTED {
            let began = Instant::now();
            cmd("PING").query_async::<()>(&mut connection).await?;
            pings.push(began.elapsed());
        }
        for n in 0..UNCOUNTED + COUNTED {
            let key = Key::with_hash("/webhook", format!("evt_1NG8Du2eZvKYlo2CUI79vXWy{n}"), hash);
            let by = Deadline::now() + lasts;
            let began = Instant::now();
            let token = Token::random();
            store.acquire(&key, token, lasts, by).await?;
            store.complete(&key, token, &record, lasts, by).await?;
            firsts.push(began.elapsed());

            let began = Instant::now();
            store.acquire(&key, Token::random(), lasts, by).await?;
            duplicates.push(began.elapsed());
        }
        Result::Ok([pings, firsts, duplicates])
    });
    for times in runtime.block_on(times)?? {
        let mut times: Vec<Duration> = times;
        times.drain(..UNCOUNTED);
        times.sort_unstable();
        println!("{}", times[COUNTED / 2].as_nanos());
    }
    Ok(())
}
