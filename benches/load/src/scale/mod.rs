//! How cost grows with processes, connections and bodies, and memory with events; and what a great
//! many events would need.

pub(crate) mod fill;
mod plan;

use std::{fmt, iter, time::Duration};

use self::{
    fill::{Filled, Store},
    plan::Plan,
};
use crate::{
    Options, Result,
    lab::Lab,
    measure::{Kind, Load, Sample, measure},
    report::{
        section,
        table::{Table, rate},
    },
    servers::{Running, Server},
};

const KIB: usize = 1024;
const EVENTS: usize = 1_000_000;
const LONG_ENOUGH: Duration = Duration::from_secs(1);

/// What is varied, and what it costs.
#[derive(Debug)]
struct Row {
    server: Server,
    setting: String,
    first: Sample,
    duplicate: Sample,
}

#[derive(Debug)]
pub(crate) struct Scale {
    processes: Vec<Row>,
    connections: Vec<Row>,
    bodies: Vec<Row>,
    filled: Vec<Filled>,
    plan: Plan,
    conditions: String,
}

pub(crate) fn run(options: &Options) -> Result<Scale> {
    let mut lab = Lab::open(options)?;
    let mut rows = |server, settings: [Setting; 3]| -> Result<Vec<Row>> {
        let row = |setting| row(&mut lab, options, server, setting);
        settings.into_iter().map(row).collect()
    };
    let processes = rows(
        Server::Layer,
        [1, 2, 4].map(|processes| Setting {
            processes,
            connections: 64,
            body: KIB,
            label: format!("{processes}"),
        }),
    )?;
    let (mut connections, mut bodies) = (vec![], vec![]);
    for server in [Server::Bare, Server::HandRolled, Server::Layer] {
        connections.extend(rows(
            server,
            [1, 64, 1024].map(|connections| Setting {
                processes: 1,
                connections,
                body: KIB,
                label: format!("{connections}"),
            }),
        )?);
        bodies.extend(rows(
            server,
            [1, 64, 1024].map(|kib| Setting {
                processes: 1,
                connections: 16,
                body: kib * KIB,
                label: format!("{kib} KiB"),
            }),
        )?);
    }
    let filled = Store::ALL
        .iter()
        .map(|&store| fill::measure(&mut lab, store, EVENTS))
        .collect::<Result<Vec<_>>>()?;
    let plan = Plan::new(&processes[0].first, &filled)?;
    Ok(Scale {
        processes,
        connections,
        bodies,
        filled,
        plan,
        conditions: lab.conditions()?,
    })
}

struct Setting {
    processes: usize,
    connections: usize,
    body: usize,
    label: String,
}

fn row(lab: &mut Lab, options: &Options, server: Server, setting: Setting) -> Result<Row> {
    eprintln!(
        "{}: processes {}, connections {}, bodies of {} KiB",
        server.name(),
        setting.processes,
        setting.connections,
        setting.body / KIB,
    );
    let (mut first, mut duplicate) = (vec![], vec![]);
    for _ in 0..options.rounds.min(3) {
        lab.redis.flush()?;
        let running = iter::repeat_with(|| Running::start(server, lab));
        let running = running
            .take(setting.processes)
            .collect::<Result<Vec<_>>>()?;
        let load = |kind| Load {
            connections: setting.connections,
            body: setting.body,
            kind,
            time: options.seconds.min(LONG_ENOUGH),
        };
        first.push(measure(lab, &running, load(Kind::First))?);
        duplicate.push(measure(lab, &running, load(Kind::Duplicate))?);
    }
    Ok(Row {
        server,
        setting: setting.label,
        first: Sample::median(&first),
        duplicate: Sample::median(&duplicate),
    })
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.conditions)?;
        section(
            f,
            "Processes on one Redis",
            &costs("processes", &self.processes),
        )?;
        writeln!(
            f,
            "64 connections, 1 KiB. All processes share one core, so this is what a delivery costs, and \
             not how many there can be.\n"
        )?;
        section(f, "Connections", &costs("connections", &self.connections))?;
        writeln!(f, "One process, 1 KiB.\n")?;
        section(f, "Bodies", &costs("body", &self.bodies))?;
        writeln!(f, "One process, 16 connections.\n")?;
        section(f, "A million completed events", &memory(&self.filled))?;
        writeln!(
            f,
            "By `LeaseStore` itself, with keys as the layer makes them. In this process: growth of the \
             resident memory; in Redis: growth of `used_memory`, its tables of keys included, which are nearly full here; \
             right after they grew, an event takes some 30 bytes more.\n"
        )?;
        self.plan.fmt(f)
    }
}

fn costs(varied: &str, rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "server",
        varied,
        "first: req/s",
        "p50 ms",
        "p99 ms",
        "CPU µs",
        "Redis CPU µs",
        "duplicate: req/s",
        "p50 ms",
        "p99 ms",
        "CPU µs",
        "Redis CPU µs",
        "not 2xx",
    ]);
    for row in rows {
        let mut cells = vec![row.server.name().to_owned(), row.setting.clone()];
        for sample in [&row.first, &row.duplicate] {
            cells.extend([
                rate(sample.rate),
                format!("{:.2}", sample.p50 / 1e3),
                format!("{:.2}", sample.p99 / 1e3),
                format!("{:.1}", sample.cpu),
                format!("{:.1}", sample.redis_cpu),
            ]);
        }
        cells.push((row.first.refused + row.duplicate.refused).to_string());
        table.row(cells);
    }
    table
}

fn memory(filled: &[Filled]) -> Table {
    let mut table = Table::new(&[
        "store",
        "events",
        "kept here",
        "grew here",
        "bytes each",
        "grew in Redis",
        "bytes each",
        "seconds",
    ]);
    let mib = |bytes: f64| format!("{:.0} MiB", bytes / 1024.0 / 1024.0);
    for it in filled {
        table.row([
            it.store.name().to_owned(),
            it.events.to_string(),
            it.kept.to_string(),
            mib(it.resident),
            it.bytes_here()
                .map_or("–".into(), |bytes| format!("{bytes:.0}")),
            mib(it.in_redis),
            it.bytes_in_redis()
                .map_or("–".into(), |bytes| format!("{bytes:.0}")),
            format!("{:.1}", it.seconds),
        ]);
    }
    table
}
