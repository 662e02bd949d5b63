//! Looking for a reply again and again, for a while, instead of sleeping until it comes.

use std::{
    pin::pin,
    task::Context,
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, task::yield_now};

/// Keeps a task awake for some time after a command went out.
///
/// The time is the machine's: that of a runtime that is paused, as in a test, goes on only when all
/// tasks sleep.
pub(super) struct BusyPoll {
    /// Zero: the task sleeps at once.
    at_most: Duration,
    /// When the last command went out.
    since: Instant,
}

impl BusyPoll {
    /// For a task of the current runtime.
    pub(super) fn new(at_most: Duration) -> Self {
        // A worker that does not sleep wakes another, which takes over to wait for the sockets: then
        // the first one looks in vain, and the reply has a second sleeper to wake.
        let in_vain = Handle::current().metrics().num_workers() > 1;
        Self {
            at_most: if in_vain { Duration::ZERO } else { at_most },
            since: Instant::now(),
        }
    }

    pub(super) const fn is_on(&self) -> bool {
        !self.at_most.is_zero()
    }

    /// The time begins anew.
    pub(super) fn begin(&mut self) {
        if self.is_on() {
            self.since = Instant::now();
        }
    }

    /// Until the time is over, has the task polled once more: when the others had their turn, and the
    /// runtime has looked for what came in.
    pub(super) fn stay_awake(&self, cx: &mut Context<'_>) {
        if self.is_on() && self.since.elapsed() < self.at_most {
            // That may come late or never, as when the runtime ends: the reply wakes the task as well.
            _ = pin!(yield_now()).poll(cx);
        }
    }
}
