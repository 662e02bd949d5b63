//! (2) At most one run at a time while leases and store hold. (3) Never a run after completion
//! while the record is kept, and no completion without a run that succeeded.

use tower_webhook_dedup::{Operation, StoreFailure, Token};

use crate::{
    invariants::{Invariant, Verdict},
    ledger::{Landed, Ledger, RunOf},
    log::{Call, Held, How, Reply, What},
};

pub(crate) fn check(verdict: &mut Verdict<'_>) {
    let runs = verdict.ledger.runs.clone();
    for (n, later) in runs.iter().enumerate() {
        for earlier in runs[..n].iter().filter(|it| it.event == later.event) {
            if earlier.ended > later.began {
                settle(
                    verdict,
                    Invariant::OneRun,
                    later,
                    beside(&verdict.ledger, earlier, later),
                );
            } else if earlier.how == Some(How::Succeeded) {
                let judged = after(&verdict.ledger, earlier, later);
                settle(verdict, Invariant::NotAfterCompletion, later, judged);
            }
        }
        if !later.protected {
            let judged = unprotected(&verdict.ledger, later);
            settle(verdict, Invariant::OneRun, later, judged);
        }
    }
    completions(verdict);
}

/// What excuses it, or what there is to say.
type Judged = Result<&'static str, String>;

fn settle(verdict: &mut Verdict<'_>, invariant: Invariant, run: &RunOf, judged: Judged) {
    match judged {
        Ok("") => {}
        Ok(excuse) => verdict.excuse(excuse),
        Err(text) => {
            let text = format!("run {} {text}", run.run);
            verdict.breach(invariant, run.began, run.event, text);
        }
    }
}

/// A run without a lease: by the user's own choice, when the store failed.
fn unprotected(ledger: &Ledger<'_>, run: &RunOf) -> Judged {
    let policy = ledger.policy(run.pid);
    let at = ledger.at(run.began);
    let time = (at.saturating_sub(policy.store_timeout + 1), at);
    let acquires = |it| it == Operation::Acquire;
    let excused = policy.store_failure == StoreFailure::Forward
        && ledger
            .blame_of(run.pid, run.event, time, acquires)
            .is_some();
    if excused {
        Ok("(2) unprotected, as chosen")
    } else {
        Err("has no lease".into())
    }
}

/// A run began while another one was going on.
fn beside(ledger: &Ledger<'_>, earlier: &RunOf, later: &RunOf) -> Judged {
    if !earlier.protected || !later.protected {
        // Judged by itself.
        return Ok("");
    }
    let event = later.event;
    let both = (earlier.token, later.token);
    let (Some(old), Some(new)) = both else {
        return Err(format!("or run {} has no token", earlier.run));
    };
    let Some(taken) = ledger.acquisition(event, new, later.began) else {
        return Err("began without a lease in the store".into());
    };
    if let Some(judged) = stale(ledger, earlier, later, &taken) {
        return judged;
    }
    // What others asked about it did not make it last longer.
    let held = |it: &Landed| it.then == Held::Running(old) && it.call.token == Some(old);
    let mut before = ledger.landed(event).filter(|it| it.place < taken.place);
    let Some(last) = before.rfind(held) else {
        return Err(format!(
            "began beside run {}, whose lease was never held",
            earlier.run
        ));
    };
    let mut later_on = ledger.landed(event).filter(|it| it.place > last.place);
    let next = later_on
        .find(|it| it.then != Held::Running(old))
        .unwrap_or(taken);
    if next.holder == Held::Running(old) {
        let what = next.call.operation;
        return Err(format!(
            "began beside run {}, after a {what} that ended its lease",
            earlier.run
        ));
    }
    if ledger.lost_between(last.place, taken.place).is_some() {
        return Ok("(2) beside another: the store lost the lease");
    }
    let sent = ledger.sent_at(last.pid, Some(event), &last.call);
    let time = (sent, taken.at);
    if ledger.blame(earlier.pid, event, time).is_some()
        && tried(ledger, earlier, old, &last, taken.place)
    {
        return Ok("(2) beside another: its lease could not be renewed");
    }
    let earlier = earlier.run;
    Err(format!(
        "began beside run {earlier}, whose lease just ran out"
    ))
}

/// Whether it was tried until the end to renew a lease that was last prolonged by this call: a
/// renewal that fails is sent again after a twelfth of the lease, or a second. A process that stood
/// still at the end could not.
fn tried(ledger: &Ledger<'_>, run: &RunOf, token: Token, last: &Landed, before: usize) -> bool {
    let (policy, store) = (ledger.policy(run.pid), &ledger.plan.policy);
    // By the store's clock or its owner's, whichever comes first.
    let end = last.at + store.lease * 1_000 / store.store_clock;
    let deadline = ledger.deadline((run.pid, run.event, token), before);
    let end = end.min(deadline.unwrap_or(end));
    let retry = (policy.lease / 12).min(1_000) + policy.store_timeout + 50;
    let stood_still = ledger.frozen(run.pid, end.saturating_sub(retry), end) > 0;
    let mut facts = ledger.facts.iter();
    stood_still
        || facts.any(|fact| {
            let renews =
                |call: &Call| call.operation == Operation::Renew && call.token == Some(token);
            matches!(&fact.what, What::Called { call, .. } if renews(call))
                && fact.at <= end
                && fact.at + retry >= end
        })
}

