//! Sends commands: over which connection, the deadline, and the one safe repeat.
//!
//! A future is as large as the largest way through it, and is moved and allocated along with those
//! around it: here and below, the ways that are rarely taken are in boxes of their own, and what
//! takes more than a little is no `async fn`, which would have room for its arguments twice.

use std::{any, fmt, future::Future, pin::Pin, sync::Arc};

use futures_util::{TryFutureExt, future::Either};
use redis::{Cmd, RedisFuture, Value, aio::ConnectionLike};
use tokio::time::Instant;

#[cfg(feature = "cluster")]
use super::cluster::Cluster;
use super::{
    error::RedisStoreError,
    own::Own,
    sending::{Make, Reply, Sending, Wait, answer},
};
use crate::Key;

/// What the store sends its commands through.
#[derive(Clone)]
pub(super) enum Connection {
    Own(Arc<Own>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Cluster>),
    Given(Arc<dyn Given>),
}

impl Connection {
    /// Sends a command about the key and waits for the reply, neither longer than `by`.
    ///
    /// When the connection breaks under the command, it is sent once more: whether the first try
    /// was executed cannot be known, and every step is idempotent per token.
    pub(super) fn send<'a>(
        &'a self,
        key: &'a Key,
        command: Make<'a>,
        wait: Option<Wait>,
        by: Instant,
    ) -> impl Future<Output = Result<Reply, RedisStoreError>> + Send + 'a {
        let sending = Sending {
            wait,
            ..Sending::plain(command)
        };
        async move {
            match self.send_once(key, sending, by).await {
                Err(error) if error.is_broken() => {
                    let reply = Box::pin(self.send_once(key, sending, by)).await;
                    reply.map_err(|later| later.after(&error))
                }
                reply => reply,
            }
        }
    }

    #[cfg_attr(
        not(feature = "cluster"),
        expect(unused_variables, reason = "one place")
    )]
    fn send_once<'a>(
        &'a self,
        key: &'a Key,
        sending: Sending<'a>,
        by: Instant,
    ) -> impl Future<Output = Result<Reply, RedisStoreError>> + Send + 'a {
        let boxed: Pin<Box<dyn Future<Output = _> + Send + 'a>> = match self {
            Self::Own(own) => return Either::Left(own.send(sending, by)),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => Box::pin(cluster.send(key, sending, by)),
            Self::Given(given) => {
                let reply = answer(by, || given.send((sending.command)(None)));
                Box::pin(reply.map_ok(Reply::from))
            }
        };
        Either::Right(boxed)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(own) => own.fmt(f),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.fmt(f),
            Self::Given(given) => f.write_str(given.name()),
        }
    }
}

/// A connection that the user made, its type erased.
pub(super) trait Given: Send + Sync {
    fn name(&self) -> &'static str;
    fn send(&self, command: Cmd) -> RedisFuture<'static, Value>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Given for C {
    fn name(&self) -> &'static str {
        any::type_name::<C>()
    }

    fn send(&self, command: Cmd) -> RedisFuture<'static, Value> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_command(&command).await })
    }
}
