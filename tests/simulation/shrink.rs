//! A shorter plan that fails in the same way.

use crate::{
    clocks::Clocks,
    invariants::{Breach, Invariant},
    judge,
    plan::{Plan, Run},
};

/// Leaves out faults, events, deliveries, failures, clocks that are wrong and processes, one by one, for as long as the
/// same invariant is still breached. What is left draws the same, since draws do not depend on
/// each other.
pub(crate) fn shrink(plan: &Plan, invariant: Invariant) -> Plan {
    let mut shortest = plan.clone();
    loop {
        let shorter = candidates(&shortest).find(|it| fails(it, invariant));
        match shorter {
            Some(shorter) => shortest = shorter,
            None => return shortest,
        }
    }
}

fn fails(plan: &Plan, invariant: Invariant) -> bool {
    let is_it = |breach: &Breach| breach.invariant == invariant;
    judge(plan).1.iter().any(is_it)
}

/// The plan with one thing less.
fn candidates(plan: &Plan) -> impl Iterator<Item = Plan> {
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut shorter = plan.clone();
        change(&mut shorter);
        shorter
    };
    let mut all = Vec::new();
    // The last event first: faults name events by number.
    if plan.events.len() > 1 {
        all.push(with(&|it| _ = it.events.pop()));
    }
    for n in 0..plan.faults.len() {
        all.push(with(&|it| _ = it.faults.remove(n)));
    }
    for n in 0..plan.events.len() {
        for copy in 0..plan.events[n].copies.len() {
            all.push(with(&|it| _ = it.events[n].copies.remove(copy)));
        }
        if !plan.events[n].runs.is_empty() {
            all.push(with(&|it| _ = it.events[n].runs.pop()));
        }
        for run in 0..plan.events[n].runs.len() {
            if plan.events[n].runs[run] != Run::Succeed(1) {
                all.push(with(&|it| it.events[n].runs[run] = Run::Succeed(1)));
            }
        }
    }
    for slot in 0..plan.processes {
        if plan.clocks[slot] != Clocks::RIGHT {
            all.push(with(&|it| it.clocks[slot] = Clocks::RIGHT));
        }
    }
    if plan.policy.remembered.is_some() {
        all.push(with(&|it| it.policy.remembered = None));
    }
    if plan.processes > 1 {
        all.push(with(&|it| {
            it.processes -= 1;
            let left = it.processes;
            it.faults.retain(|fault| fault.process() < Some(left));
        }));
    }
    all.into_iter()
}
