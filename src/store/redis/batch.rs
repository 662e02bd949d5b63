//! Commands that go out together, and how each gets its own reply.

use std::task::{Context, Poll, ready};

use redis::{Cmd, Pipeline, RedisResult, Value, aio::MultiplexedConnection};
use tokio::{sync::oneshot, task::unconstrained};
use tokio_util::sync::ReusableBoxFuture;

use super::queue::Command;

/// Can be filled again after its replies were handed out.
pub(super) struct Batch {
    /// `None` while it is being sent.
    client: Option<Client>,
    sending: ReusableBoxFuture<'static, (Client, Replies)>,
    replies: Option<Replies>,
    waiting: Vec<Waiting>,
}

/// What sends, and what is sent.
struct Client {
    connection: MultiplexedConnection,
    /// A command that is on its own needs no pipeline, and can be filled again.
    alone: Option<Cmd>,
    pipeline: Pipeline,
}

struct Waiting {
    /// `ASKING` goes before the command.
    asking: bool,
    reply_to: oneshot::Sender<RedisResult<Value>>,
}

enum Replies {
    ToOne(RedisResult<Value>),
    ToMany(RedisResult<Vec<Value>>),
}

impl Batch {
    pub(super) fn new(connection: MultiplexedConnection) -> Self {
        Self {
            client: Some(Client {
                connection,
                alone: None,
                pipeline: Pipeline::new(),
            }),
            sending: ReusableBoxFuture::new(std::future::pending()),
            replies: None,
            waiting: Vec::new(),
        }
    }

    /// Puts in those commands that somebody still waits for, and says how many.
    pub(super) fn fill(&mut self, commands: impl Iterator<Item = Command>) -> usize {
        if let Some(Client {
            alone, pipeline, ..
        }) = &mut self.client
        {
            for Command {
                command,
                asking,
                reply_to,
            } in commands
            {
                if reply_to.is_closed() {
                    continue;
                }
                if self.waiting.is_empty() && !asking {
                    *alone = Some(command);
                } else {
                    if let Some(first) = alone.take() {
                        pipeline.add_command(first);
                    }
                    if asking {
                        pipeline.cmd("ASKING");
                    }
                    pipeline.add_command(command);
                }
                self.waiting.push(Waiting { asking, reply_to });
            }
        }
        self.len()
    }

    pub(super) const fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Hands the commands to the client, whose queue has room for them.
    pub(super) fn send(&mut self, cx: &mut Context<'_>) {
        if let Some(client) = self.client.take() {
            // Where the budget that a task shares with others is used up, the client's queue is as
            // if it were full; and a later batch would go out first.
            self.sending.set(unconstrained(send(client)));
        }
        _ = self.poll(cx);
    }

    /// Whether the replies are here.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.replies.is_none() {
            let (client, replies) = ready!(self.sending.poll(cx));
            self.client = Some(client);
            self.replies = Some(replies);
        }
        Poll::Ready(())
    }

    /// Gives each command its reply. Returns one that can be filled again, if there is one.
    pub(super) fn hand_out(&mut self) -> Option<Cmd> {
        let mut waiting = self.waiting.drain(..);
        match self.replies.take() {
            Some(Replies::ToOne(reply)) => {
                if let Some(one) = waiting.next() {
                    _ = one.reply_to.send(reply);
                }
            }
            Some(Replies::ToMany(Ok(replies))) => {
                let mut replies = replies.into_iter();
                for one in waiting {
                    let asking = if one.asking { replies.next() } else { None };
                    let Some(reply) = replies.next() else {
                        break;
                    };
                    _ = one.reply_to.send(Ok(match asking {
                        // The reason why the command was refused as well.
                        Some(refused @ Value::ServerError(_)) if is_error(&reply) => refused,
                        _ => reply,
                    }));
                }
            }
            Some(Replies::ToMany(Err(error))) => {
                for one in waiting {
                    _ = one.reply_to.send(Err(error.clone()));
                }
            }
            None => {}
        }
        let client = self.client.as_mut()?;
        client.pipeline.clear();
        client.alone.take()
    }
}

async fn send(mut client: Client) -> (Client, Replies) {
    let Client {
        connection,
        alone,
        pipeline,
    } = &mut client;
    let replies = if let Some(command) = alone {
        Replies::ToOne(connection.send_packed_command(command).await)
    } else {
        let count = pipeline.len();
        Replies::ToMany(connection.send_packed_commands(pipeline, 0, count).await)
    };
    (client, replies)
}

const fn is_error(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(_))
}
