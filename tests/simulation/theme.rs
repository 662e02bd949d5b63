//! Worlds in which faults meet that matter only together, and would seldom do so by chance.

use tower_webhook_dedup::{InFlight, Operation};

use crate::plan::{Fault, Moment, Plan, Run, Trouble, When};

/// In three worlds of eight something is added to what was drawn.
pub(crate) fn add(plan: &mut Plan, rng: &mut fastrand::Rng) {
    match rng.u8(0..16) {
        0 => troubled_renewals(plan, rng),
        1 => a_slow_acquire_and_no_renewals(plan, rng),
        2 => a_process_that_stands_still_after_its_acquire(plan, rng),
        3 => an_end_of_age_near_the_end_of_a_run(plan, rng),
        4 => a_standby_that_does_not_reach_the_store(plan, rng),
        5 => an_end_of_a_run_that_meets_a_renewal(plan, rng),
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
        when: When::Call {
            event: 0,
            operation: Operation::Acquire,
            n: 1,
            moment,
        },
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
