//! (6) Once faults stop, what is still delivered completes. (7) Nothing is left at the end, no run
//! is cut off without cause, and no lease is left behind.

use tower_webhook_dedup::{OnDisconnect, Operation, Token};

use crate::{
    invariants::{Invariant, Verdict},
    ledger::{Ledger, RunOf},
    log::{Call, Fact, Held, How, Pid, What},
    plan::Millis,
};

pub(crate) fn check(verdict: &mut Verdict<'_>) {
    let mut breaches = Vec::new();
    let ledger = &verdict.ledger;
    completes(ledger, &mut breaches);
    left(ledger, &mut breaches);
    for run in &ledger.runs {
        if run.how == Some(How::Dropped) && !has_cause(ledger, run) {
            let text = format!("run {} is cut off without cause", run.run);
            breaches.push((Invariant::NothingLeft, run.ended, Some(run.event), text));
        }
    }
    let leases = leases(ledger, &mut breaches);
    for (invariant, place, event, text) in breaches {
        verdict.breach(invariant, place, event, text);
    }
    for excuse in leases {
        verdict.excuse(excuse);
    }
}

type Breaches = Vec<(Invariant, usize, Option<usize>, String)>;

fn completes(ledger: &Ledger<'_>, breaches: &mut Breaches) {
    let policy = &ledger.plan.policy;
    // By then the leases of the dead have run out.
    let calm = ledger.last_trouble() + policy.lease * 1_100 / policy.store_clock + 1_000;
    for event in 0..ledger.plan.events.len() {
        let mut facts = ledger.facts.iter().enumerate();
        let delivered = facts.find(|(_, fact)| {
            fact.event == Some(event) && fact.at > calm && matches!(fact.what, What::Arrived { .. })
        });
        if let (Some((place, _)), None) = (delivered, ledger.success(event)) {
            let text = String::from("delivered after all faults, and not completed");
            breaches.push((Invariant::Completes, place, Some(event), text));
        }
    }
}

fn left(ledger: &Ledger<'_>, breaches: &mut Breaches) {
    let mut at_rest = false;
    for (place, fact) in ledger.facts.iter().enumerate() {
        let text = match &fact.what {
            What::AtRest => {
                at_rest = true;
                continue;
            }
            What::Left { tasks, when } => format!("{tasks} tasks are left {when}"),
            What::Called { call, .. } if at_rest => {
                format!("a {} when nothing was to be done any more", call.operation)
            }
            _ => continue,
        };
        breaches.push((Invariant::NothingLeft, place, fact.event, text));
    }
}

/// Why a run may have been dropped.
fn has_cause(ledger: &Ledger<'_>, run: &RunOf) -> bool {
    let policy = ledger.policy(run.pid);
    let (began, ended) = (ledger.at(run.began), ledger.at(run.ended));
    let of_event = |n: &usize| ledger.facts[*n].event == Some(run.event);
    let of_process = |n: &usize| ledger.facts[*n].pid == Some(run.pid);
    let mut before = (0..run.ended).filter(|n| of_event(n) || of_process(n));
    ended + 1 >= began + policy.run_limit
        || before.any(|n| match ledger.facts[n].what {
            What::HungUp { .. } => policy.on_disconnect == OnDisconnect::Cancel && of_event(&n),
            What::Draining => of_process(&n),
            // A standby whose age is over.
            What::Answered {
                status: 200..300, ..
            } => of_event(&n) && of_process(&n) && ledger.at(n) + policy.standby_age <= ended + 1,
            _ => false,
        })
}

