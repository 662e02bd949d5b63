//! (5) Every request gets an answer within its bounds.

use crate::{
    invariants::{Invariant, Verdict},
    log::What,
    plan::Millis,
};

const SLACK: Millis = 50;

pub(crate) fn check(verdict: &mut Verdict<'_>) {
    let ledger = &verdict.ledger;
    let mut late = Vec::new();
    for (place, fact) in ledger.facts.iter().enumerate() {
        let (Some(pid), What::Arrived { delivery }) = (fact.pid, &fact.what) else {
            continue;
        };
        let policy = ledger.policy(pid);
        // Acquire, wait and acquire once more, run, and complete.
        let bound = 3 * policy.store_timeout + policy.wait() + policy.run_limit + SLACK;
        let over = ledger.facts.iter().skip(place).find(|it| match &it.what {
            What::Answered { delivery: n, .. }
            | What::HungUp { delivery: n }
            | What::Broke { delivery: n } => (it.event, *n) == (fact.event, *delivery),
            _ => false,
        });
        let frozen = ledger.frozen(pid, fact.at, Millis::MAX);
        if over.is_none_or(|over| over.at > fact.at + bound + frozen) {
            late.push((place, *delivery));
        }
    }
    for (place, delivery) in late {
        let event = verdict.ledger.facts[place].event;
        let text = format!("delivery {delivery} is not answered in time");
        verdict.breach(Invariant::Answers, place, event, text);
    }
}
