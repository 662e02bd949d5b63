//! All servers under the same load, in interleaved rounds.

use std::{fmt, time::Instant};

use crate::{
    Options, Result,
    allocations::{self, Allocations},
    counts::{self, Counts},
    goals::Goals,
    lab::Lab,
    latency::{self, Latency},
    measure::{Kind, Load, Sample, measure},
    report::{
        section,
        table::{Table, rate, ratio},
    },
    servers::{Running, Server},
};

/// Medians of one server.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) server: Server,
    pub(crate) first: Sample,
    pub(crate) duplicate: Sample,
}

impl Row {
    pub(crate) const fn sample(&self, kind: Kind) -> &Sample {
        match kind {
            Kind::First => &self.first,
            Kind::Duplicate => &self.duplicate,
        }
    }
}

/// Medians of several servers under the same load.
#[derive(Debug)]
pub(crate) struct Rows(pub(crate) Vec<Row>);

impl Rows {
    /// The figures of a server, if it was measured.
    pub(crate) fn find(&self, server: Server) -> Option<&Row> {
        self.0.iter().find(|row| row.server == server)
    }

    /// The figures of a server that is always measured.
    pub(crate) fn of(&self, server: Server) -> &Row {
        self.find(server).expect("it was measured")
    }
}

/// All that is measured without `scale`.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) small: Rows,
    pub(crate) large: Rows,
    pub(crate) latency: Latency,
    pub(crate) counts: Counts,
    pub(crate) allocations: Allocations,
    /// Those that could not be measured, and why.
    missing: Vec<(Server, &'static str)>,
    conditions: String,
    how: String,
}

pub(crate) fn run(options: &Options) -> Result<Comparison> {
    let allocations = allocations::count()?;
    let began = Instant::now();
    let mut lab = Lab::open(options)?;
    let (mut servers, mut missing) = (vec![], vec![]);
    for server in Server::ALL {
        match server.obstacle(&mut lab.redis)? {
            None => servers.push(server),
            Some(obstacle) => missing.push((server, obstacle)),
        }
    }
    let small = rows(&mut lab, options, &servers, 64, 1024)?;
    let some = [Server::Bare, Server::HandRolled, Server::Layer];
    let large = rows(&mut lab, options, &some, 16, 64 * 1024)?;
    eprintln!("one connection");
    let latency = latency::run(&mut lab, options)?;
    let counts = counts::run(&mut lab)?;
    let how = format!(
        "{} interleaved rounds of {:?} each, medians; {:.0} seconds in all.",
        options.rounds,
        options.seconds,
        began.elapsed().as_secs_f64(),
    );
    Ok(Comparison {
        small,
        large,
        latency,
        counts,
        allocations,
        missing,
        conditions: lab.conditions()?,
        how,
    })
}

fn rows(
    lab: &mut Lab,
    options: &Options,
    servers: &[Server],
    connections: usize,
    body: usize,
) -> Result<Rows> {
    let mut samples: Vec<_> = servers.iter().map(|_| (vec![], vec![])).collect();
    for round in 1..=options.rounds {
        eprintln!(
            "bodies of {} KiB, {connections} connections: round {round} of {}",
            body / 1024,
            options.rounds,
        );
        for (&server, (first, duplicate)) in servers.iter().zip(&mut samples) {
            lab.redis.flush()?;
            let running = [Running::start(server, lab)?];
            let load = |kind| Load {
                connections,
                body,
                kind,
                time: options.seconds,
            };
            first.push(measure(lab, &running, load(Kind::First))?);
            duplicate.push(measure(lab, &running, load(Kind::Duplicate))?);
        }
    }
    let row = |(&server, (first, duplicate)): (&Server, &(Vec<Sample>, Vec<Sample>))| Row {
        server,
        first: Sample::median(first),
        duplicate: Sample::median(duplicate),
    };
    Ok(Rows(servers.iter().zip(&samples).map(row).collect()))
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}\n", self.conditions, self.how)?;
        writeln!(
            f,
            "![CPU time of the server for each delivery](results.svg)\n"
        )?;
        section(f, "First deliveries", &of_kind(&self.small, Kind::First))?;
        section(
            f,
            "Duplicates of a completed event",
            &of_kind(&self.small, Kind::Duplicate),
        )?;
        writeln!(
            f,
            "64 connections, 1 KiB. CPU is the time that the server's threads ran for a request, by \
             the scheduler's count. Redis commands are those of `INFO commandstats`, the `GET` and \
             `SET` inside of scripts included. Handler runs are for each request. Not 2xx counts the \
             answers of the worst round.\n"
        )?;
        for (server, obstacle) in &self.missing {
            writeln!(f, "Not measured: {}; {obstacle}.\n", server.name())?;
        }
        section(
            f,
            "First deliveries of 64 KiB",
            &of_kind(&self.large, Kind::First),
        )?;
        section(
            f,
            "Duplicates of 64 KiB",
            &of_kind(&self.large, Kind::Duplicate),
        )?;
        writeln!(f, "16 connections.\n")?;
        section(f, "One connection", &self.latency.table())?;
        writeln!(
            f,
            "The round trip is a `PING` by `redis`' multiplexed connection, one at a time, in a \
             process like the server, on its core and kind of runtime; the store's calls are made there, \
             too. Each figure is the median over all turns, and each difference that of the differences \
             within the turns: it need not be the difference of the medians. With `busy_poll` it can be \
             negative: bare axum and the `PING` wait for threads that sleep. README.md says what a turn \
             is, and what keeps the cores awake.\n"
        )?;
        section(f, "Goals", &Goals::of(self).table())
    }
}

fn of_kind(rows: &Rows, kind: Kind) -> Table {
    let mut table = Table::new(&[
        "server",
        "req/s",
        "× bare",
        "p50 ms",
        "p99 ms",
        "CPU µs",
        "over bare",
        "× hand-rolled",
        "Redis CPU µs",
        "Redis commands",
        "handler runs",
        "not 2xx",
    ]);
    let bare = rows.of(Server::Bare).sample(kind);
    let by_hand = rows.of(Server::HandRolled).sample(kind);
    for row in &rows.0 {
        let sample = row.sample(kind);
        table.row([
            row.server.name().to_owned(),
            rate(sample.rate),
            ratio(sample.rate / bare.rate),
            format!("{:.2}", sample.p50 / 1e3),
            format!("{:.2}", sample.p99 / 1e3),
            format!("{:.1}", sample.cpu),
            format!("{:+.1}", sample.cpu - bare.cpu),
            ratio(sample.cpu / by_hand.cpu),
            format!("{:.1}", sample.redis_cpu),
            commands(sample),
            ratio(sample.runs),
            sample.refused.to_string(),
        ]);
    }
    table
}

/// Those that requests caused, and not the test.
fn commands(sample: &Sample) -> String {
    let often = sample.commands.iter().filter(|(_, calls)| **calls >= 0.05);
    let parts: Vec<_> = often
        .map(|(name, calls)| format!("{name} {calls:.2}"))
        .collect();
    if parts.is_empty() {
        "–".into()
    } else {
        parts.join(", ")
    }
}
