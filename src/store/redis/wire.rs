//! A connection to a server, and the task that drives it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use redis::{Cmd, RedisResult, Value};
use tokio_util::task::AbortOnDropHandle;

use super::{
    driver::{Driver, Settings},
    error::RedisStoreError,
    queue::Queue,
    stream::Stream,
};
use crate::mutex::Mutex;

/// A connection that calls share, and that is closed when it is dropped.
pub(super) struct Wire {
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

/// What the callers and the task have in common.
pub(super) struct Shared {
    pub(super) queue: Queue,
    /// `None` when the connection is closed. Locked for no longer than it takes to write and read what
    /// can be at once.
    pub(super) driver: Mutex<Option<Driver>>,
}

/// The future of the task.
pub(super) struct Driving(pub(super) Arc<Shared>);

impl Wire {
    /// Starts to speak on a stream.
    pub(super) fn over(stream: Stream, settings: Settings) -> Self {
        let shared = Arc::new(Shared::new(stream, settings));
        let task = tokio::spawn(Driving(Arc::clone(&shared)));
        Self {
            shared,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// An empty command with room for another like those before, if there is one.
    pub(super) fn spare(&self) -> Option<Cmd> {
        self.shared.queue.spare()
    }

    /// Sends a command, after `ASKING` if so, and waits for the reply without a limit.
    pub(super) fn send(
        &self,
        command: Cmd,
        asking: bool,
    ) -> impl Future<Output = RedisResult<Value>> + use<> {
        self.shared.send(command, asking)
    }

    /// The same, with an error of the server as an error.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, RedisStoreError> {
        let reply = self.send(command.clone(), false).await;
        reply
            .and_then(Value::extract_error)
            .map_err(|error| RedisStoreError::new(&error))
    }
}

impl Shared {
    pub(super) fn new(stream: Stream, settings: Settings) -> Self {
        Self {
            queue: Queue::default(),
            driver: Mutex::new(Some(Driver::new(stream, settings))),
        }
    }

    pub(super) fn send(
        &self,
        command: Cmd,
        asking: bool,
    ) -> impl Future<Output = RedisResult<Value>> + use<> {
        let (reply, idle) = self.queue.push(command, asking);
        if let Some(task) = idle {
            // Who holds the lock may have asked the queue before; the task, when woken, asks again.
            let written = self.driver.try_lock().is_some_and(|mut driver| {
                let driver = driver.as_mut();
                driver.is_some_and(|driver| driver.write_at_once(&task, &self.queue))
            });
            if !written {
                task.wake();
            }
        }
        reply
    }
}

impl Future for Driving {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Shared { queue, driver } = &*self.0;
        match &mut *driver.lock() {
            Some(driver) => driver.poll(cx, queue),
            None => Poll::Ready(()),
        }
    }
}

/// Over, aborted, or gone with its runtime: the connection is closed, and all who wait are told.
impl Drop for Driving {
    fn drop(&mut self) {
        let driver = self.0.driver.lock().take();
        drop(driver);
        self.0.queue.close();
    }
}
