//! What one connection does: it lets commands that many requests have at the same time go out in one
//! write, and hands out the replies.
//!
//! The `redis` crate would drive its connections by itself. On a runtime with several threads it
//! writes each command on its own, and a reply takes two queues and a wake-up more on its way. So all
//! that is left to it here is to pack the commands, and to parse what [`replies`](super::replies) does
//! not read.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::{io::AsyncWrite, sync::oneshot};

use super::{
    busy_poll::BusyPoll,
    early_timer::EarlyTimer,
    queue::{Command, Queue, broken},
    replies::Replies,
    stream::Stream,
};

/// How many commands go out in one write at most: the first reply waits until the server has read
/// the last of them.
const MOST_PER_WRITE: usize = 64;

/// How commands are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// Whether commands of many calls go out together.
    pub(super) coalesce: bool,
    /// For how long after a command went out the task stays awake, where that is alone.
    pub(super) busy_poll: Duration,
}

/// Writes what is in the queue, and hands out the replies, until the connection breaks. A task polls
/// it; but a command that finds it [at rest](Self::is_at_rest) is written by its caller, which spares
/// a lone delivery a wake-up of that task.
///
/// A runtime with several threads runs a task that another one wakes next, before those that have
/// been waiting: this one would find each command on its own. So it steps back once each time it is
/// woken, and those that are ready by then come first. A command that is alone on its connection
/// does not wait for others.
///
/// Where it is not to `coalesce`, it never waits, and writes each command on its own.
pub(super) struct Driver {
    stream: Stream,
    replies: Replies,
    coalesce: bool,
    early_timer: EarlyTimer,
    busy_poll: BusyPoll,
    stepped_back: bool,
    /// Room for what comes out of the queue, and goes back.
    taken: VecDeque<Command>,
    packed: Vec<Cmd>,
    outgoing: Outgoing,
    /// Whether there was a first command. Nothing is read before: what a server says by itself, as
    /// when it has no room for one more client, is the reply to that one.
    has_asked: bool,
    /// In the order in which the replies come.
    waiting: VecDeque<Waiting>,
}

/// What is being written.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
    unflushed: bool,
}

/// One that waits for a reply.
struct Waiting {
    reply_to: oneshot::Sender<RedisResult<Value>>,
    /// The reply to `ASKING` comes first.
    asking: bool,
    /// What that was, where it was an error.
    refused: Option<Value>,
}

impl Driver {
    /// How many commands wait for replies at most. What comes then stays in the queue until there
    /// is room.
    const MOST_WAITING: usize = 4096;

    pub(super) fn new(stream: Stream, settings: Settings) -> Self {
        Self {
            stream,
            replies: Replies::new(),
            coalesce: settings.coalesce,
            early_timer: EarlyTimer::new(),
            busy_poll: BusyPoll::new(settings.busy_poll),
            stepped_back: false,
            taken: VecDeque::new(),
            packed: Vec::new(),
            outgoing: Outgoing::default(),
            has_asked: false,
            waiting: VecDeque::new(),
        }
    }

    /// What the task does whenever it is woken. Ready when the connection is of no more use, and all
    /// who waited know.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, queue: &Queue) -> Poll<()> {
        if self.steps_back(queue) {
            // To the end of the queue, which other threads help with. `yield_now` would wait for
            // this thread, and a handler may block it.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let sent = self.send(cx, queue);
        let was_full = self.is_full();
        // Also after an error in writing: the server may have said why it closes the connection.
        let received = self.hand_out(cx);
        let error = match (received, sent) {
            (Poll::Ready(error), _) => error,
            (_, Poll::Ready(error)) => error.into(),
            _ => {
                // The next reply wakes this task, and so does room for what is being written or else
                // the next command; but where it was full, it has not asked the queue.
                if was_full && !self.is_full() {
                    cx.waker().wake_by_ref();
                }
                // Where there are more, the thread has enough to do.
                if self.waiting.len() == 1 {
                    self.busy_poll.stay_awake(cx);
                }
                return Poll::Pending;
            }
        };
        self.end(&error);
        Poll::Ready(())
    }

