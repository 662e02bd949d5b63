//! What is to happen in one world: all of it is drawn from the seed before the world begins.

use tower_webhook_dedup::Operation;

use crate::{
    clocks::{Clocks, clocks},
    draw::draw,
    policy::{Policy, policy, remembered},
    schedule::Schedule,
    theme,
};

/// Milliseconds: the clock of a world counts in them, as tokio's timers do.
pub(crate) type Millis = u64;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) policy: Policy,
    /// How many processes receive deliveries.
    pub(crate) processes: usize,
    /// Those of the processes, by slot.
    pub(crate) clocks: Vec<Clocks>,
    pub(crate) events: Vec<Event>,
    pub(crate) faults: Vec<Fault>,
    /// The store gives a lease to everybody who asks: to see that this is seen.
    pub(crate) sabotaged: bool,
}

/// One event and its sender.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) first: Millis,
    pub(crate) schedule: Schedule,
    /// After this the sender hangs up; `None` for one that waits for ever.
    pub(crate) timeout: Option<Millis>,
    /// Deliveries next to those of the schedule, as networks and people make them.
    pub(crate) copies: Vec<Millis>,
    /// How the handler fares, run by run; later runs succeed at once.
    pub(crate) runs: Vec<Run>,
}

/// How one run of the handler goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    Succeed(Millis),
    Fail(Millis),
    Error(Millis),
    Panic(Millis),
    Hang,
}

#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The n-th call of this kind, from this process, about this event.
    Call {
        process: usize,
        event: usize,
        operation: Operation,
        n: u64,
        trouble: Trouble,
    },
    /// Nobody reaches the store; `hangs`: without being told.
    Outage {
        from: Millis,
        time: Millis,
        hangs: bool,
    },
    /// The store takes no records: one that is full and renews leases still.
    Full { from: Millis, time: Millis },
    /// The store loses its memory.
    Forget { at: Millis },
    /// The store is back at where it was this long ago: a failover.
    RollBack { at: Millis, by: Millis },
    /// A process stands still.
    Freeze {
        when: When,
        process: usize,
        time: Millis,
    },
    /// A process is killed, and starts anew after a while.
    Kill {
        when: When,
        process: usize,
        down: Millis,
    },
    /// A process is told to stop: it drains, ends, and starts anew after a while.
    Drain {
        at: Millis,
        process: usize,
        limit: Millis,
        down: Millis,
    },
}

/// When something happens to a process.
#[derive(Clone, Debug)]
pub(crate) enum When {
    At(Millis),
    /// With its n-th call of this kind about this event.
    Call {
        event: usize,
        operation: Operation,
        n: u64,
        moment: Moment,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    Sent,
    Landed,
    Replied,
}

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It reaches the store so much later.
    Late(Millis),
    /// The reply comes so much later.
    SlowReply(Millis),
    /// An error, and nothing has changed; `sure`: the caller can tell.
    Before { sure: bool },
    /// An error, and the change is made.
    After,
    /// It never reaches the store, and nobody is told.
    LostCall,
    /// The change is made, and nobody is told.
    LostReply,
    /// The client repeats it so much later, and the second reply counts.
    Twice(Millis),
    /// The client panics.
    Panics,
}

impl Fault {
    /// Whom it happens to; `None`: the store.
    pub(crate) const fn process(&self) -> Option<usize> {
        match self {
            Self::Call { process, .. }
            | Self::Freeze { process, .. }
            | Self::Kill { process, .. }
            | Self::Drain { process, .. } => Some(*process),
            Self::Outage { .. }
            | Self::Full { .. }
            | Self::Forget { .. }
            | Self::RollBack { .. } => None,
        }
    }
}

const OPERATIONS: [Operation; 4] = [
    Operation::Acquire,
    Operation::Renew,
    Operation::Complete,
    Operation::Release,
];

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let rng = &mut draw(seed, &[0]);
        let mut policy = policy(rng);
        policy.remembered = remembered(&mut draw(seed, &[3]));
        let processes = rng.usize(1..=3);
        let count = if rng.u8(0..4) > 0 {
            1
        } else {
            rng.usize(2..=3)
        };
        let events: Vec<_> = (0..count).map(|_| event(rng, &policy)).collect();
        // A world in ten has no faults, and no excuses.
        let faults = if rng.u8(0..10) == 0 {
            0
        } else {
            rng.usize(1..=8)
        };
        let faults = (0..faults).map(|_| fault(rng, &policy, processes, &events));
        let mut plan = Self {
            seed,
            policy,
            processes,
            faults: faults.collect(),
            events,
            clocks: clocks(&mut draw(seed, &[2])),
            sabotaged: false,
        };
        theme::add(&mut plan, rng);
        plan
    }
}