/// A token that nobody runs under any more does not hold the event for long.
fn leases(ledger: &Ledger<'_>, breaches: &mut Breaches) -> Vec<&'static str> {
    let mut excuses = Vec::new();
    for event in 0..ledger.plan.events.len() {
        for it in ledger.landed(event) {
            // By an acquire, or by a renewal that found nothing.
            let Some(token) = it.call.token else { continue };
            if it.then == it.holder || it.then != Held::Running(token) {
                continue;
            }
            let Some((over, what)) = over(ledger, it.pid, event, &it.call) else {
                continue;
            };
            let Some(until) = held_until(ledger, event, token, it.place) else {
                continue;
            };
            let grace = over.max(it.at) + 3 * ledger.policy(it.pid).store_timeout + 1_500;
            if until <= grace {
                continue;
            }
            // A release is repeated once, a second later.
            let excuse = if it.at > over + 900 {
                Some("(7) lease left: it was taken long after it was given up")
            } else {
                stuck(ledger, it.pid, event, token, (over, until))
            };
            match excuse {
                Some(excuse) => excuses.push(excuse),
                None => breaches.push((
                    Invariant::NothingLeft,
                    it.place,
                    Some(event),
                    format!("a lease is left behind {what}"),
                )),
            }
        }
    }
    excuses
}

/// Why a process could not end the lease in this time.
fn stuck(
    ledger: &Ledger<'_>,
    pid: Pid,
    event: usize,
    token: Token,
    time: (Millis, Millis),
) -> Option<&'static str> {
    let policy = ledger.policy(pid);
    // No call: then the process or the store as a whole.
    if ledger.blame_of(pid, event, time, |_| false).is_some() {
        return Some("(7) lease left: its process or the store stood still");
    }
    // Soon after a drain began nothing is released any more.
    let mut before = ledger.facts.iter().filter(|fact| fact.at <= time.1);
    if before.any(|fact| fact.pid == Some(pid) && matches!(fact.what, What::Draining)) {
        return Some("(7) lease left: its process drained");
    }
    let within = |fact: &&Fact| time.0 <= fact.at && fact.at <= time.1;
    // It was tried until then, at pauses of at most a second, or five; or for one lease, as the
    // process counts it: the store's may be longer, by its slower clock.
    let tried = ledger
        .facts
        .iter()
        .filter(within)
        .filter_map(|fact| match fact.what {
            What::Called { call, .. } => match call.operation {
                Operation::Release if call.token == Some(token) => Some(fact.at + 1_000),
                // Of two runs that succeeded in one process the later is written, for both.
                Operation::Complete if (fact.pid, fact.event) == (Some(pid), Some(event)) => {
                    Some(fact.at + 5_000)
                }
                _ => None,
            },
            _ => None,
        });
    let tried = tried.max()? + 2 * policy.store_timeout + 100;
    let long_enough = time.1.min(time.0 + policy.lease);
    (tried >= long_enough).then_some("(7) lease left: all its releases failed")
}

/// Since when nobody runs under the token of this acquire.
fn over(
    ledger: &Ledger<'_>,
    pid: Pid,
    event: usize,
    call: &Call,
) -> Option<(Millis, &'static str)> {
    if let Some(run) = ledger.runs.iter().find(|run| run.token == call.token) {
        let what = if run.how == Some(How::Succeeded) {
            "by a run that succeeded"
        } else {
            "by a run that did not succeed"
        };
        return Some((ledger.at(run.ended), what));
    }
    if call.operation != Operation::Acquire {
        return None;
    }
    // A run without protection may be going on under it.
    let unprotected = |run: &&RunOf| run.pid == pid && run.event == event && !run.protected;
    if ledger.runs.iter().any(|run| unprotected(&run)) {
        return None;
    }
    // When its time was over, or its sender had hung up.
    let releases = ledger.facts.iter().filter(|fact| {
        matches!(&fact.what, What::Called { call: it, .. }
            if it.token == call.token && it.operation == Operation::Release)
    });
    let released = releases.map(|fact| fact.at).min().unwrap_or(Millis::MAX);
    let given_up = ledger.sent_at(pid, Some(event), call) + ledger.policy(pid).store_timeout;
    let given_up = given_up.min(released);
    Some((given_up, "by a call that nobody ran under"))
}

/// Until when the store held the event for the token, from this place on.
fn held_until(ledger: &Ledger<'_>, event: usize, token: Token, from: usize) -> Option<Millis> {
    let policy = &ledger.plan.policy;
    let mut last = ledger.facts[from].at;
    for it in ledger.landed(event).filter(|it| it.place > from) {
        if it.holder == Held::Running(token) && it.then != it.holder {
            return Some(it.at);
        }
        if it.then == Held::Running(token) && it.call.operation != Operation::Inspect {
            if it.call.token == Some(token) {
                last = it.at;
            }
        } else if it.then != Held::Running(token) {
            break;
        }
    }
    let until = last + policy.lease * 1_000 / policy.store_clock;
    let lost = ledger.facts.iter().find(|fact| {
        (last..until).contains(&fact.at) && matches!(fact.what, What::Forgot | What::RolledBack)
    });
    // With it the lease was gone, or it is not known.
    lost.is_none().then_some(until)
}
