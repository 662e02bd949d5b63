//! What has to hold in every world.

use std::{collections::BTreeMap, fmt};

use crate::{
    acknowledged, answers, ends, ledger::Ledger, one_run, owners, plan::Millis, remembered,
};

/// The invariants, by the numbers under which `tests/README.md` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Invariant {
    Acknowledged = 1,
    OneRun = 2,
    NotAfterCompletion = 3,
    Owners = 4,
    Answers = 5,
    Completes = 6,
    NothingLeft = 7,
}

#[derive(Clone, Debug)]
pub(crate) struct Breach {
    pub(crate) invariant: Invariant,
    pub(crate) at: Millis,
    pub(crate) event: Option<usize>,
    pub(crate) text: String,
}

/// What a fault excused, and how often.
pub(crate) type Excuses = BTreeMap<&'static str, usize>;

pub(crate) struct Verdict<'a> {
    pub(crate) ledger: Ledger<'a>,
    pub(crate) breaches: Vec<Breach>,
    pub(crate) excuses: Excuses,
}

impl<'a> Verdict<'a> {
    pub(crate) fn on(ledger: Ledger<'a>) -> Self {
        let breaches = Vec::new();
        let mut verdict = Self {
            ledger,
            breaches,
            excuses: Excuses::new(),
        };
        acknowledged::check(&mut verdict);
        one_run::check(&mut verdict);
        remembered::check(&mut verdict);
        owners::check(&mut verdict);
        answers::check(&mut verdict);
        ends::check(&mut verdict);
        verdict
            .breaches
            .sort_by_key(|breach| (breach.at, breach.invariant, breach.event));
        verdict
    }

    pub(crate) fn breach(
        &mut self,
        invariant: Invariant,
        place: usize,
        event: impl Into<Option<usize>>,
        text: impl Into<String>,
    ) {
        let (at, event, text) = (self.ledger.at(place), event.into(), text.into());
        self.breaches.push(Breach {
            invariant,
            at,
            event,
            text,
        });
    }

    pub(crate) fn excuse(&mut self, excuse: &'static str) {
        *self.excuses.entry(excuse).or_default() += 1;
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            invariant,
            at,
            event,
            text,
        } = self;
        write!(
            f,
            "({}) {invariant:?}, at {}.{:03}",
            *invariant as u8,
            at / 1_000,
            at % 1_000
        )?;
        if let Some(event) = event {
            write!(f, ", e{event}")?;
        }
        write!(f, ": {text}")
    }
}
