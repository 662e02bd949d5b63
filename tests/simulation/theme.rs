//! Worlds in which faults meet that matter only together, and would seldom do so by chance.

use tower_webhook_dedup::{InFlight, OnDisconnect, Operation};

use crate::{
    plan::{Fault, Millis, Moment, Plan, Run, Trouble, When, pick_of},
    schedule::Schedule,
};

/// In eleven worlds of sixteen something is added to what was drawn.
pub(crate) fn add(plan: &mut Plan, rng: &mut fastrand::Rng) {
    match rng.u8(0..16) {
        0 => troubled_renewals(plan, rng),
        1 => a_slow_acquire_and_no_renewals(plan, rng),
        2 => a_process_that_stands_still_after_its_acquire(plan, rng),
        3 => an_end_of_age_near_the_end_of_a_run(plan, rng),
        4 => a_standby_that_does_not_reach_the_store(plan, rng),
        5 => an_end_of_a_run_that_meets_a_renewal(plan, rng),
        6 => a_run_whose_acquire_was_answered_late(plan, rng),
        7 => a_completion_that_the_store_cannot_hold(plan, rng),
        8 => two_completions_that_are_not_written(plan, rng),
        9 => duplicates_near_the_end_of_a_record(plan, rng),
        10 => a_standby_that_is_all_that_is_left(plan, rng),
        _ => {}
    }
}

fn call(process: usize, operation: Operation, n: u64, trouble: Trouble) -> Fault {
    Fault::Call {
        process,
        event: 0,
        operation,
        n,
        trouble,
    }
}

fn troubled_renewals(plan: &mut Plan, rng: &mut fastrand::Rng) {
    let lease = plan.policy.lease;
    plan.events[0].runs = vec![Run::Succeed(rng.u64(lease..3 * lease))];
    let (from, time) = (
        plan.events[0].first + lease / 3,
        rng.u64(lease / 2..2 * lease),
    );
    plan.faults.push(Fault::Outage {
        from,
        time,
        hangs: rng.bool(),
    });
}

fn a_slow_acquire_and_no_renewals(plan: &mut Plan, rng: &mut fastrand::Rng) {
    let (lease, timeout) = (plan.policy.lease, plan.policy.store_timeout);
    plan.events[0].runs = vec![Run::Hang];
    let slow = Trouble::SlowReply(rng.u64(timeout / 4..timeout));
    for process in 0..plan.processes {
        plan.faults.push(call(process, Operation::Acquire, 1, slow));
    }
    let from = plan.events[0].first + timeout + 20;
    plan.faults.push(Fault::Outage {
        from,
        time: 2 * lease,
        hangs: rng.bool(),
    });
}

fn a_process_that_stands_still_after_its_acquire(plan: &mut Plan, rng: &mut fastrand::Rng) {
    let lease = plan.policy.lease;
    plan.processes = plan.processes.max(2);
    plan.events[0]
        .copies
        .extend([rng.u64(0..lease), lease + rng.u64(0..lease)]);
    let moment = if rng.bool() {
        Moment::Sent
    } else {
        Moment::Landed
    };
    plan.faults.push(Fault::Freeze {
        when: with_first(Operation::Acquire, moment),
        process: rng.usize(0..plan.processes),
        time: rng.u64(lease..3 * lease),
    });
}

fn an_end_of_age_near_the_end_of_a_run(plan: &mut Plan, rng: &mut fastrand::Rng) {
    let lease = plan.policy.lease;
    let policy = &mut plan.policy;
    policy.in_flight = InFlight::Acknowledge;
    policy.standby_age = 2 * lease;
    policy.run_limit = policy.run_limit.max(4 * lease);
    let time = 2 * lease - rng.u64(0..lease);
    plan.events[0].runs = vec![Run::Succeed(time)];
    plan.events[0].copies.push(rng.u64(50..1_000));
    plan.faults.truncate(2);
}

fn a_standby_that_does_not_reach_the_store(plan: &mut Plan, rng: &mut fastrand::Rng) {
    let lease = plan.policy.lease;
    plan.policy.in_flight = InFlight::Acknowledge;
    let run = rng.u64(200..lease);
    plan.events[0].runs = vec![Run::Fail(run)];
    let copy = rng.u64(50..=200);
    plan.events[0].copies.push(copy);
    plan.faults.push(Fault::Outage {
        from: plan.events[0].first + copy + rng.u64(0..run),
        time: rng.u64(500..2 * lease),
        hangs: rng.bool(),
    });
}

fn an_end_of_a_run_that_meets_a_renewal(plan: &mut Plan, rng: &mut fastrand::Rng) {
    let (lease, timeout) = (plan.policy.lease, plan.policy.store_timeout);
    let run = lease / 3 + timeout + rng.u64(0..lease / 3);
    plan.events[0].runs = vec![Run::Panic(run)];
    let late = Trouble::Late(run - lease / 3 + rng.u64(0..1_000));
    for process in 0..plan.processes {
        plan.faults.push(call(process, Operation::Renew, 1, late));
    }
}

