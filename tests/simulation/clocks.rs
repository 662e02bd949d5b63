//! The clocks of processes, which differ from the world's and from each other.

use std::time::{Duration, SystemTime};

use tower_webhook_dedup::{Entry, InFlight, Record, Token};

use crate::{
    plan::{Millis, Plan, pick_of},
    policy::Policy,
    world::World,
};

/// Those of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clocks {
    /// How fast its timers go, in thousandths of the world's.
    pub(crate) rate: u64,
    /// By how much its time of day is ahead.
    pub(crate) ahead: i64,
}

impl Clocks {
    pub(crate) const RIGHT: Self = Self {
        rate: 1_000,
        ahead: 0,
    };

    /// What the process takes for this time lasts so long in the world.
    pub(crate) const fn lasts(self, time: Millis) -> Millis {
        time * 1_000 / self.rate
    }

    /// What it takes a time for that lasts so long in the world: for the times of policies, the one
    /// that [`lasts`](Self::lasts) so long.
    pub(crate) fn says(self, time: Duration) -> Duration {
        let time = time.as_millis() as Millis;
        Duration::from_millis((time * self.rate).div_ceil(1_000))
    }
}

/// Rates are apart in one world of three, and times of day in one of two.
pub(crate) fn clocks(rng: &mut fastrand::Rng) -> Vec<Clocks> {
    let (rates, times) = (rng.u8(0..3) == 0, rng.bool());
    let mut all = vec![Clocks::RIGHT; 3];
    for clocks in &mut all {
        let rate = *pick_of(rng, &[1_000, 500, 800, 950, 1_050, 1_250]);
        let most = *pick_of(rng, &[1_000, 60_000, 3_600_000, 86_400_000]);
        let ahead = rng.i64(-most..=most);
        if rates {
            clocks.rate = rate;
        }
        if times {
            clocks.ahead = ahead;
        }
    }
    all
}

impl Plan {
    /// The settings as they are in one process: times are as long as its clock makes them.
    pub(crate) fn policy_of(&self, slot: usize) -> Policy {
        let (policy, clocks) = (self.policy, self.clocks[slot]);
        let in_flight = match policy.in_flight {
            InFlight::Wait { max, then } => InFlight::Wait {
                max: Duration::from_millis(clocks.lasts(max.as_millis() as Millis)),
                then,
            },
            other => other,
        };
        Policy {
            lease: clocks.lasts(policy.lease),
            store_timeout: clocks.lasts(policy.store_timeout),
            run_limit: clocks.lasts(policy.run_limit),
            retention: clocks.lasts(policy.retention),
            standby_age: clocks.lasts(policy.standby_age),
            in_flight,
            store_clock: clocks.lasts(policy.store_clock),
            // A minute is the most.
            remembered: policy.remembered.map(|it| clocks.lasts(it).min(60_000)),
            ..policy
        }
    }

    /// The settings of the process whose clock is the slowest.
    pub(crate) fn slowest(&self) -> Policy {
        let slots = 0..self.processes;
        let slowest = slots.min_by_key(|slot| self.clocks[*slot].rate);
        self.policy_of(slowest.unwrap())
    }
}

/// When all worlds begin.
fn beginning() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600)
}

impl World {
    /// The time of day in this process.
    fn time_of_day(&self, slot: usize) -> SystemTime {
        let now = beginning() + Duration::from_millis(self.now());
        let ahead = self.plan.clocks[slot].ahead;
        let by = Duration::from_millis(ahead.unsigned_abs());
        if ahead < 0 { now - by } else { now + by }
    }

    /// The record as the process writes it: with the time of day that it has.
    pub(crate) fn written(&self, slot: usize, token: Token, record: &Record) -> Record {
        completed_at(token, record, self.time_of_day(slot))
    }

    /// The record as it looks in the process, whose time of day is not the one that the code sees,
    /// which stands still.
    pub(crate) fn read(&self, slot: usize, token: Token, record: &Record) -> Record {
        let (own, real) = (self.time_of_day(slot), SystemTime::now());
        let at = match own.duration_since(record.completed_at()) {
            Ok(age) => real - age,
            Err(ahead) => real + ahead.duration(),
        };
        completed_at(token, record, at)
    }
}

fn completed_at(token: Token, record: &Record, at: SystemTime) -> Record {
    let record = record.clone();
    let text = Entry::Done { token, record }.to_string();
    let mut fields: Vec<_> = text.split(' ').collect();
    let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let at = at.as_millis().to_string();
    fields[3] = &at;
    match fields.join(" ").parse() {
        Ok(Entry::Done { record, .. }) => record,
        other => panic!("{other:?}"),
    }
}