/// A run began after another one had succeeded.
fn after(ledger: &Ledger<'_>, earlier: &RunOf, later: &RunOf) -> Judged {
    if !earlier.protected || !later.protected {
        return Ok("");
    }
    let event = later.event;
    let (Some(old), Some(new)) = (earlier.token, later.token) else {
        return Err(format!("or run {} has no token", earlier.run));
    };
    let Some(taken) = ledger.acquisition(event, new, later.began) else {
        return Err("began without a lease in the store".into());
    };
    if let Some(judged) = stale(ledger, earlier, later, &taken) {
        return judged;
    }
    let mut before = ledger.landed(event).filter(|it| it.place < taken.place);
    if let Some(done) = before.find(|it| it.then == Held::Done(old)) {
        let kept = ledger.plan.policy.kept();
        return if ledger.lost_between(done.place, taken.place).is_some() {
            Ok("(3) again: the store lost the record")
        } else if taken.at >= done.at + kept {
            Ok("(3) again: the record's time was over")
        } else {
            Err(format!(
                "began after run {} was recorded as completed",
                earlier.run
            ))
        };
    }
    if earlier.pid == later.pid && is_pending(ledger, earlier, asked(ledger, later)) {
        return Err(format!(
            "began in the process that remembers the success of run {}",
            earlier.run
        ));
    }
    let held = ledger.acquisition(event, old, earlier.began);
    let since = held.map_or(0, |it| ledger.sent_at(it.pid, Some(event), &it.call));
    // While records cannot be written, leases still are renewed.
    let counts = |it| it != Operation::Complete;
    match ledger.blame_of(earlier.pid, event, (since, taken.at), counts) {
        Some(_) => Ok("(3) again: the completion could not be written"),
        None => Err(format!("began after run {} had succeeded", earlier.run)),
    }
}

/// A run that began later under a lease that was acquired earlier.
fn stale(ledger: &Ledger<'_>, earlier: &RunOf, later: &RunOf, taken: &Landed) -> Option<Judged> {
    let policy = ledger.policy(taken.pid);
    let other = ledger.acquisition(later.event, earlier.token?, earlier.began)?;
    if other.place < taken.place {
        return None;
    }
    let sent = ledger.sent_at(taken.pid, Some(later.event), &taken.call);
    Some(if ledger.lost_between(taken.place, other.place).is_some() {
        Ok("(2) under a lease that the store had lost")
    } else if policy.store_clock > 1_000 && ledger.at(later.began) < sent + policy.lease {
        Ok("(2) under a lease that ran out early by the store's clock")
    } else {
        Err(format!(
            "began under a lease that had run out, beside run {}",
            earlier.run
        ))
    })
}

/// Where the acquire of a run was sent.
fn asked(ledger: &Ledger<'_>, run: &RunOf) -> usize {
    let is_it = |what: &What| {
        matches!(what, What::Called { call, .. }
            if call.token == run.token && call.operation == Operation::Acquire)
    };
    ledger
        .facts
        .iter()
        .position(|fact| is_it(&fact.what))
        .unwrap_or(0)
}

/// Whether the process knew at this place that the completion is still to be written.
pub(crate) fn is_pending(ledger: &Ledger<'_>, run: &RunOf, at: usize) -> bool {
    let mut pending = false;
    for fact in ledger.facts.iter().take(at).skip(run.ended) {
        match &fact.what {
            What::Emitted(what) if (fact.pid, fact.event) == (Some(run.pid), Some(run.event)) => {
                pending |= *what == "a pending completion";
                pending &= *what != "a dropped completion";
            }
            // Written by another run of its that succeeded, it need not be written any more.
            What::Replied {
                call,
                reply: Some(Reply::Is(written)),
            } if call.operation == Operation::Complete => {
                let its = (fact.pid, fact.event) == (Some(run.pid), Some(run.event));
                pending &= !(its && (*written || call.token == run.token));
            }
            _ => {}
        }
    }
    pending
}

/// Nothing is completed that did not succeed.
fn completions(verdict: &mut Verdict<'_>) {
    let mut early = Vec::new();
    let ledger = &verdict.ledger;
    for (place, fact) in ledger.facts.iter().enumerate() {
        let What::Called { call, .. } = fact.what else {
            continue;
        };
        let (Some(pid), Some(event)) = (fact.pid, fact.event) else {
            continue;
        };
        let succeeded = |run: &&RunOf| {
            run.pid == pid && run.ended < place && (run.token == call.token || !run.protected)
        };
        if call.operation == Operation::Complete
            && !ledger.successes(event).any(|it| succeeded(&it))
        {
            early.push((place, event));
        }
    }
    for (place, event) in early {
        let text = "completed without a run that succeeded";
        verdict.breach(Invariant::NotAfterCompletion, place, event, text);
    }
}
