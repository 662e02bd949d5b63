//! The task of one connection: it lets commands that many requests have at the same time go out in
//! one write.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use redis::aio::MultiplexedConnection;

use super::{
    batch::Batch,
    early_timer::EarlyTimer,
    queue::{Command, Queue},
};

/// How many commands are in one batch at most: the first reply waits for the last one.
const COMMANDS: usize = 64;

/// Sends what is in the queue through the client, which it also drives. Ends when the connection
/// breaks.
///
/// A runtime with several threads runs a task that another one wakes next, before those that have
/// been waiting: this one would find each command on its own. So it steps back once each time it is
/// woken, and those that are ready by then come first. A command that is alone on its connection
/// does not wait for others.
///
/// Where it is not to `coalesce`, it never waits, and sends each command on its own.
pub(super) struct Driver {
    client: Pin<Box<dyn Future<Output = ()> + Send>>,
    connection: MultiplexedConnection,
    queue: Arc<Queue>,
    coalesce: bool,
    early_timer: EarlyTimer,
    stepped_back: bool,
    /// Room for what comes out of the queue.
    taken: VecDeque<Command>,
    /// In the order in which the replies come.
    sent: VecDeque<Batch>,
    /// How many commands are in those.
    on_their_way: usize,
    /// To be used again.
    spare: Vec<Batch>,
}

impl Driver {
    /// How many batches are on their way at most. What comes then stays in the queue until there are
    /// replies.
    pub(super) const BATCHES: usize = 64;

    pub(super) fn new(
        client: impl Future<Output = ()> + Send + 'static,
        connection: MultiplexedConnection,
        queue: Arc<Queue>,
        coalesce: bool,
    ) -> Self {
        Self {
            client: Box::pin(client),
            connection,
            queue,
            coalesce,
            early_timer: EarlyTimer::new(),
            stepped_back: false,
            taken: VecDeque::new(),
            sent: VecDeque::new(),
            on_their_way: 0,
            spare: Vec::new(),
        }
    }

    /// Whether to let others come first, this time.
    fn steps_back(&mut self) -> bool {
        let shared = || self.on_their_way + self.queue.len() > 1;
        self.stepped_back = self.coalesce && !self.stepped_back && shared();
        self.stepped_back
    }

    /// Sends what is in the queue, as far as there is room.
    fn send(&mut self, cx: &mut Context<'_>) {
        let most = if self.coalesce { COMMANDS } else { 1 };
        while self.sent.len() < Self::BATCHES && self.queue.take(most, &mut self.taken, cx) {
            let spare = self.spare.pop();
            let mut batch = spare.unwrap_or_else(|| Batch::new(self.connection.clone()));
            if batch.fill(self.taken.drain(..)) == 0 {
                self.spare.push(batch);
                continue;
            }
            self.on_their_way += batch.len();
            batch.send(cx);
            self.sent.push_back(batch);
            // Not for as long as there is no reply: a silent server would have it go on for ever.
            self.early_timer.set(cx);
        }
    }

    /// Hands out the replies that are here.
    fn hand_out(&mut self, cx: &mut Context<'_>) {
        while let Some(batch) = self.sent.front_mut()
            && batch.poll(cx).is_ready()
        {
            self.on_their_way -= batch.len();
            if let Some(command) = batch.hand_out() {
                self.queue.give_back(command);
            }
            self.spare.extend(self.sent.pop_front());
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.steps_back() {
            // To the end of the queue, which other threads help with. `yield_now` would wait for
            // this thread, and a handler may block it.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.send(cx);
        let ended = self.client.as_mut().poll(cx);
        // Each reply that is here has woken this task once more: for what there was no room before.
        self.hand_out(cx);
        ended
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.queue.close();
    }
}

#[cfg(test)]
mod tests;
