//! What came of a storm over a fleet, beyond what comes of any.

use std::{collections::BTreeMap, fmt};

use super::verdict::Judge;
use crate::{options::Options, sender::Sent};

pub(crate) struct Outcome {
    harm: Harm,
    /// A storm that met less than this has proven nothing.
    least: Harm,
    lost: Excused,
    doubled: Excused,
}

/// How often the servers and Redis were harmed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Harm {
    pub(super) kills: usize,
    pub(super) restarts: usize,
    pub(super) failovers: usize,
}

/// The events that are excused, by reason.
#[derive(Default)]
struct Excused(BTreeMap<String, Vec<String>>);

impl Outcome {
    /// Takes those that are excused out of the lost and the doubled. Prints all that is known of
    /// the others.
    pub(super) fn new(
        options: &Options,
        judge: &Judge<'_>,
        sent: &[Sent],
        lost: &mut Vec<String>,
        doubled: &mut Vec<String>,
    ) -> Self {
        let enough = |harmed| if harmed { 1 + options.events / 1000 } else { 0 };
        Self {
            harm: judge.harm(),
            least: Harm {
                kills: enough(options.kill),
                restarts: enough(options.chaos),
                failovers: enough(options.chaos),
            },
            lost: Excused::new(judge, sent, lost, Judge::excuse_lost),
            doubled: Excused::new(judge, sent, doubled, Judge::excuse_doubled),
        }
    }

    /// The end of the last line.
    pub(crate) fn summary(&self) -> String {
        let (lost, doubled) = (self.lost.count(), self.doubled.count());
        let Harm {
            kills,
            restarts,
            failovers,
        } = self.harm;
        format!(
            " excused_lost={lost} excused_doubled={doubled} kills={kills} restarts={restarts} \
             failovers={failovers}"
        )
    }

    /// What is to be said of the excused ones, where there was harm enough; or that there was not.
    pub(crate) fn verdict(&self) -> Result<Option<String>, String> {
        let harms = [
            ("kills", self.harm.kills, self.least.kills),
            ("restarts", self.harm.restarts, self.least.restarts),
            ("failovers", self.harm.failovers, self.least.failovers),
        ];
        match harms.iter().find(|(_, count, least)| count < least) {
            Some((name, count, least)) => Err(format!(
                "too few {name} to prove anything: {count}, of at least {least}"
            )),
            None => Ok(match self.lost.count() + self.doubled.count() {
                0 => None,
                count => Some(format!(
                    ", but for {count} that no middleware could have helped (excused above)"
                )),
            }),
        }
    }
}

impl Excused {
    fn new<'a>(
        judge: &Judge<'a>,
        sent: &[Sent],
        accused: &mut Vec<String>,
        excuse: fn(&Judge<'a>, &Sent) -> Option<String>,
    ) -> Self {
        let mut excused = Self::default();
        accused.retain(|id| {
            let Some(sent) = sent.iter().find(|sent| sent.id == *id) else {
                return true;
            };
            let why = excuse(judge, sent);
            if why.is_none() || judge.is_verbose() {
                eprintln!("{}", judge.trace(sent));
            }
            let Some(why) = why else { return true };
            excused.0.entry(why).or_default().push(id.clone());
            false
        });
        excused
    }

    fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [("lost", &self.lost), ("doubled", &self.doubled)];
        for (what, Excused(reasons)) in kinds {
            for (why, ids) in reasons {
                let (count, first) = (ids.len(), &ids[0]);
                writeln!(f, "excused: {count} {what} ({first}, …): {why}")?;
            }
        }
        Ok(())
    }
}
