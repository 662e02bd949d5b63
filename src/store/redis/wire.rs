//! A connection to a server, and the task that drives it.

use std::sync::Arc;

use redis::{
    AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisResult, Value, aio::MultiplexedConnection,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    coalesce::{Coalesce, Load},
    error::RedisStoreError,
    sending::Sending,
    stream::Stream,
};

/// A connection that calls share, and that is closed when it is dropped.
pub(super) struct Wire {
    connection: MultiplexedConnection,
    load: Arc<Load>,
    _driver: AbortOnDropHandle<()>,
}

impl Wire {
    /// How many commands may wait for the socket; the client's 50 make a burst wait in line.
    const SEND_QUEUE: usize = 1024;

    /// Starts the client on a stream.
    pub(super) async fn over(stream: Stream, coalesce: bool) -> RedisResult<Self> {
        // The time limits are ours: the client's would cut a longer deadline short.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(Self::SEND_QUEUE);
        // It sends nothing by itself.
        let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&settings, stream, config).await?;
        let load = Arc::new(Load::default());
        let task = if coalesce {
            tokio::spawn(Coalesce::new(driver, Arc::clone(&load)))
        } else {
            tokio::spawn(driver)
        };
        Ok(Self {
            connection,
            load,
            _driver: AbortOnDropHandle::new(task),
        })
    }

    /// Sends a command and waits for the reply without a limit.
    pub(super) async fn send(&self, sending: Sending<'_>) -> RedisResult<Value> {
        let _on_its_way = self.load.one_more();
        let mut connection = self.connection.clone();
        sending.command(&mut connection).await
    }

    /// The same, with an error of the server as an error.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, RedisStoreError> {
        let reply = self.send(Sending::plain(command)).await;
        reply
            .and_then(Value::extract_error)
            .map_err(|error| RedisStoreError::new(&error))
    }
}
