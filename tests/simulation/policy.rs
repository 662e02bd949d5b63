//! The settings of layers.

use std::time::Duration;

use tower_webhook_dedup::{AfterWait, InFlight, Limits, OnDisconnect, StoreFailure};

use crate::plan::{Millis, pick, pick_of};

/// The settings of all layers of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) lease: Millis,
    pub(crate) store_timeout: Millis,
    pub(crate) run_limit: Millis,
    pub(crate) retention: Millis,
    pub(crate) standby_age: Millis,
    pub(crate) in_flight: InFlight,
    pub(crate) store_failure: StoreFailure,
    pub(crate) on_disconnect: OnDisconnect,
    /// How fast the store's clock goes, in thousandths of whoever's policy it is: the world's, or a
    /// process's.
    pub(crate) store_clock: u64,
    /// For how long processes remember what is done, where they do.
    pub(crate) remembered: Option<Millis>,
}

impl Policy {
    pub(crate) fn limits(&self) -> Limits {
        Limits::default().standby_age(Duration::from_millis(self.standby_age))
    }

    /// How long a record is kept.
    pub(crate) fn kept(&self) -> Millis {
        self.retention.max(self.lease) * 1_000 / self.store_clock
    }

    /// As long as a request may wait for another run.
    pub(crate) fn wait(&self) -> Millis {
        match self.in_flight {
            InFlight::Wait { max, .. } => max.as_millis() as Millis,
            _ => 0,
        }
    }
}

/// Draws them.
pub(crate) fn policy(rng: &mut fastrand::Rng) -> Policy {
    let lease = pick(rng, &[2_000, 5_000, 30_000]);
    let store_timeout = *pick_of(rng, &[lease / 4, 300, 300, 100]);
    let then = *pick_of(rng, &[AfterWait::Acknowledge, AfterWait::RetryLater]);
    let max = Duration::from_millis(rng.u64(100..2 * lease));
    let wait = InFlight::Wait { max, then };
    let acknowledge = InFlight::Acknowledge;
    Policy {
        lease,
        store_timeout: store_timeout.min(lease / 4),
        run_limit: *pick_of(rng, &[lease / 2, 2 * lease, 4 * lease, 300_000]),
        retention: *pick_of(rng, &[lease * 2, 60_000, 3_600_000, 345_600_000]),
        standby_age: *pick_of(rng, &[2 * lease, 60_000, 600_000, 86_400_000]),
        in_flight: *pick_of(rng, &[acknowledge, acknowledge, InFlight::RetryLater, wait]),
        store_failure: *pick_of(
            rng,
            &[
                StoreFailure::Refuse,
                StoreFailure::Refuse,
                StoreFailure::Forward,
            ],
        ),
        on_disconnect: *pick_of(
            rng,
            &[
                OnDisconnect::Finish,
                OnDisconnect::Finish,
                OnDisconnect::Cancel,
            ],
        ),
        store_clock: *pick_of(rng, &[1_000, 1_000, 1_000, 950, 1_050]),
        remembered: None,
    }
}

/// In one world of two.
pub(crate) fn remembered(rng: &mut fastrand::Rng) -> Option<Millis> {
    rng.bool().then(|| pick(rng, &[500, 10_000, 60_000]))
}
