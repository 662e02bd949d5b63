//! What 100 000 events a second would need, on paper.

use std::fmt;

use super::fill::{Filled, Store};
use crate::{
    Result,
    measure::Sample,
    report::{section, table::Table},
};

const EVENTS: f64 = 100_000.0;
/// How busy a core may be, so that there is room for bursts, failovers and what duplicates cost.
const BUSY: f64 = 0.5;
/// Memory of one Redis that is still copied to a replica within minutes.
const NODE_GB: f64 = 25.0;
const GB: f64 = 1e9;

/// Per first delivery, as measured.
#[derive(Debug)]
pub(crate) struct Plan {
    server_cpu: f64,
    redis_cpu: f64,
    received: f64,
    sent: f64,
    bytes: f64,
}

impl Plan {
    pub(crate) fn new(first: &Sample, filled: &[Filled]) -> Result<Self> {
        let in_redis = filled.iter().find(|it| it.store == Store::Redis);
        let bytes = in_redis.and_then(Filled::bytes_in_redis);
        Ok(Self {
            server_cpu: first.cpu,
            redis_cpu: first.redis_cpu,
            received: first.received,
            sent: first.sent,
            bytes: bytes.ok_or("Redis was not filled")?,
        })
    }

    /// Cores for this many microseconds an event.
    fn cores(micros: f64) -> f64 {
        (EVENTS * micros / 1e6 / BUSY).ceil()
    }

    fn shards_for_cpu(&self) -> f64 {
        Self::cores(self.redis_cpu)
    }

    fn retention(&self) -> Table {
        let mut table = Table::new(&[
            "records are kept",
            "events",
            "memory, GB",
            "shards of 25 GB",
        ]);
        for (label, hours) in [
            ("10 minutes", 1.0 / 6.0),
            ("1 hour", 1.0),
            ("6 hours", 6.0),
            ("1 day", 24.0),
            ("4 days", 96.0),
        ] {
            let events = EVENTS * 3600.0 * hours;
            let gb = events * self.bytes / GB;
            let shards = (gb / NODE_GB).ceil().max(self.shards_for_cpu());
            table.row([
                label.to_owned(),
                format!("{:.2} G", events / 1e9),
                format!("{gb:.0}"),
                format!("{shards:.0}"),
            ]);
        }
        table
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabits = |bytes: f64| EVENTS * bytes * 8.0 / 1e6;
        let mut table = Table::new(&["what", "an event", "100 000 events a second"]);
        let rows = [
            (
                "Redis, CPU",
                format!("{:.1} µs", self.redis_cpu),
                format!("{:.0} shards, each half busy", self.shards_for_cpu()),
            ),
            (
                "servers, CPU",
                format!("{:.1} µs", self.server_cpu),
                format!(
                    "{:.0} cores, half busy, and what the handlers need",
                    Self::cores(self.server_cpu)
                ),
            ),
            (
                "network, to Redis",
                format!("{:.0} bytes", self.received),
                format!("{:.0} Mbit/s", megabits(self.received)),
            ),
            (
                "network, from Redis",
                format!("{:.0} bytes", self.sent),
                format!("{:.0} Mbit/s", megabits(self.sent)),
            ),
            (
                "memory of Redis",
                format!("{:.0} bytes", self.bytes),
                "by retention, below".into(),
            ),
        ];
        for (what, each, all) in rows {
            table.row([what.to_owned(), each, all]);
        }
        section(f, "On paper: 100 000 events a second", &table)?;
        writeln!(
            f,
            "From the figures above: first deliveries of 1 KiB, 64 connections, one process. Bytes are \
             those of the protocol, without TCP and IP. Each event has one key, and each command one key, \
             so that Redis Cluster spreads events evenly over its shards. A replica for each shard doubles \
             memory and the network towards Redis. A handler that runs for longer than ten seconds costs a \
             renewal every ten.\n\n{}\n\
             So it is memory that decides, and with it the retention: it has to outlast the sender's \
             retries, and nothing more. Duplicates cost less than first deliveries; remembered ones cost \
             Redis nothing.",
            self.retention(),
        )
    }
}
