//! (4) An old owner never overwrites another token, and learns that it is old; so does its
//! handler, and not without reason.

use std::collections::BTreeSet;

use tower_webhook_dedup::Operation;

use crate::{
    invariants::{Invariant, Verdict},
    ledger::{Ledger, RunOf},
    log::{Held, Reply, What},
    plan::Millis,
};

/// Timers go in whole milliseconds, and what comes of one may need another.
const SLACK: Millis = 5;

pub(crate) fn check(verdict: &mut Verdict<'_>) {
    let mut breaches = Vec::new();
    let ledger = &verdict.ledger;
    let mut known = BTreeSet::new();
    for (place, fact) in ledger.facts.iter().enumerate() {
        match &fact.what {
            What::Landed {
                call, holder, then, ..
            } => {
                let (Held::Running(other) | Held::Done(other)) = *holder else {
                    continue;
                };
                if then != holder && call.token != Some(other) {
                    breaches.push((
                        place,
                        format!("{} overwrites another's token", call.operation),
                    ));
                }
            }
            What::Called { call, .. } => {
                let Some(token) = call.token else { continue };
                if call.operation == Operation::Acquire {
                    known.insert((fact.pid, fact.event, token));
                } else if !known.contains(&(fact.pid, fact.event, token)) {
                    breaches.push((place, format!("{} with a token of another", call.operation)));
                }
            }
            What::Differs { memory, model } => {
                let text = format!("the memory store says {memory} and should say {model}");
                breaches.push((place, text));
            }
            _ => {}
        }
    }
    for run in ledger.runs.iter().filter(|run| run.protected) {
        if let Some(breach) = told(ledger, run) {
            breaches.push(breach);
        }
    }
    for (place, text) in breaches {
        let event = verdict.ledger.facts[place].event;
        verdict.breach(Invariant::Owners, place, event, text);
    }
}

/// A handler is told of the loss of its lease when the process can know of it, and not before.
fn told(ledger: &Ledger<'_>, run: &RunOf) -> Option<(usize, String)> {
    let pid = run.pid;
    let end = run.ended.min(ledger.facts.len());
    let deadline = ledger.deadline((pid, run.event, run.token?), end)?;
    let mut refused = None;
    let mut told = None;
    for (place, fact) in ledger.facts.iter().enumerate().take(end).skip(run.began) {
        match &fact.what {
            What::Told { run: it } if *it == run.run => told = Some((place, fact.at)),
            What::Replied {
                call,
                reply: Some(Reply::Is(false)),
            } if call.token == run.token && call.operation == Operation::Renew => {
                refused = refused.or(Some(fact.at));
            }
            _ => {}
        }
    }
    let lost = refused.unwrap_or(Millis::MAX).min(deadline);
    match told {
        Some((place, at)) if at + SLACK < lost && holds(ledger, run, place) => Some((
            place,
            format!("run {} is told of a loss that is none", run.run),
        )),
        Some((place, at)) if at > ledger.goes_on(pid, lost) + SLACK => Some((
            place,
            format!("run {} is told late that its lease is lost", run.run),
        )),
        None if ledger.at(end) > ledger.goes_on(pid, lost) + SLACK => Some((
            end.min(ledger.facts.len() - 1),
            format!("run {} is not told that its lease is lost", run.run),
        )),
        _ => None,
    }
}

/// Whether no other token got hold of the event since this run's did. Where another run of its
/// process took over, the process knows at once.
fn holds(ledger: &Ledger<'_>, run: &RunOf, before: usize) -> bool {
    let Some(taken) = run
        .token
        .and_then(|token| ledger.acquisition(run.event, token, before))
    else {
        return false;
    };
    let mut since = ledger.landed(run.event);
    let of_others = |held| match held {
        Held::Running(token) | Held::Done(token) => Some(token) != run.token,
        Held::Nothing | Held::Failed(_) => false,
    };
    !since.any(|it| taken.place < it.place && it.place < before && of_others(it.then))
}
