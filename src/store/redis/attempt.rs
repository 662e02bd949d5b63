//! What one task does for all who wait for it.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::error::RedisStoreError;

/// A task that all who need its outcome wait for. It is its own task so that a caller who gives up
/// does not end it.
#[derive(Clone)]
pub(super) struct Attempt<T> {
    outcome: watch::Receiver<Outcome<T>>,
    /// By then it is over, unless nobody drives its runtime.
    over: Instant,
}

/// Held by the task, which tells the outcome through it.
pub(super) struct Attempting<T>(watch::Sender<Outcome<T>>);

type Outcome<T> = Option<Result<T, RedisStoreError>>;

impl<T: Clone> Attempt<T> {
    /// One that takes at most so long.
    pub(super) fn new(longest: Duration) -> (Self, Attempting<T>) {
        let (sender, outcome) = watch::channel(None);
        let over = Instant::now() + longest;
        (Self { outcome, over }, Attempting(sender))
    }

    /// Whether the outcome may still come. Not where it is late, or the task gone with its runtime.
    pub(super) fn goes_on(&self) -> bool {
        Instant::now() < self.over && self.outcome.has_changed().is_ok()
    }

    /// Whether it is the one of this task.
    pub(super) fn is_of(&self, attempting: &Attempting<T>) -> bool {
        self.outcome.same_channel(&attempting.0.subscribe())
    }

    /// Waits for the outcome; `None` where it does not come by then, or not at all.
    pub(super) async fn outcome(mut self, by: Instant) -> Outcome<T> {
        let finished = self.outcome.wait_for(Option::is_some);
        match timeout_at(by.min(self.over), finished).await {
            Ok(Ok(outcome)) => outcome.clone(),
            _ => None,
        }
    }
}

impl<T> Attempting<T> {
    pub(super) fn tell(&self, outcome: Result<T, RedisStoreError>) {
        self.0.send_replace(Some(outcome));
    }
}
