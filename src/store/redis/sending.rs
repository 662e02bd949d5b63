//! One command on its way, and what comes back.

use std::{
    future::{Future, ready},
    time::Duration,
};

use futures_util::{FutureExt, future::Either};
use redis::{Cmd, RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use super::error::RedisStoreError;

/// What makes a command, anew for each time that it is sent; out of an empty one that has room, if
/// there is one.
pub(super) type Make<'a> = &'a (dyn Fn(Option<Cmd>) -> Cmd + Sync);

/// A command, and what goes along with it on the same connection.
#[derive(Clone, Copy)]
pub(super) struct Sending<'a> {
    pub(super) command: Make<'a>,
    /// The command is for a node that its key is just being moved to.
    pub(super) asking: bool,
    /// Wait for replicas.
    pub(super) wait: Option<Wait>,
}

/// Waits until replicas have what the command wrote, if it wrote.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) replicas: u32,
    pub(super) at_most: Duration,
    /// Whether a command with this reply has written.
    pub(super) wrote: fn(&Value) -> bool,
}

pub(super) struct Reply {
    pub(super) value: Value,
    /// How many replicas have what was written; `None` where it was not asked.
    pub(super) confirmed_by: Option<u32>,
}

/// A command with room for arguments of this length and for entries, so that it does not grow.
pub(super) fn command(empty: Option<Cmd>, name: &str, length: usize) -> Cmd {
    const ARGUMENTS: usize = 10;
    const OTHERS: usize = 256;
    let mut command = empty.unwrap_or_else(|| Cmd::with_capacity(ARGUMENTS, length + OTHERS));
    command.arg(name);
    command
}

impl<'a> Sending<'a> {
    pub(super) const fn plain(command: Make<'a>) -> Self {
        Self {
            command,
            asking: false,
            wait: None,
        }
    }
}

impl Wait {
    /// The command, with a time limit that leaves some of the time until `by` for what has to be
    /// done if it is in vain. It is never 0, which would mean for ever.
    pub(super) fn command(self, by: Instant) -> Cmd {
        let left = by.saturating_duration_since(Instant::now());
        let limit = self.at_most.min(left * 3 / 4).as_millis().max(1);
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.replicas).arg(limit.to_string());
        wait
    }
}

impl Reply {
    pub(super) fn confirmed(value: Value, confirmations: &Value) -> Self {
        let confirmed_by = match confirmations {
            Value::Int(replicas) => u32::try_from(*replicas).unwrap_or(0),
            _ => 0,
        };
        Self {
            value,
            confirmed_by: Some(confirmed_by),
        }
    }
}

impl From<Value> for Reply {
    fn from(value: Value) -> Self {
        Self {
            value,
            confirmed_by: None,
        }
    }
}

/// Sends a command and waits for the reply until `by`; where there is no time left, neither.
///
/// Not an `async fn`, which would hold the future twice: as its argument and where it awaits it.
pub(super) fn answer<F>(
    by: Instant,
    send: impl FnOnce() -> F,
) -> impl Future<Output = Result<Value, RedisStoreError>>
where
    F: Future<Output = RedisResult<Value>>,
{
    if Instant::now() >= by {
        let error = RedisStoreError::timed_out(false, "no time left to send it");
        return Either::Left(ready(Err(error)));
    }
    Either::Right(timeout_at(by, send()).map(|reply| {
        reply
            .map_err(|_| RedisStoreError::timed_out(true, "no reply to a command"))?
            .and_then(Value::extract_error)
            .map_err(|error| RedisStoreError::new(&error))
    }))
}
