//! The commands that wait to be written to one connection.

use std::{
    collections::VecDeque,
    io,
    mem::{swap, take},
    task::{Context, Waker},
};

use redis::{Arg, Cmd, RedisError, RedisResult, Value};
use tokio::sync::oneshot;

use crate::mutex::Mutex;

/// From those who send commands to the driver that writes them.
#[derive(Default)]
pub(super) struct Queue(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Command>,
    /// Empty ones that were sent, to be filled again.
    spare: Vec<Cmd>,
    /// Of the driver's task, once that found nothing to write.
    idle: Option<Waker>,
    /// Nobody will look here any more.
    closed: bool,
}

/// How many are kept to be filled again.
const SPARE: usize = 64;

/// Longer than all without an answer for duplicates in them.
const LONGEST_SPARE: usize = 8 * 1024;

/// A command, and who waits for its reply.
pub(super) struct Command {
    pub(super) command: Cmd,
    /// `ASKING` goes before it: it is for a node that its key is just being moved to.
    pub(super) asking: bool,
    pub(super) reply_to: oneshot::Sender<RedisResult<Value>>,
}

impl Queue {
    /// Hands a command over. Returns what resolves with its reply, and the waker of the driver's task
    /// if that is idle: the caller then has the command written. One that nobody waits for by the time
    /// it would be written is not.
    pub(super) fn push(
        &self,
        command: Cmd,
        asking: bool,
    ) -> (
        impl Future<Output = RedisResult<Value>> + use<>,
        Option<Waker>,
    ) {
        let (reply_to, reply) = oneshot::channel();
        let command = Command {
            command,
            asking,
            reply_to,
        };
        let idle = {
            let mut state = self.0.lock();
            if !state.closed {
                state.waiting.push_back(command);
            }
            state.idle.take()
        };
        let reply = async { reply.await.unwrap_or_else(|_| Err(broken())) };
        (reply, idle)
    }

    /// An empty command with room for another, if one was given back.
    pub(super) fn spare(&self) -> Option<Cmd> {
        self.0.lock().spare.pop()
    }

    /// Takes those back that were sent. Not one that is long, whose room would be held for ever.
    pub(super) fn give_back(&self, commands: impl Iterator<Item = Cmd>) {
        let mut state = self.0.lock();
        let room = SPARE.saturating_sub(state.spare.len());
        let short = commands.filter(|command| length(command) <= LONGEST_SPARE);
        state.spare.extend(short.take(room).map(|mut command| {
            command.clear();
            command
        }));
    }

    /// How many are waiting.
    pub(super) fn len(&self) -> usize {
        self.0.lock().waiting.len()
    }

    /// Takes up to `most` of the waiting commands into `taken`, which is empty: `true`. `false` where
    /// there is none; then the next one gets the waker of `cx`.
    pub(super) fn take(
        &self,
        most: usize,
        taken: &mut VecDeque<Command>,
        cx: &Context<'_>,
    ) -> bool {
        let mut state = self.0.lock();
        if state.waiting.is_empty() {
            state.idle = Some(cx.waker().clone());
            return false;
        }
        if state.waiting.len() <= most {
            swap(&mut state.waiting, taken);
        } else {
            taken.extend(state.waiting.drain(..most));
        }
        true
    }

    /// Takes no more commands, and lets those go that are waiting.
    pub(super) fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        let waiting = take(&mut state.waiting);
        drop(state);
        drop(waiting);
    }
}

fn length(command: &Cmd) -> usize {
    let arguments = command.args_iter().map(|argument| match argument {
        Arg::Simple(bytes) => bytes.len(),
        _ => 0,
    });
    arguments.sum()
}

pub(super) fn broken() -> RedisError {
    io::Error::new(io::ErrorKind::BrokenPipe, "the connection broke").into()
}
