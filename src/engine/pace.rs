//! How long to pause between tries.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Pauses that double from `first` up to `cap`.
pub(crate) struct Pace {
    first: Duration,
    cap: Duration,
    pauses: ExponentialBackoff,
}

impl Pace {
    pub(crate) fn new(first: Duration, cap: Duration) -> Self {
        let first = first.min(cap);
        let pauses = ExponentialBuilder::new()
            .with_min_delay(first)
            .with_max_delay(cap)
            .without_max_times()
            .build();
        Self { first, cap, pauses }
    }

    pub(crate) fn pause(&mut self) -> Duration {
        self.pauses.next().unwrap_or(self.cap)
    }

    pub(crate) fn restart(&mut self) {
        *self = Self::new(self.first, self.cap);
    }
}
