//! What came of the storm, by what the sender heard and what the handler did.

use std::{fmt, time::Duration};

use super::{
    fleet::Outcome,
    ledger::{Entry, Ledger, What},
    options::{Guard, Options},
    sender::{Answer, Kind, Sent},
};

pub(crate) struct Report {
    /// Whether it was the layer that stood in the storm.
    layer: bool,
    events: usize,
    deliveries: usize,
    runs: usize,
    completed: usize,
    failed: usize,
    panicked: usize,
    hung_up: usize,
    duplicates: usize,
    stood_by: usize,
    in_flight: usize,
    refused: usize,
    /// Events of which no delivery was acknowledged.
    given_up: usize,
    /// Events that were acknowledged and never completed.
    pub(crate) lost: Vec<String>,
    /// Events that were completed more than once.
    pub(crate) doubled: Vec<String>,
    /// Whether draining left nothing over.
    drained: bool,
    first: Latency,
    duplicate: Latency,
    /// Where the servers were processes of their own.
    pub(crate) fleet: Option<Outcome>,
}

impl Report {
    pub(crate) fn new(options: &Options, sent: &[Sent], ledger: &Ledger, drained: bool) -> Self {
        let answers = || sent.iter().flat_map(|sent| &sent.answers);
        let count = |kind| answers().filter(|answer| answer.kind == kind).count();
        let histories: Vec<_> = sent.iter().map(|sent| ledger.history(&sent.id)).collect();
        let entries = |what| {
            histories
                .iter()
                .flatten()
                .filter(|it| it.what == what)
                .count()
        };
        let ids = |chosen: &dyn Fn(&Sent, usize) -> bool| {
            let events = sent.iter().zip(&histories);
            let chosen = events.filter(|(sent, history)| chosen(sent, completed(history)));
            chosen.map(|(sent, _)| sent.id.clone()).collect()
        };
        Self {
            layer: options.guard() == Guard::Layer,
            events: sent.len(),
            deliveries: answers().count(),
            runs: entries(What::Began),
            completed: histories.iter().filter(|it| completed(it) > 0).count(),
            failed: entries(What::Failed),
            panicked: entries(What::Panicked),
            hung_up: count(Kind::HungUp),
            duplicates: count(Kind::Duplicate),
            stood_by: count(Kind::Standby),
            in_flight: count(Kind::InFlight),
            refused: count(Kind::Refused),
            given_up: sent.iter().filter(|sent| !sent.acknowledged).count(),
            lost: ids(&|sent, completed| sent.acknowledged && completed == 0),
            doubled: ids(&|_, completed| completed > 1),
            drained,
            first: Latency::new(answers().filter(|answer| answer.kind == Kind::Run)),
            duplicate: Latency::new(answers().filter(|answer| answer.kind == Kind::Duplicate)),
            fleet: None,
        }
    }

    /// All that counts, in one line.
    pub(crate) fn summary(&self) -> String {
        let Self {
            events,
            deliveries,
            runs,
            completed,
            failed,
            panicked,
            hung_up,
            stood_by,
            ..
        } = self;
        let (lost, doubled) = (self.lost.len(), self.doubled.len());
        let mut line = format!(
            "storm: events={events} deliveries={deliveries} runs={runs} completed={completed} \
             failed={failed} panicked={panicked} hung_up={hung_up} stood_by={stood_by} \
             lost={lost} doubled={doubled}"
        );
        if let Some(fleet) = &self.fleet {
            line += &fleet.summary();
        }
        line
    }

    /// How all events came through, in a storm that was worth the name; or why not.
    pub(crate) fn verdict(&self) -> Result<String, String> {
        if !self.lost.is_empty() || !self.doubled.is_empty() {
            let (lost, doubled) = (some(&self.lost), some(&self.doubled));
            return Err(format!(
                "acknowledged and never completed: {lost}; completed more than once: {doubled}"
            ));
        }
        if !self.drained {
            return Err("the servers did not finish what they had promised in time".into());
        }
        let least = 1 + self.events / 100;
        let faults = [
            ("failed", self.failed),
            ("panicked", self.panicked),
            ("hung up", self.hung_up),
            ("stood by", self.stood_by),
            ("refused", self.refused),
        ];
        match faults.iter().find(|(_, count)| *count < least) {
            Some((name, count)) if self.layer => Err(format!(
                "too weak a storm to prove anything: {name} {count}, of at least {least}"
            )),
            _ => {
                let but = self.fleet.as_ref().map_or(Ok(None), Outcome::verdict)?;
                Ok(format!(
                    "every acknowledged event was completed, and none more than once{}",
                    but.unwrap_or_default()
                ))
            }
        }
    }
}

/// How often the event was completed.
fn completed(history: &[Entry]) -> usize {
    let completed = |it: &&Entry| matches!(it.what, What::Completed { .. });
    history.iter().filter(completed).count()
}

/// The first few of these.
fn some(ids: &[String]) -> String {
    const FEW: usize = 5;
    match ids.len() {
        0 => "none".into(),
        count @ 1..=FEW => format!("{count} ({})", ids.join(", ")),
        count => format!("{count} ({}, …)", ids[..FEW].join(", ")),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("events", self.events, ""),
            (
                "deliveries",
                self.deliveries,
                "requests: each event comes several times",
            ),
            (
                "  duplicates",
                self.duplicates,
                if self.layer {
                    "200, as the event was completed before"
                } else {
                    "200, as the key is taken"
                },
            ),
            (
                "  stood by",
                self.stood_by,
                "200 while another attempt ran, and a promise to take over",
            ),
            (
                "  in flight",
                self.in_flight,
                "503 while another attempt ran",
            ),
            (
                "  refused",
                self.refused,
                "503 without the store, 400 for half a body",
            ),
            (
                "  hung up",
                self.hung_up,
                "the sender did not wait for the answer",
            ),
            ("runs", self.runs, "of the handler"),
            ("  failed", self.failed, "it answered 500"),
            ("  panicked", self.panicked, ""),
            (
                "completed",
                self.completed,
                "events whose handler succeeded",
            ),
            (
                "given up",
                self.given_up,
                "events never acknowledged, as their sender knows",
            ),
            (
                "lost",
                self.lost.len(),
                "events acknowledged and never completed: must be 0",
            ),
            (
                "doubled",
                self.doubled.len(),
                "events completed more than once: must be 0",
            ),
        ];
        for (name, count, meaning) in rows {
            let line = format!("{name:<14}{count:>10}  {meaning}");
            writeln!(f, "{}", line.trim_end())?;
        }
        writeln!(f, "\n{:<14}{:>10}{:>12}", "answered in", "p50", "p99")?;
        writeln!(f, "  first       {}", self.first)?;
        if self.duplicates > 0 {
            writeln!(f, "  duplicate   {}", self.duplicate)?;
        }
        match &self.fleet {
            Some(fleet) => write!(f, "\n{fleet}"),
            None => Ok(()),
        }
    }
}

/// How long answers took; the handler's own time is part of it.
struct Latency {
    p50: Duration,
    p99: Duration,
}

impl Latency {
    fn new<'a>(answers: impl Iterator<Item = &'a Answer>) -> Self {
        let answers = answers.filter(|answer| answer.success);
        let mut took: Vec<_> = answers.map(|answer| answer.took).collect();
        took.sort_unstable();
        let at = |percent| {
            took.get(took.len() * percent / 100)
                .copied()
                .unwrap_or_default()
        };
        Self {
            p50: at(50),
            p99: at(99),
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        write!(f, "{:>7.2} ms{:>9.2} ms", ms(self.p50), ms(self.p99))
    }
}
