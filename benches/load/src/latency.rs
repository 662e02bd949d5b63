//! One sender, one request at a time: what the layer adds to the answer's time, in round trips to
//! Redis.

use std::time::{Duration, Instant};

use redis::{Client, cmd};
use tokio::runtime::Builder;

use crate::{
    Options, Result,
    lab::Lab,
    measure::{Kind, Load, measure, median},
    process::Process,
    servers::{Running, Server},
};

/// Medians, in microseconds.
#[derive(Debug)]
pub(crate) struct Latency {
    /// The p50 of a request to bare axum.
    pub(crate) bare: f64,
    pub(crate) first: f64,
    pub(crate) duplicate: f64,
    /// The p50 of a `PING` from a process like the server, on the server's core.
    pub(crate) round_trip: f64,
}

impl Latency {
    pub(crate) fn first_over_bare(&self) -> f64 {
        self.first - self.bare
    }

    pub(crate) fn duplicate_over_bare(&self) -> f64 {
        self.duplicate - self.bare
    }
}

pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<Latency> {
    let (mut bare, mut first, mut duplicate, mut round_trip) = (vec![], vec![], vec![], vec![]);
    for _ in 0..options.rounds {
        bare.push(p50(lab, options, Server::Bare, Kind::First)?);
        first.push(p50(lab, options, Server::Layer, Kind::First)?);
        duplicate.push(p50(lab, options, Server::Layer, Kind::Duplicate)?);
        let core = lab.cores.map(|cores| cores.server);
        let mut process = Process::start(core, &["round-trip", &lab.redis.url()])?;
        let nanos: f64 = process.line()?.parse()?;
        round_trip.push(nanos / 1e3);
    }
    let median = |figures: Vec<f64>| median(figures.into_iter());
    Ok(Latency {
        bare: median(bare),
        first: median(first),
        duplicate: median(duplicate),
        round_trip: median(round_trip),
    })
}

fn p50(lab: &mut Lab, options: &Options, server: Server, kind: Kind) -> Result<f64> {
    lab.redis.flush()?;
    let servers = [Running::start(server, lab)?];
    let load = Load {
        connections: 1,
        body: 1024,
        kind,
        time: options.seconds / 2,
    };
    Ok(measure(lab, &servers, load)?.p50)
}

/// Prints the median of many round trips, one at a time, on a runtime like the server's.
pub(crate) fn round_trips(redis: &str) -> Result<()> {
    const UNCOUNTED: usize = 500;
    const COUNTED: usize = 5_000;

    let client = Client::open(redis)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    // In a task, as requests are.
    let times = runtime.spawn(async move {
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut times = Vec::<Duration>::with_capacity(UNCOUNTED + COUNTED);
        for _ in 0..UNCOUNTED + COUNTED {
            let began = Instant::now();
            cmd("PING").query_async::<()>(&mut connection).await?;
            times.push(began.elapsed());
        }
        Ok::<_, redis::RedisError>(times)
    });
    let mut times = runtime.block_on(times)??.split_off(UNCOUNTED);
    times.sort_unstable();
    println!("{}", times[COUNTED / 2].as_nanos());
    Ok(())
}
