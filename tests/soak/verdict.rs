//! Whether something grew.

use std::fmt;

use crate::sample::Sample;

/// One quantity: its name, its value in a sample, and by how much its median may be higher in the
/// last quarter than in the second one: a share of it, and a number on top.
type Quantity = (&'static str, fn(&Sample) -> Option<u64>, f64, u64);

const QUANTITIES: [Quantity; 6] = [
    ("memory, KiB", |it| Some(it.rss), 0.1, 4096),
    ("tasks", |it| Some(it.tasks), 0.1, 16),
    ("file descriptors", |it| Some(it.files), 0.1, 16),
    ("threads", |it| Some(it.threads), 0.0, 0),
    ("keys", |it| it.keys, 0.1, 100),
    ("memory of Redis, KiB", |it| it.redis, 0.1, 1024),
];

/// Nothing but memory is more than it was before the load. Memory is not given back by every
/// allocator; whether it grew is told by the quarters.
pub(crate) fn is_idle(now: &Sample, before: &Sample) -> bool {
    now.tasks <= before.tasks
        && now.files <= before.files
        && now.threads <= before.threads
        && now.keys == Some(0)
}

#[derive(Debug)]
pub(crate) struct Report(Vec<Row>);

#[derive(Debug)]
struct Row {
    name: &'static str,
    first: u64,
    second: u64,
    last: u64,
    most: u64,
    limit: u64,
}

impl Report {
    pub(crate) fn of(samples: &[Sample]) -> Self {
        Self(QUANTITIES.map(|it| Row::of(it, samples)).into())
    }

    /// What is above its limit in the last quarter.
    pub(crate) fn grown(&self) -> Vec<&'static str> {
        let grown = self.0.iter().filter(|row| row.last > row.limit);
        grown.map(|row| row.name).collect()
    }
}

impl Row {
    fn of((name, value, share, more): Quantity, samples: &[Sample]) -> Self {
        let quarter = samples.len() / 4;
        let median = |samples: &[Sample]| {
            let mut values: Vec<_> = samples.iter().filter_map(value).collect();
            values.sort_unstable();
            values[values.len() / 2]
        };
        let second = median(&samples[quarter..2 * quarter]);
        Self {
            name,
            first: samples.iter().find_map(value).unwrap(),
            second,
            last: median(&samples[samples.len() - quarter..]),
            most: samples.iter().filter_map(value).max().unwrap(),
            limit: second + (second as f64 * share) as u64 + more,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| | first | median of the 2nd quarter | median of the last | its limit | most |\n\
             |---|---|---|---|---|---|"
        )?;
        for row in &self.0 {
            let Row {
                name,
                first,
                second,
                last,
                most,
                limit,
            } = row;
            writeln!(
                f,
                "| {name} | {first} | {second} | {last} | {limit} | {most} |"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn samples(rss: impl Fn(u64) -> u64) -> Vec<Sample> {
        let sample = |n| Sample {
            at: Duration::from_secs(n),
            rss: rss(n),
            tasks: 30,
            files: 20,
            threads: 3,
            keys: (n % 9 != 0).then_some(2000),
            redis: Some(1500),
        };
        (0..80).map(sample).collect()
    }

    #[test]
    fn what_levels_off_after_the_first_quarter_did_not_grow() {
        let report = Report::of(&samples(|n| 10_000 + n.min(20) * 1000 + n % 3));
        assert_eq!(report.grown(), [""; 0]);
    }

    #[test]
    fn what_goes_on_growing_has_grown() {
        let report = Report::of(&samples(|n| 10_000 + n * 300));
        assert_eq!(report.grown(), ["memory, KiB"]);
    }
}
