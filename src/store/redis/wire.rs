//! A connection to a server, and the task that drives it.

use std::sync::Arc;

use redis::{Cmd, RedisResult, Value};
use tokio_util::task::AbortOnDropHandle;

use super::{driver::Driver, error::RedisStoreError, queue::Queue, stream::Stream};

/// A connection that calls share, and that is closed when it is dropped.
pub(super) struct Wire {
    queue: Arc<Queue>,
    _driver: AbortOnDropHandle<()>,
}

impl Wire {
    /// Starts to speak on a stream.
    pub(super) fn over(stream: Stream, coalesce: bool) -> Self {
        let queue = Arc::new(Queue::default());
        let driver = Driver::new(stream, Arc::clone(&queue), coalesce);
        Self {
            queue,
            _driver: AbortOnDropHandle::new(tokio::spawn(driver)),
        }
    }

    /// An empty command with room for another like those before, if there is one.
    pub(super) fn spare(&self) -> Option<Cmd> {
        self.queue.spare()
    }

    /// Sends a command, after `ASKING` if so, and waits for the reply without a limit.
    pub(super) fn send(
        &self,
        command: Cmd,
        asking: bool,
    ) -> impl Future<Output = RedisResult<Value>> + use<> {
        self.queue.push(command, asking)
    }

    /// The same, with an error of the server as an error.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, RedisStoreError> {
        let reply = self.send(command.clone(), false).await;
        reply
            .and_then(Value::extract_error)
            .map_err(|error| RedisStoreError::new(&error))
    }
}
