//! Which losses and doubles no middleware could have prevented. Each is excused by itself, from
//! what was written down about that event, or not at all.
//!
//! A promise that the layer reports as broken is no excuse: in a storm nothing makes it necessary.

use std::{fmt::Write, time::Duration};

use tokio::time::Instant;

use super::{
    chaos::{Incident, Trouble},
    outcome::Harm,
    servers::Life,
};
use crate::{
    ledger::{Entry, Incarnation, Ledger, What},
    sender::{Kind, Sent},
};

/// On a busy machine a run may begin so much later than its lease is written, or than we hear of it.
const LATE: Duration = Duration::from_secs(1);

pub(super) struct Judge<'a> {
    ledger: &'a Ledger,
    /// By incarnation.
    lives: Vec<Life>,
    incidents: Vec<Incident>,
    begin: Instant,
    verbose: bool,
}

/// A run that had its effect.
struct Completion {
    by: Incarnation,
    began: Instant,
    /// When the layer said that the record was written, where it did.
    recorded: Option<Instant>,
}

/// Whether Redis lost the lease or the record that should have kept the next run from beginning.
fn forgot(incident: &Incident, id: &str, first: &Completion, next: Instant) -> bool {
    let was_there = first.began < incident.end + LATE;
    incident.forgotten.contains(id) && was_there && incident.end < next
}

impl<'a> Judge<'a> {
    pub(super) const fn new(
        ledger: &'a Ledger,
        lives: Vec<Life>,
        incidents: Vec<Incident>,
        begin: Instant,
        verbose: bool,
    ) -> Self {
        Self {
            ledger,
            lives,
            incidents,
            begin,
            verbose,
        }
    }

    /// Whether to tell about those that are excused, too.
    pub(super) const fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// What was done to the servers and to Redis.
    pub(super) fn harm(&self) -> Harm {
        let count = |what| self.incidents.iter().filter(|it| it.what == what).count();
        let kills = self.lives.iter().filter(|life| life.killed.is_some());
        Harm {
            kills: kills.count(),
            restarts: count(Trouble::Restart),
            failovers: count(Trouble::Failover),
        }
    }

    /// Why the event could be acknowledged and never completed: all who acknowledged it did so
    /// standing by, and were killed before they gave it up.
    pub(super) fn excuse_lost(&self, sent: &Sent) -> Option<String> {
        let history = self.ledger.history(&sent.id);
        let gave_up = history.iter().any(|it| it.what == What::Lost);
        let mut acknowledged = sent.answers.iter().filter(|answer| answer.success);
        let killed = |by: Incarnation| self.lives[by].killed.is_some();
        let all_killed = acknowledged
            .all(|answer| answer.kind == Kind::Standby && answer.by.is_some_and(killed));
        (all_killed && !gave_up)
            .then(|| "all who acknowledged it stood by and were killed".to_owned())
    }

    /// Why the event could be completed more than once: there is a reason between each completion
    /// and the next, told once where it is the same.
    pub(super) fn excuse_doubled(&self, sent: &Sent) -> Option<String> {
        let history = self.ledger.history(&sent.id);
        let completions = completions(&history);
        let pairs = completions.windows(2);
        let reasons = pairs.map(|pair| self.between(&sent.id, &pair[0], pair[1].began));
        let mut reasons = reasons.collect::<Option<Vec<_>>>()?;
        reasons.dedup();
        Some(reasons.join("; "))
    }

    /// Why the next run could begin although this one was under way or completed.
    fn between(&self, id: &str, first: &Completion, next: Instant) -> Option<String> {
        let incidents = &self.incidents;
        let forgot = incidents.iter().find(|it| forgot(it, id, first, next));
        if let Some(incident) = forgot {
            return Some(incident.what.to_string());
        }
        let killed = self.lives[first.by].killed?;
        (first.recorded.is_none() && killed < next)
            .then(|| "its server was killed between effect and record".to_owned())
    }

    /// All that is known about the event, in order.
    pub(super) fn trace(&self, sent: &Sent) -> String {
        let history = self.ledger.history(&sent.id);
        let mut lines = Vec::new();
        for Entry { at, by, what } in &history {
            lines.push((*at, format!("server {by}: {what:?}")));
        }
        for answer in &sent.answers {
            let by = answer.by.map(|by| format!(" by server {by}"));
            let (kind, by) = (answer.kind, by.unwrap_or_default());
            let heard = if answer.success { "2xx" } else { "no 2xx" };
            let took = answer.took.as_millis();
            lines.push((
                answer.at,
                format!("sender: {kind:?}{by}, {heard}, after {took} ms"),
            ));
        }
        let concerned = |by: &Incarnation| {
            history.iter().any(|it| it.by == *by)
                || sent.answers.iter().any(|it| it.by == Some(*by))
        };
        for by in (0..self.lives.len()).filter(concerned) {
            if let Some(killed) = self.lives[by].killed {
                lines.push((killed, format!("server {by} killed")));
            }
        }
        for incident in &self.incidents {
            let (what, end) = (incident.what, self.time(incident.end));
            let forgot = match incident.forgotten.contains(&sent.id) {
                true => ", and forgot it",
                false => "",
            };
            lines.push((incident.begin, format!("{what}, until {end:.3} s{forgot}")));
        }
        lines.sort_by_key(|(at, _)| *at);
        let mut trace = format!("{}:\n", sent.id);
        for (at, line) in lines {
            _ = writeln!(trace, "{:>9.3} s  {line}", self.time(at));
        }
        trace
    }

    fn time(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.begin).as_secs_f64()
    }
}

/// The completed runs of an event, in the order in which they began.
fn completions(history: &[Entry]) -> Vec<Completion> {
    let began = history.iter().filter(|it| it.what == What::Began);
    let completion = |(run, began): (usize, &Entry)| {
        let mut later = history
            .iter()
            .skip_while(|it| it.what != What::Completed { run });
        let completed = later.next()?;
        let recorded = later.find(|it| it.by == completed.by && it.what == What::Recorded);
        Some(Completion {
            by: began.by,
            began: began.at,
            recorded: recorded.map(|it| it.at),
        })
    };
    began.enumerate().filter_map(completion).collect()
}
