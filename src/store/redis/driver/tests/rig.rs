//! A connection whose task is polled by hand, and the server's end of it.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, ready},
    time::Duration,
};

use futures_util::FutureExt;
use redis::{RedisResult, Value};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex},
    task::{consume_budget, coop::has_budget_remaining, unconstrained, yield_now},
};

use super::{
    super::super::wire::{Driving, Shared},
    Settings,
};

pub(super) struct Rig {
    pub(super) task: Driving,
    pub(super) shared: Arc<Shared>,
    pub(super) server: DuplexStream,
    line: Arc<Mutex<Line>>,
    woken: Arc<Woken>,
}

/// How the driver's end takes what is written.
#[derive(Default)]
struct Line {
    writes: Vec<String>,
    /// As TLS does: what is written goes out when it is flushed.
    holds_back: bool,
    held_back: Vec<u8>,
    takes_nothing: bool,
}

/// The driver's end.
struct End {
    stream: DuplexStream,
    line: Arc<Mutex<Line>>,
}

struct Woken(AtomicUsize);

impl Rig {
    pub(super) fn new(coalesce: bool) -> Self {
        Self::with_room(coalesce, 1 << 20)
    }

    /// The connection takes so many bytes until the server reads them.
    pub(super) fn with_room(coalesce: bool, room: usize) -> Self {
        let settings = Settings {
            coalesce,
            busy_poll: Duration::ZERO,
        };
        Self::with(settings, room)
    }

    pub(super) fn with(settings: Settings, room: usize) -> Self {
        let (stream, server) = duplex(room);
        let line = Arc::<Mutex<Line>>::default();
        let end = End {
            stream,
            line: line.clone(),
        };
        let shared = Arc::new(Shared::new(Box::pin(end), settings));
        Self {
            task: Driving(Arc::clone(&shared)),
            shared,
            server,
            line,
            // As a task that has just been spawned.
            woken: Arc::new(Woken(AtomicUsize::new(1))),
        }
    }

    /// Has had a reply, and waits for nothing.
    pub(super) async fn at_rest(coalesce: bool) -> Self {
        Self::at_rest_with_room(coalesce, 1 << 20).await
    }

    pub(super) async fn at_rest_with_room(coalesce: bool, room: usize) -> Self {
        let mut rig = Self::with_room(coalesce, room);
        rig.come_to_rest().await;
        rig
    }

    /// Sends a first command, and has the reply.
    pub(super) async fn come_to_rest(&mut self) {
        let reply = self.push("ZERO");
        while self.work().is_pending() && !self.got().is_empty() {}
        self.answer("+OK\r\n");
        assert!(self.work().is_pending());
        assert_eq!(reply.await, Ok(Value::Okay));
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap()
    }

    /// From now on, what is written goes out when it is flushed, as over TLS.
    pub(super) fn hold_back(&self) {
        self.line().holds_back = true;
    }

    /// From now on, nothing can be written.
    pub(super) fn take_nothing(&self) {
        self.line().takes_nothing = true;
    }

    /// What was written since this was asked last, one by one.
    pub(super) fn writes(&self) -> Vec<String> {
        std::mem::take(&mut self.line().writes)
    }

    /// A command of this name on its way.
    pub(super) fn push(&self, name: &str) -> impl Future<Output = RedisResult<Value>> + use<> {
        self.push_as(name, false)
    }

    /// In the room of one that was sent, if there is one.
    pub(super) fn push_as(
        &self,
        name: &str,
        asking: bool,
    ) -> impl Future<Output = RedisResult<Value>> + use<> {
        let mut command = self.shared.queue.spare().unwrap_or_default();
        command.arg(name);
        self.shared.send(command, asking)
    }

    /// How many commands have no reply.
    pub(super) fn unanswered(&self) -> usize {
        let driver = self.shared.driver.lock();
        self.shared.queue.len() + driver.as_ref().map_or(0, |driver| driver.waiting.len())
    }

    /// With all the budget of the runtime that it wants.
    pub(super) fn poll(&mut self) -> Poll<()> {
        self.woken();
        let waker = self.woken.clone().into();
        let mut task = unconstrained(&mut self.task);
        Pin::new(&mut task).poll(&mut Context::from_waker(&waker))
    }

    /// As after another task that has used the budget up, and then woken this one.
    pub(super) async fn poll_without_budget(&mut self) -> Poll<()> {
        while has_budget_remaining() {
            consume_budget().await;
        }
        self.woken();
        let waker = self.woken.clone().into();
        let polled = Pin::new(&mut self.task).poll(&mut Context::from_waker(&waker));
        // The runtime wakes those without budget when it gets its turn.
        yield_now().await;
        polled
    }

    /// Polls for as long as the task is woken, as a runtime does: not once more.
    pub(super) fn work(&mut self) -> Poll<()> {
        while self.is_woken() {
            if self.poll().is_ready() {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    pub(super) fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::Relaxed) > 0
    }

    /// How often the task was woken since this was asked, or it was polled, last.
    pub(super) fn woken(&self) -> usize {
        self.woken.0.swap(0, Ordering::Relaxed)
    }

    /// What the server has got since.
    pub(super) fn got(&mut self) -> String {
        let mut got = vec![0; 1 << 20];
        let read = unconstrained(self.server.read(&mut got)).now_or_never();
        got.truncate(read.map_or(0, Result::unwrap));
        String::from_utf8(got).unwrap()
    }

    pub(super) fn answer(&mut self, replies: &str) {
        let written = self.server.write_all(replies.as_bytes());
        unconstrained(written).now_or_never().unwrap().unwrap();
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for End {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, line } = self.get_mut();
        let mut line = line.lock().unwrap();
        let written = if line.takes_nothing {
            0
        } else if line.holds_back {
            line.held_back.extend_from_slice(bytes);
            bytes.len()
        } else {
            ready!(Pin::new(stream).poll_write(cx, bytes))?
        };
        let text = str::from_utf8(&bytes[..written]).unwrap();
        line.writes.push(text.to_owned());
        assert!(line.writes.len() < 1 << 20, "writes for ever");
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, line } = self.get_mut();
        let mut line = line.lock().unwrap();
        while !line.held_back.is_empty() {
            let written = ready!(Pin::new(&mut *stream).poll_write(cx, &line.held_back))?;
            line.held_back.drain(..written);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
