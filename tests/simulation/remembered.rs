//! (3) Nothing is said to be done that is not, nor for longer than its record is kept.

use crate::{
    invariants::{Invariant, Verdict},
    ledger::{Landed, Ledger},
    log::{Held, Pid, What},
    one_run::is_pending,
    plan::Millis,
};

pub(crate) fn check(verdict: &mut Verdict<'_>) {
    let mut found = Vec::new();
    let ledger = &verdict.ledger;
    for (place, fact) in ledger.facts.iter().enumerate() {
        let (
            Some(pid),
            Some(event),
            What::Answered {
                delivery, outcome, ..
            },
        ) = (fact.pid, fact.event, &fact.what)
        else {
            continue;
        };
        let known = ledger
            .successes(event)
            .any(|run| run.pid == pid && run.ended < place && is_pending(ledger, run, place));
        if outcome == "duplicate" && !known {
            let arrived = arrived(ledger, (pid, event), *delivery);
            found.push((
                place,
                event,
                is_kept(ledger, (pid, event), (arrived, place)),
            ));
        }
    }
    for (place, event, kept) in found {
        match kept {
            Ok(true) => {}
            Ok(false) => verdict.excuse("(3) said to be done for longer: clocks are apart"),
            Err(text) => verdict.breach(Invariant::NotAfterCompletion, place, event, text),
        }
    }
}

/// When the delivery reached the process.
fn arrived(ledger: &Ledger<'_>, of: (Pid, usize), delivery: u64) -> Millis {
    let arrived = ledger.facts.iter().find(|fact| {
        let is_it = matches!(fact.what, What::Arrived { delivery: n } if n == delivery);
        is_it && (fact.pid, fact.event) == (Some(of.0), Some(of.1))
    });
    arrived.unwrap().at
}

/// Whether the store had it as done when it was asked for, or would have, had it not lost it;
/// `Ok(false)`: the process had reason to think so.
fn is_kept(
    ledger: &Ledger<'_>,
    (pid, event): (Pid, usize),
    (asked, answered): (Millis, usize),
) -> Result<bool, &'static str> {
    let landed = ledger.landed(event).filter(|it| it.place < answered);
    let done: Vec<_> = landed
        .filter(|it| {
            matches!(it.then, Held::Done(_)) && Some(it.then) == it.call.token.map(Held::Done)
        })
        .collect();
    let kept = ledger.plan.policy.kept();
    let Some(last) = done.last() else {
        return Err("is said to be done, and nobody has recorded that");
    };
    if asked < last.at + kept {
        return Ok(true);
    }
    let longest = done
        .iter()
        .map(|it| it.at + kept + longer(ledger, pid, it))
        .max();
    if longest.is_some_and(|until| asked <= until) {
        Ok(false)
    } else {
        Err("is said to be done for longer than its record is kept")
    }
}

/// For how much longer than the store the process may remember it, where their clocks differ.
fn longer(ledger: &Ledger<'_>, pid: Pid, done: &Landed) -> Millis {
    let policy = ledger.policy(pid);
    let Some(ttl) = policy.remembered else {
        return 0;
    };
    let kept = policy.retention.max(policy.lease) as i64 - ledger.plan.policy.kept() as i64;
    let clocks = &ledger.plan.clocks;
    let behind = clocks[done.pid.slot].ahead - clocks[pid.slot].ahead;
    // Of its own, or by the time of day that is in the record.
    let longer = kept.max(kept + behind - ttl as i64);
    longer.clamp(0, ttl as i64) as Millis
}
