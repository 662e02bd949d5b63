//! (1) An event that was acknowledged completes, or every process that stood by for it was killed
//! or has reported it as lost, with reason.

use std::collections::BTreeMap;

use tower_webhook_dedup::{LostReason, Operation};

use crate::{
    invariants::{Invariant, Verdict},
    ledger::Ledger,
    log::{Held, Pid, What},
    plan::Millis,
};

/// The places of a process's promises for an event.
type Promises = BTreeMap<(Pid, usize), Vec<usize>>;

pub(crate) fn check(verdict: &mut Verdict<'_>) {
    let promises = promises(&verdict.ledger);
    for ((pid, event), places) in &promises {
        if verdict.ledger.success(*event).is_some() {
            verdict
                .excuses
                .entry("(kept) a promise")
                .and_modify(|n| *n += 1)
                .or_insert(1);
            continue;
        }
        let last = *places.last().unwrap();
        let facts = &verdict.ledger.facts;
        let lost = facts.iter().skip(last).find_map(|fact| match fact.what {
            What::Lost { reason } if (fact.pid, fact.event) == (Some(*pid), Some(*event)) => {
                Some(reason)
            }
            _ => None,
        });
        let killed = verdict
            .ledger
            .ends
            .get(pid)
            .is_some_and(|(.., killed)| *killed);
        match (lost, killed) {
            (Some(LostReason::TooOld), _) => verdict.excuse("(1) lost: too old"),
            (Some(_), _) => verdict.excuse("(1) lost: drained"),
            (None, true) => verdict.excuse("(1) lost: killed"),
            (None, false) => verdict.breach(
                Invariant::Acknowledged,
                last,
                *event,
                format!("acknowledged by {pid}, which has forgotten it"),
            ),
        }
    }
    reports(verdict, &promises);
}

/// An answer of success for an event that nobody has completed is a promise.
fn promises(ledger: &Ledger<'_>) -> Promises {
    let mut promises = Promises::new();
    for (place, fact) in ledger.facts.iter().enumerate() {
        let (
            Some(pid),
            Some(event),
            What::Answered {
                status: 200..300, ..
            },
        ) = (fact.pid, fact.event, &fact.what)
        else {
            continue;
        };
        if ledger.successes(event).all(|run| run.ended > place) {
            promises.entry((pid, event)).or_default().push(place);
        }
    }
    promises
}

/// A loss is reported when its reason is there, and not of what is done.
fn reports(verdict: &mut Verdict<'_>, promises: &Promises) {
    for (place, fact) in verdict.ledger.facts.iter().enumerate() {
        let (Some(pid), Some(event), What::Lost { reason }) = (fact.pid, fact.event, &fact.what)
        else {
            continue;
        };
        let policy = verdict.ledger.policy(pid);
        let promised = promises.get(&(pid, event)).and_then(|places| {
            let before: Vec<_> = places.iter().filter(|it| **it < place).collect();
            Some(verdict.ledger.at(**before.last()?))
        });
        let text = match (promised, reason) {
            // It had acknowledged an event that was done in another process meanwhile.
            (None, _) => {
                verdict.excuse("(1) reported lost, but done");
                continue;
            }
            (Some(promised), LostReason::TooOld) if fact.at < promised + policy.standby_age => {
                Some("reported as too old before its time")
            }
            (_, LostReason::Drained) if !drains(&verdict.ledger, pid, place) => {
                Some("reported as drained by a process that goes on")
            }
            (_, LostReason::Dropped) => Some("its standby was dropped in a process that lives"),
            _ => None,
        };
        if let Some(text) = text {
            verdict.breach(Invariant::Acknowledged, place, event, text);
        } else if is_recorded(&verdict.ledger, (pid, event), place) {
            let recent = 3 * policy.store_timeout;
            let time = (fact.at.saturating_sub(recent), fact.at);
            let inspects = |it| it == Operation::Inspect;
            match verdict.ledger.blame_of(pid, event, time, inspects) {
                Some(_) => verdict.excuse("(1) reported lost, but done"),
                None => verdict.breach(
                    Invariant::Acknowledged,
                    place,
                    event,
                    "reported as lost, though the store has it as done",
                ),
            }
        }
    }
}

fn drains(ledger: &Ledger<'_>, pid: Pid, before: usize) -> bool {
    let mut facts = ledger.facts[..before].iter();
    facts.any(|fact| fact.pid == Some(pid) && matches!(fact.what, What::Draining))
}

/// Whether the store has had it as done for longer than a look takes.
fn is_recorded(ledger: &Ledger<'_>, (pid, event): (Pid, usize), place: usize) -> bool {
    let mut landed = ledger.landed(event).filter(|it| it.place < place);
    let Some(done) = landed.rfind(|it| matches!(it.then, Held::Done(_)) && it.then != it.holder)
    else {
        return false;
    };
    let recent: Millis = 3 * ledger.policy(pid).store_timeout;
    let at = ledger.at(place);
    let kept = ledger.plan.policy.kept();
    done.at + recent < at
        && at < done.at + kept - recent.min(kept)
        && ledger.lost_between(done.place, place).is_none()
}