/// Its lease is old when it begins, and its limit is near.
fn a_run_whose_acquire_was_answered_late(plan: &mut Plan, rng: &mut fastrand::Rng) {
    let lease = plan.policy.lease;
    plan.policy.run_limit = lease / 2;
    plan.processes = plan.processes.max(2);
    let late = rng.u64(lease * 5 / 8..lease * 15 / 16);
    let event = &mut plan.events[0];
    event.runs = vec![*pick_of(rng, &[Run::Hang, Run::Succeed(lease / 2 - 1)])];
    // It would hang up before it began.
    event.timeout = None;
    // While it runs, and its lease has run out if nobody renews it.
    let copies = [0; 3].map(|_| lease + rng.u64(50..late - lease / 2));
    event.copies.extend(copies);
    plan.faults.truncate(1);
    // Once more, perhaps, with the renewal that is due as soon as it goes on.
    let again = rng.bool().then(|| rng.u64(lease / 2..2 * lease));
    for process in 0..plan.processes {
        let freeze = |operation, moment, time| Fault::Freeze {
            when: with_first(operation, moment),
            process,
            time,
        };
        let first = freeze(Operation::Acquire, Moment::Landed, late);
        let second = again.map(|time| freeze(Operation::Renew, Moment::Sent, time));
        plan.faults
            .extend([Some(first), second].into_iter().flatten());
    }
}

/// It has no room for the record, and loses the lease.
fn a_completion_that_the_store_cannot_hold(plan: &mut Plan, rng: &mut fastrand::Rng) {
    let lease = plan.policy.lease;
    plan.policy.run_limit = plan.policy.run_limit.max(2 * lease);
    let event = &mut plan.events[0];
    let run = rng.u64(0..lease / 2);
    event.runs = vec![Run::Succeed(run)];
    let forgets = event.first + run + rng.u64(100..lease);
    let copies = [0; 3].map(|_| forgets - event.first + rng.u64(1..1_000));
    event.copies.extend(copies);
    let full = full(event.first, forgets + lease);
    plan.faults.truncate(1);
    plan.faults.extend([full, Fault::Forget { at: forgets }]);
}

/// A run whose lease ran out and the one that took over both succeed in one process, in one order or
/// the other.
fn two_completions_that_are_not_written(plan: &mut Plan, rng: &mut fastrand::Rng) {
    let lease = plan.policy.lease;
    let policy = &mut plan.policy;
    policy.run_limit = 4 * lease;
    policy.retention = policy.retention.max(60_000);
    policy.on_disconnect = OnDisconnect::Finish;
    plan.processes = 1;
    let event = &mut plan.events[0];
    // It stands still for so long that the lease has run out.
    let (freezes, time) = (rng.u64(100..lease / 2), rng.u64(lease..lease * 5 / 4));
    let goes_on = freezes + time;
    let runs = [(); 2].map(|()| rng.u64(200..lease));
    event.runs = vec![Run::Succeed(goes_on + runs[0]), Run::Succeed(runs[1])];
    let ended = goes_on + lease + rng.u64(0..lease);
    event.copies = vec![goes_on + rng.u64(10..150)];
    event
        .copies
        .extend([0; 2].map(|_| ended + rng.u64(lease..4 * lease)));
    let first = event.first;
    plan.faults.retain(|fault| fault.process().is_none());
    plan.faults.truncate(1);
    let freeze = Fault::Freeze {
        when: When::At(first + freezes),
        process: 0,
        time,
    };
    plan.faults.extend([freeze, full(first, first + ended)]);
}

/// It is remembered by processes that did not write it, each of which has completed another event.
fn duplicates_near_the_end_of_a_record(plan: &mut Plan, rng: &mut fastrand::Rng) {
    plan.processes = plan.processes.max(2);
    let retention = plan.policy.lease * rng.u64(2..=4);
    plan.policy.retention = retention;
    plan.policy.remembered = Some(retention / rng.u64(3..=6));
    let kept = plan.policy.kept();
    let event = &mut plan.events[0];
    event.runs.clear();
    let near = kept * 5 / 6;
    event.copies = (0..8).map(|_| near + rng.u64(0..kept / 3)).collect();
    let mut other = event.clone();
    other.copies.truncate(2);
    plan.events.resize(1, other.clone());
    plan.events.extend([other.clone(), other]);
    plan.faults.truncate(1);
}

/// The first run fails, what stands by for it fares no better at first, and the sender does not come
/// again.
fn a_standby_that_is_all_that_is_left(plan: &mut Plan, rng: &mut fastrand::Rng) {
    let lease = plan.policy.lease;
    plan.policy.in_flight = InFlight::Acknowledge;
    let event = &mut plan.events[0];
    event.schedule = Schedule::Once;
    let run = rng.u64(200..lease);
    let next = rng.u64(0..200);
    let next = *pick_of(rng, &[Run::Panic(next), Run::Error(next), Run::Fail(next)]);
    event.runs = vec![Run::Fail(run), next];
    event.copies = vec![rng.u64(50..150)];
    plan.faults.truncate(1);
}

fn with_first(operation: Operation, moment: Moment) -> When {
    When::Call {
        event: 0,
        operation,
        n: 1,
        moment,
    }
}

fn full(from: Millis, to: Millis) -> Fault {
    Fault::Full {
        from,
        time: to - from,
    }
}
