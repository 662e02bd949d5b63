//! One measurement of one server, and medians over several.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    Result,
    generator::{Event, Generator, Path, Until},
    lab::Lab,
    servers::Running,
};

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    /// Bytes of a body, about.
    pub(crate) body: usize,
    pub(crate) kind: Kind,
    /// For how long.
    pub(crate) time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Each event is new.
    First,
    /// All are one event, which is completed before.
    Duplicate,
}

/// What was measured. Times are in microseconds; all but the rate and the percentiles count a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Requests a second.
    pub(crate) rate: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// The time that the server's threads ran.
    pub(crate) cpu: f64,
    /// The same of Redis.
    pub(crate) redis_cpu: f64,
    /// Bytes that Redis received, and sent.
    pub(crate) received: f64,
    pub(crate) sent: f64,
    /// Calls of each command in Redis, those in scripts included.
    pub(crate) commands: BTreeMap<String, f64>,
    /// How often the handler ran.
    pub(crate) runs: f64,
    /// Answers in all that were not 2xx.
    pub(crate) refused: usize,
}

/// Puts load on the servers together, after a short while for which nothing is counted.
pub(crate) fn measure(lab: &mut Lab, servers: &[Running], load: Load) -> Result<Sample> {
    let ports: Vec<_> = servers.iter().map(|server| server.port).collect();
    let mut generator = Generator::connect(&ports, load.connections, load.body, Path::Webhook)?;
    let same = lab.ids.next();
    let mut run = |lab: &mut Lab, until| {
        let event = match load.kind {
            Kind::First => Event::New(&mut lab.ids),
            Kind::Duplicate => Event::Same(same),
        };
        generator.run(event, until)
    };

    if load.kind == Kind::Duplicate {
        // All but one of the first ones meet a running event, which some refuse.
        run(lab, Until::Requests(1))?;
    }
    run(lab, Until::Time(load.time.mul_f64(0.2)))?;
    let before = Counters::read(lab, servers)?;
    let mut seen = run(lab, Until::Time(load.time))?;
    let after = Counters::read(lab, servers)?;

    let requests = seen.requests() as f64;
    Ok(Sample {
        rate: requests / seen.time.as_secs_f64(),
        p50: micros(seen.percentile(0.5)),
        p99: micros(seen.percentile(0.99)),
        cpu: micros(after.cpu - before.cpu) / requests,
        redis_cpu: micros(after.redis_cpu - before.redis_cpu) / requests,
        received: (after.received - before.received) as f64 / requests,
        sent: (after.sent - before.sent) as f64 / requests,
        commands: calls_between(&before.calls, &after.calls)
            .map(|(name, calls)| (name.clone(), calls as f64 / requests))
            .collect(),
        runs: (after.runs - before.runs) as f64 / requests,
        refused: seen.refused,
    })
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

struct Counters {
    cpu: Duration,
    redis_cpu: Duration,
    received: u64,
    sent: u64,
    calls: BTreeMap<String, u64>,
    runs: usize,
}

impl Counters {
    fn read(lab: &mut Lab, servers: &[Running]) -> Result<Self> {
        let cpu = servers.iter().map(|server| server.process.cpu());
        Ok(Self {
            cpu: cpu.sum::<Result<_>>()?,
            redis_cpu: lab.redis.cpu()?,
            received: lab.redis.figure("stats", "total_net_input_bytes")?,
            sent: lab.redis.figure("stats", "total_net_output_bytes")?,
            calls: lab.redis.calls()?,
            runs: servers.iter().map(Running::runs).sum::<Result<_>>()?,
        })
    }
}

fn calls_between<'a>(
    before: &'a BTreeMap<String, u64>,
    after: &'a BTreeMap<String, u64>,
) -> impl Iterator<Item = (&'a String, u64)> {
    after
        .iter()
        .map(|(name, calls)| (name, calls - before.get(name).unwrap_or(&0)))
}

impl Sample {
    /// The median of each figure for itself; of the refused, the most.
    pub(crate) fn median(samples: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(samples.iter().map(figure));
        let names = samples.iter().flat_map(|sample| sample.commands.keys());
        let calls = |name: &String| {
            median(
                samples
                    .iter()
                    .map(|it| it.commands.get(name).copied().unwrap_or(0.0)),
            )
        };
        Self {
            rate: of(|it| it.rate),
            p50: of(|it| it.p50),
            p99: of(|it| it.p99),
            cpu: of(|it| it.cpu),
            redis_cpu: of(|it| it.redis_cpu),
            received: of(|it| it.received),
            sent: of(|it| it.sent),
            runs: of(|it| it.runs),
            commands: names.map(|name| (name.clone(), calls(name))).collect(),
            refused: samples
                .iter()
                .map(|it| it.refused)
                .max()
                .unwrap_or_default(),
        }
    }
}

/// The one in the middle, or the mean of the two; zero if there is none.
pub(crate) fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<_> = figures.collect();
    figures.sort_by(f64::total_cmp);
    match figures.len() {
        0 => 0.0,
        count if count % 2 == 1 => figures[count / 2],
        count => f64::midpoint(figures[count / 2 - 1], figures[count / 2]),
    }
}