    /// Writes what is in the queue, if it is at rest; the reply then wakes the task, and so does room
    /// for what could not be written yet. `false`: the task has to be woken, be it only to stay awake.
    pub(super) fn write_at_once(&mut self, task: &Waker, queue: &Queue) -> bool {
        let cx = &mut Context::from_waker(task);
        // Ready only with an error, which the task meets again.
        self.is_at_rest() && self.send(cx, queue).is_pending() && !self.busy_poll.is_on()
    }

    /// Nothing is awaited, and the task has begun to read: what the server says will wake it.
    fn is_at_rest(&self) -> bool {
        self.has_asked && self.waiting.is_empty()
    }

    /// Whether to let others come first, this time.
    fn steps_back(&mut self, queue: &Queue) -> bool {
        let shared = || self.waiting.len() + queue.len() > 1;
        self.stepped_back = self.coalesce && !self.stepped_back && shared();
        self.stepped_back
    }

    fn is_full(&self) -> bool {
        self.waiting.len() >= Self::MOST_WAITING
    }

    /// Writes what is in the queue, as far as there is room. Ready only with an error.
    fn send(&mut self, cx: &mut Context<'_>, queue: &Queue) -> Poll<io::Error> {
        loop {
            if let Err(error) = ready!(self.outgoing.write(self.stream.as_mut(), cx)) {
                return Poll::Ready(error);
            }
            if !self.fill(cx, queue) {
                return Poll::Pending;
            }
        }
    }

    /// Packs commands that are next. `false`: there is none, or no room.
    fn fill(&mut self, cx: &mut Context<'_>, queue: &Queue) -> bool {
        let most = if self.coalesce { MOST_PER_WRITE } else { 1 };
        let most = most.min(Self::MOST_WAITING - self.waiting.len());
        if most == 0 || !queue.take(most, &mut self.taken, cx) {
            return false;
        }
        for Command {
            command,
            asking,
            reply_to,
        } in self.taken.drain(..)
        {
            // Nobody waits for it any more.
            if reply_to.is_closed() {
                continue;
            }
            if asking {
                redis::cmd("ASKING").write_packed_command(&mut self.outgoing.bytes);
            }
            command.write_packed_command(&mut self.outgoing.bytes);
            self.packed.push(command);
            self.waiting.push_back(Waiting {
                reply_to,
                asking,
                refused: None,
            });
        }
        queue.give_back(self.packed.drain(..));
        self.has_asked |= !self.waiting.is_empty();
        // Not for as long as there is no reply: a silent server would have it go on for ever.
        self.early_timer.set(cx);
        self.busy_poll.begin();
        true
    }

    /// Hands out the replies that are here. Ready only with an error.
    fn hand_out(&mut self, cx: &mut Context<'_>) -> Poll<RedisError> {
        if !self.has_asked {
            return Poll::Pending;
        }
        loop {
            let reply = match ready!(self.replies.poll_next(cx, self.stream.as_mut())) {
                // News, and no reply to anything.
                Ok(Value::Push { .. }) => continue,
                Ok(reply) => reply,
                Err(error) => return Poll::Ready(error),
            };
            // A reply that nobody asked for: those that come next would go to the wrong ones.
            let Some(mut next) = self.waiting.pop_front() else {
                return Poll::Ready(broken());
            };
            let is_error = matches!(reply, Value::ServerError(_));
            if next.asking {
                next.asking = false;
                next.refused = is_error.then_some(reply);
                self.waiting.push_front(next);
                continue;
            }
            // Who does not wait any more gets none.
            _ = next.reply_to.send(Ok(match next.refused {
                // The reason why the command was refused as well.
                Some(refused) if is_error => refused,
                _ => reply,
            }));
        }
    }

    /// Tells those that wait.
    fn end(&mut self, error: &RedisError) {
        for one in self.waiting.drain(..) {
            _ = one.reply_to.send(Err(error.clone()));
        }
    }
}

impl Outgoing {
    /// More room than this is not kept.
    const KEPT: usize = 64 * 1024;

    /// Writes all of it.
    fn write(
        &mut self,
        mut stream: Pin<&mut (impl AsyncWrite + ?Sized)>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.written < self.bytes.len() {
            let left = &self.bytes[self.written..];
            match ready!(stream.as_mut().poll_write(cx, left))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
            self.unflushed = true;
        }
        self.written = 0;
        self.bytes.clear();
        self.bytes.shrink_to(Self::KEPT);
        // Over TLS, what is written need not have gone out.
        if self.unflushed {
            ready!(stream.poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
