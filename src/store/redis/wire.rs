//! A connection to a server, and the task that drives it.

use std::sync::Arc;

use redis::{
    AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisResult, Value, aio::MultiplexedConnection,
};
use tokio_util::task::AbortOnDropHandle;

use super::{driver::Driver, error::RedisStoreError, queue::Queue, stream::Stream};

/// A connection that calls share, and that is closed when it is dropped.
pub(super) struct Wire {
    queue: Arc<Queue>,
    _driver: AbortOnDropHandle<()>,
}

impl Wire {
    /// Starts the client on a stream.
    pub(super) async fn over(stream: Stream, coalesce: bool) -> RedisResult<Self> {
        // The time limits are ours: the client's would cut a longer deadline short.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(2 * Driver::BATCHES);
        // It sends nothing by itself.
        let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        let (connection, client) =
            MultiplexedConnection::new_with_config(&settings, stream, config).await?;
        let queue = Arc::new(Queue::default());
        let driver = Driver::new(client, connection, Arc::clone(&queue), coalesce);
        Ok(Self {
            queue,
            _driver: AbortOnDropHandle::new(tokio::spawn(driver)),
        })
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
