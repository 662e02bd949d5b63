//! A timer that is due before those of the calls.

use std::{future::Future, pin::Pin, task::Context, time::Duration};

use tokio::time::{Instant, Sleep, sleep};

/// How soon it is due. Deadlines of calls are later, as a rule.
const SOON: Duration = Duration::from_millis(50);

/// While in use, a timer that is due soon, and then does nothing.
///
/// tokio wakes itself up, with a system call and one more turn of its loop, for a timer that is due
/// before all others of the runtime. On a runtime that has little to do that is the deadline of each
/// call, though hardly one is ever reached. With this timer before them, it is none.
pub(super) struct EarlyTimer {
    timer: Pin<Box<Sleep>>,
    is_set: bool,
}

impl EarlyTimer {
    /// Not set yet.
    pub(super) fn new() -> Self {
        Self {
            timer: Box::pin(sleep(SOON)),
            is_set: false,
        }
    }

    /// Sets it, unless it is.
    pub(super) fn set(&mut self, cx: &mut Context<'_>) {
        if !self.is_set || self.timer.is_elapsed() {
            self.timer.as_mut().reset(Instant::now() + SOON);
            self.is_set = self.timer.as_mut().poll(cx).is_pending();
        }
    }
}
