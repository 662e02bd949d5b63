//! Sends commands: the deadline, and the one safe repeat.

use std::{any, fmt, sync::Arc};

use redis::{Cmd, RedisFuture, RedisResult, Value, aio::ConnectionLike};
use tokio::time::{Instant, timeout_at};

use super::{error::RedisStoreError, own::Own};

/// What the store sends its commands through.
#[derive(Clone)]
pub(super) enum Connection {
    Own(Arc<Own>),
    Given(Arc<dyn Given>),
}

impl Connection {
    /// Sends the command and waits for the reply, neither longer than `by`.
    ///
    /// When the connection breaks under the command, it is sent once more: whether the first try
    /// was executed cannot be known, and every step is idempotent per token.
    pub(super) async fn send(&self, command: &Cmd, by: Instant) -> Result<Value, RedisStoreError> {
        match self.send_once(command, by).await {
            Err(error) if error.is_broken() => {
                let reply = self.send_once(command, by).await;
                reply.map_err(|later| later.after(&error))
            }
            reply => reply,
        }
    }

    async fn send_once(&self, command: &Cmd, by: Instant) -> Result<Value, RedisStoreError> {
        match self {
            Self::Own(own) => own.send(command, by).await,
            Self::Given(given) => answer(given.send(command), by).await,
        }
    }
}

/// Waits for the reply to a command until `by`.
pub(super) async fn answer(
    sending: impl Future<Output = RedisResult<Value>>,
    by: Instant,
) -> Result<Value, RedisStoreError> {
    if Instant::now() >= by {
        return Err(RedisStoreError::timed_out(false, "no time left to send it"));
    }
    let reply = timeout_at(by, sending)
        .await
        .map_err(|_| RedisStoreError::timed_out(true, "no reply to a command"))?;
    reply
        .and_then(Value::extract_error)
        .map_err(|error| RedisStoreError::new(&error))
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(own) => own.fmt(f),
            Self::Given(given) => f.write_str(given.name()),
        }
    }
}

/// A connection that the user made, its type erased.
pub(super) trait Given: Send + Sync {
    fn name(&self) -> &'static str;
    fn send<'a>(&'a self, command: &'a Cmd) -> RedisFuture<'a, Value>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Given for C {
    fn name(&self) -> &'static str {
        any::type_name::<C>()
    }

    fn send<'a>(&'a self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_command(command).await })
    }
}
