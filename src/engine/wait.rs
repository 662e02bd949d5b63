//! Waiting for another run's outcome while the sender waits.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{Begun, Dedup, Lease, pace::Pace};
use crate::{Key, LeaseStore, Record};

/// The pauses between looks, for runs in other processes. Each waiter looks for itself, so that they
/// are what bounds the load on the store.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What came of waiting.
pub(crate) enum Waited<St: LeaseStore> {
    /// The other run failed or its lease ran out; the event is the caller's now.
    Acquired(Lease<St>),
    /// The event was completed.
    Done(Record),
    /// The time is over, or there was no place to wait.
    InVain,
}

impl<St: LeaseStore> Dedup<St> {
    /// Tries to acquire until `max` is over. Store errors are waited out.
    pub(crate) async fn wait(&self, key: &Key, max: Duration, bytes: usize) -> Waited<St> {
        let Some(_place) = self.tracker().wait(bytes, &self.settings.limits) else {
            return Waited::InVain;
        };
        let end = Instant::now() + max;
        let mut pace = Pace::new(PAUSE.0, PAUSE.1);
        loop {
            let now = Instant::now();
            if now >= end {
                return Waited::InVain;
            }
            let until = end.min(now + pace.pause());
            _ = timeout_at(until, self.run_ends(key)).await;
            match self.acquire(key).await {
                Ok(Begun::Acquired(lease)) => return Waited::Acquired(lease),
                Ok(Begun::Done(record)) => return Waited::Done(record),
                Ok(Begun::InFlight { .. }) | Err(_) => {}
            }
        }
    }
}
