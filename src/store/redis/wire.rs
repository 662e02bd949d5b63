//! A connection to a server, and the task that drives it.

use std::{
    future::poll_fn,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use redis::{
    AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisError, RedisResult, Value,
    aio::MultiplexedConnection,
};
use tokio::sync::Notify;
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
    end: Arc<End>,
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
        let end = Arc::new(End::default());
        let (shared, at_the_end) = (Arc::clone(&load), AtTheEnd(Arc::clone(&end)));
        let task = tokio::spawn(async move {
            let _at_the_end = at_the_end;
            if coalesce {
                Coalesce::new(driver, shared).await;
            } else {
                driver.await;
            }
        });
        Ok(Self {
            connection,
            load,
            end,
            _driver: AbortOnDropHandle::new(task),
        })
    }

    /// Sends a command and waits for the reply without a limit.
    ///
    /// The client alone may wait for ever: a command that is handed over in the moment in which the
    /// connection breaks stays in the queue, where the driver does not look any more, and which
    /// lives as long as somebody waits.
    pub(super) async fn send(&self, sending: Sending<'_>) -> RedisResult<Value> {
        let _on_its_way = self.load.one_more();
        let mut connection = self.connection.clone();
        let mut ended = pin!(self.end.comes.notified());
        if self.end.came.load(Ordering::Acquire) {
            return Err(broken());
        }
        let mut sent = pin!(sending.command(&mut connection));
        poll_fn(|cx| match sent.as_mut().poll(cx) {
            Poll::Pending => ended.as_mut().poll(cx).map(|()| Err(broken())),
            reply => reply,
        })
        .await
    }

    /// The same, with an error of the server as an error.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, RedisStoreError> {
        let reply = self.send(Sending::plain(command)).await;
        reply
            .and_then(Value::extract_error)
            .map_err(|error| RedisStoreError::new(&error))
    }
}

/// From then on nothing drives the connection.
#[derive(Default)]
struct End {
    came: AtomicBool,
    comes: Notify,
}

/// Brings the end when it is dropped, however that comes about.
struct AtTheEnd(Arc<End>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        self.0.came.store(true, Ordering::Release);
        self.0.comes.notify_waiters();
    }
}

fn broken() -> RedisError {
    io::Error::new(io::ErrorKind::BrokenPipe, "the connection broke").into()
}
