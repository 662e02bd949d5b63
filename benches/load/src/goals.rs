//! What the layer aims at, beside what was measured.

use crate::{
    compare::{Comparison, Row},
    latency::Turn,
    report::table::{Table, ratio},
    servers::Server,
};

/// The goals of one run.
#[derive(Debug)]
pub(crate) struct Goals(Vec<Goal>);

#[derive(Debug)]
struct Goal {
    what: String,
    target: String,
    measured: String,
    met: bool,
}

impl Goals {
    pub(crate) fn of(comparison: &Comparison) -> Self {
        let small = |server| comparison.small.of(server);
        let (bare, by_hand) = (small(Server::Bare), small(Server::HandRolled));
        let (layer, cached) = (small(Server::Layer), small(Server::Cached));
        let recent = small(Server::Recent);
        let large = |server| comparison.large.of(server);
        let (large_by_hand, large_layer) = (large(Server::HandRolled), large(Server::Layer));
        let counts = &comparison.counts;
        let allocations = &comparison.allocations;
        let first = |a: &Row, b: &Row| a.first.cpu / b.first.cpu;
        let duplicate = |a: &Row, b: &Row| a.duplicate.cpu / b.duplicate.cpu;
        let storm = |a: &Row| a.duplicate.rate / bare.duplicate.rate;
        let mut goals = vec![
            exactly("Redis commands, first delivery", 2.0, counts.first),
            exactly("Redis commands, duplicate", 1.0, counts.duplicate),
            exactly(
                "Redis commands, duplicate remembered by `Cached`",
                0.0,
                counts.remembered,
            ),
            exactly("Redis commands, failed delivery", 2.0, counts.failed),
            at_most(
                "CPU, first delivery, × hand-rolled",
                0.60,
                first(layer, by_hand),
            ),
            at_most(
                "CPU, duplicate through Redis, × hand-rolled",
                0.42,
                duplicate(layer, by_hand),
            ),
            at_most(
                "CPU, remembered duplicate, × hand-rolled",
                0.30,
                duplicate(cached, by_hand),
            ),
            at_most("– with `recent_bodies`", 0.30, duplicate(recent, by_hand)),
            at_least(
                "req/s, duplicates through Redis, × bare",
                0.60,
                storm(layer),
            ),
            at_least("req/s, remembered duplicates, × bare", 0.85, storm(cached)),
            at_least("– with `recent_bodies`", 0.85, storm(recent)),
            at_most(
                "CPU, first delivery of 64 KiB, × hand-rolled",
                0.26,
                first(large_layer, large_by_hand),
            ),
            at_most(
                "CPU, duplicate of 64 KiB, × hand-rolled",
                0.26,
                duplicate(large_layer, large_by_hand),
            ),
            within(
                "Redis CPU, first delivery",
                15.0,
                layer.first.redis_cpu,
                "µs",
            ),
            within(
                "`MEMORY USAGE`, completed event",
                300.0,
                counts.bytes,
                "bytes",
            ),
        ];
        for (how, turns) in comparison.latency.ways() {
            let first = "p50 over bare and two round trips, first delivery";
            let duplicate = "p50 over bare and one round trip, duplicate";
            let busy = "with `busy_poll`";
            let figures: [(_, _, fn(&Turn) -> f64); 4] = [
                (format!("{first}{how}"), 60.0, Turn::first_over),
                (format!("{duplicate}{how}"), 40.0, Turn::duplicate_over),
                (format!("{first}, {busy}{how}"), 60.0, Turn::busy_first_over),
                (
                    format!("{duplicate}, {busy}{how}"),
                    40.0,
                    Turn::busy_duplicate_over,
                ),
            ];
            for (what, most, figure) in figures {
                goals.push(within(what, most, turns.median(figure), "µs"));
            }
        }
        for (how, most, deliveries) in [
            ("`MemoryStore`", [16.0, 6.0], &allocations.in_memory),
            ("Redis, 16 at once", [26.0, 12.0], &allocations.among_others),
            ("Redis, one at a time", [26.0, 12.0], &allocations.alone),
        ] {
            let [first, duplicate] = most;
            for (what, most, count) in [
                ("first delivery", first, deliveries.first),
                ("duplicate", duplicate, deliveries.duplicate),
            ] {
                let what = format!("allocations over bare, {what}, {how}");
                goals.push(within(what, most, count, ""));
            }
        }
        goals.push(exactly(
            "– duplicate of 1 MiB: as many as of 1 KiB",
            allocations.in_memory.duplicate,
            allocations.large,
        ));
        for peer in [Server::Idempotent, Server::AxumIdempotent] {
            if let Some(row) = comparison.small.find(peer) {
                let of = |what| format!("CPU, {what}, × {}", peer.name());
                goals.push(at_most(of("first delivery"), 1.0, first(layer, row)));
                goals.push(at_most(of("duplicate"), 1.0, duplicate(layer, row)));
            }
        }
        Self(goals)
    }

    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new(&["goal", "target", "measured", "met"]);
        for goal in &self.0 {
            table.row([
                goal.what.clone(),
                goal.target.clone(),
                goal.measured.clone(),
                if goal.met { "yes" } else { "**no**" }.to_owned(),
            ]);
        }
        table
    }
}

fn exactly(what: impl Into<String>, target: f64, measured: f64) -> Goal {
    Goal {
        what: what.into(),
        target: format!("exactly {target}"),
        measured: measured.to_string(),
        met: measured == target,
    }
}

fn at_most(what: impl Into<String>, target: f64, measured: f64) -> Goal {
    Goal {
        what: what.into(),
        target: format!("≤ {}", ratio(target)),
        measured: format!("{measured:.3}"),
        met: measured <= target,
    }
}

fn at_least(what: impl Into<String>, target: f64, measured: f64) -> Goal {
    Goal {
        what: what.into(),
        target: format!("≥ {}", ratio(target)),
        measured: format!("{measured:.3}"),
        met: measured >= target,
    }
}

/// The same as `at_most`, of something that has a unit.
fn within(what: impl Into<String>, target: f64, measured: f64, unit: &str) -> Goal {
    Goal {
        what: what.into(),
        target: format!("≤ {target:.0} {unit}").trim_end().to_owned(),
        measured: format!("{measured:.1} {unit}").trim_end().to_owned(),
        met: measured <= target,
    }
}