fn event(rng: &mut fastrand::Rng, policy: &Policy) -> Event {
    let schedule = *pick_of(rng, &Schedule::ALL);
    let timeout = if rng.u8(0..5) == 0 {
        None
    } else {
        Some(schedule.timeout())
    };
    let copies = if rng.u8(0..3) == 0 {
        0
    } else {
        rng.usize(1..=4)
    };
    let copies = (0..copies).map(|_| match rng.u8(0..5) {
        // A burst, or while it runs, or much later.
        0 => rng.u64(0..20),
        1 | 2 => rng.u64(0..policy.lease),
        3 => rng.u64(0..3 * policy.lease),
        _ => rng.u64(0..600_000),
    });
    let copies = copies.collect();
    let runs = match rng.u8(0..8) {
        0 => 0,
        7 => rng.usize(3..=6),
        _ => rng.usize(1..=2),
    };
    let runs = (0..runs).map(|_| run(rng, policy)).collect();
    Event {
        first: rng.u64(0..2_000),
        schedule,
        timeout,
        copies,
        runs,
    }
}

fn run(rng: &mut fastrand::Rng, policy: &Policy) -> Run {
    let time = match rng.u8(0..5) {
        0 => 0,
        1 => rng.u64(0..200),
        2 | 3 => rng.u64(0..policy.lease),
        _ => rng.u64(0..3 * policy.lease),
    };
    match rng.u8(0..12) {
        0..=4 => Run::Succeed(time),
        5..=7 => Run::Fail(time),
        8 => Run::Error(time),
        9 | 10 => Run::Panic(time),
        _ => Run::Hang,
    }
}

fn fault(rng: &mut fastrand::Rng, policy: &Policy, processes: usize, events: &[Event]) -> Fault {
    let process = rng.usize(0..processes);
    let event = rng.usize(0..events.len());
    let early = events[event].first + rng.u64(0..2 * policy.lease);
    let down = rng.u64(100..policy.lease);
    match rng.u8(0..24) {
        0..=9 => Fault::Call {
            process,
            event,
            operation: *pick_of(rng, &OPERATIONS),
            n: nth(rng),
            trouble: trouble(rng, policy),
        },
        10 => Fault::Outage {
            from: early,
            time: rng.u64(50..2 * policy.lease),
            hangs: rng.bool(),
        },
        11 | 12 => Fault::Full {
            from: early,
            time: rng.u64(50..3 * policy.lease),
        },
        13 => Fault::Forget { at: early },
        14 => Fault::RollBack {
            at: early,
            by: rng.u64(1..500),
        },
        15..=17 => Fault::Freeze {
            when: when(rng, event, early),
            process,
            time: rng.u64(policy.lease / 4..3 * policy.lease),
        },
        18..=20 => Fault::Kill {
            when: when(rng, event, early),
            process,
            down,
        },
        _ => {
            let part = rng.u64(1..10);
            let limit = rng.u64(0..1 + policy.lease / part);
            Fault::Drain {
                at: early,
                process,
                limit,
                down,
            }
        }
    }
}

fn nth(rng: &mut fastrand::Rng) -> u64 {
    if rng.bool() { 1 } else { rng.u64(1..=5) }
}

fn when(rng: &mut fastrand::Rng, event: usize, at: Millis) -> When {
    if rng.bool() {
        return When::At(at);
    }
    When::Call {
        event,
        operation: *pick_of(rng, &OPERATIONS),
        n: nth(rng),
        moment: *pick_of(rng, &[Moment::Sent, Moment::Landed, Moment::Replied]),
    }
}

fn trouble(rng: &mut fastrand::Rng, policy: &Policy) -> Trouble {
    let time = match rng.u8(0..3) {
        0 => rng.u64(10..policy.store_timeout),
        1 => rng.u64(policy.store_timeout..policy.store_timeout + 1_500),
        _ => rng.u64(10..2 * policy.lease),
    };
    match rng.u8(0..10) {
        0..=2 => Trouble::Late(time),
        3 => Trouble::SlowReply(time),
        4 => Trouble::Before { sure: rng.bool() },
        5 => Trouble::After,
        6 => Trouble::LostCall,
        7 => Trouble::LostReply,
        8 => Trouble::Twice(time),
        _ => Trouble::Panics,
    }
}

pub(crate) fn pick(rng: &mut fastrand::Rng, of: &[Millis]) -> Millis {
    *pick_of(rng, of)
}

pub(crate) fn pick_of<'a, T>(rng: &mut fastrand::Rng, of: &'a [T]) -> &'a T {
    &of[rng.usize(0..of.len())]
}
