//! The steps of the protocol, as commands.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::{FutureExt, TryFutureExt};
use redis::{ToRedisArgs, Value};
use tokio::time::Instant;

use super::{
    connection::Connection,
    error::RedisStoreError,
    script::{self, Script},
    sending::{Reply, Wait, command},
    value::{self, Shown, lasting, millis, stored, yes_or_no},
};
use crate::{Acquire, Entry, Key, Record, Release, Token, store::record::Known};

/// Takes steps over one connection.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a> {
    pub(super) connection: &'a Connection,
    /// The server refused NX with GET.
    pub(super) old_server: &'a AtomicBool,
    /// How many replicas are to have what acquire, renew and complete write, and how long to wait
    /// for them.
    pub(super) replicas: Option<(u32, Duration)>,
    pub(super) by: Instant,
}

/// The outcome of a step, and how many replicas have what *it* wrote; `None` if it wrote nothing
/// itself, or was not to ask.
pub(super) type Confirmed<T> = (T, Option<u32>);

impl Steps<'_> {
    /// How often an acquire looks again, when what it meant to take over has changed meanwhile.
    const ROUNDS: u32 = 8;

    pub(super) async fn acquire(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
    ) -> Result<Confirmed<Acquire>, RedisStoreError> {
        let lease = lasting(lease);
        let px = millis(lease);
        let running = Shown(Entry::running(token, lease, 1));
        let Reply {
            value: mut reply,
            confirmed_by,
        } = self.set_or_get(key, &running, px).await?;
        for _ in 0..Self::ROUNDS {
            let Some((entry, text)) = stored(reply)? else {
                return Ok((Acquire::Acquired { attempt: 1 }, confirmed_by));
            };
            let attempts = match entry {
                // The reply to an earlier try got lost, or the last round took over.
                Entry::Running {
                    token: holder,
                    attempt,
                    ..
                } if holder == token => return Ok((Acquire::Acquired { attempt }, None)),
                Entry::Running { since, lease, .. } => {
                    let at_most = lease;
                    return Ok((Acquire::InFlight { since, at_most }, None));
                }
                Entry::Done { record, .. } => return Ok((Acquire::Done(record), None)),
                Entry::Failed { attempts, .. } => attempts,
            };
            let running = Entry::running(token, lease, attempts.saturating_add(1));
            let arguments = (text, Shown(running), px);
            reply = Box::pin(self.run(&script::TAKE_OVER, key, &arguments)).await?;
        }
        Err(RedisStoreError::timed_out(
            false,
            "the entry changed each time it was looked at",
        ))
    }

    pub(super) async fn renew(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
    ) -> Result<Confirmed<bool>, RedisStoreError> {
        let lease = lasting(lease);
        let running = Entry::running(token, lease, 1);
        let arguments = (Shown(token), Shown(running), millis(lease));
        self.write(&script::RENEW, key, &arguments).await
    }

    pub(super) async fn complete(
        &self,
        key: &Key,
        token: Token,
        record: &Record,
        retention: Duration,
    ) -> Result<Confirmed<bool>, RedisStoreError> {
        let record = record.clone();
        let done = Entry::Done { token, record };
        let arguments = (Shown(token), Shown(done), millis(lasting(retention)));
        self.write(&script::COMPLETE, key, &arguments).await
    }

    pub(super) async fn release(
        &self,
        key: &Key,
        token: Token,
        release: Release,
        keep: Duration,
    ) -> Result<bool, RedisStoreError> {
        let (counts_as, status) = match release {
            Release::Failed { status } => (1, status),
            Release::Abandoned => (0, None),
        };
        let arguments = (
            Shown(token),
            counts_as,
            value::now(),
            Shown(Known(&status)),
            millis(lasting(keep)),
        );
        yes_or_no(&self.run(&script::RELEASE, key, &arguments).await?)
    }

    pub(super) async fn inspect(&self, key: &Key) -> Result<Option<Entry>, RedisStoreError> {
        let get = |_| redis::cmd("GET").arg(key.as_str()).take();
        let reply = self.connection.send(key, &get, None, self.by).await?;
        Ok(stored(reply.value)?.map(|(entry, _)| entry))
    }

    pub(super) async fn forget(&self, key: &Key, force: bool) -> Result<bool, RedisStoreError> {
        let arguments = i32::from(force);
        yes_or_no(&self.run(&script::FORGET, key, &arguments).await?)
    }

    /// Writes the value if there is none, else returns the one there is.
    async fn set_or_get(
        &self,
        key: &Key,
        running: &Shown<Entry>,
        lease: u64,
    ) -> Result<Reply, RedisStoreError> {
        let wait = self.wait(|reply| matches!(reply, Value::Nil));
        if !self.old_server.load(Ordering::Relaxed) {
            let set = |empty| {
                let mut set = command(empty, "SET", key.as_str().len());
                set.arg(key.as_str()).arg(running);
                set.arg("NX").arg("PX").arg(lease).arg("GET");
                set
            };
            match self.connection.send(key, &set, wait, self.by).await {
                Err(error) if error.is_syntax() => self.old_server.store(true, Ordering::Relaxed),
                reply => return reply,
            }
        }
        let arguments = (running, lease);
        Box::pin(script::ACQUIRE.run(self.connection, key, &arguments, wait, self.by)).await
    }

    /// Runs a script that says whether it has written.
    fn write<'a>(
        &'a self,
        script: &'a Script,
        key: &'a Key,
        arguments: &'a (impl ToRedisArgs + Sync),
    ) -> impl Future<Output = Result<Confirmed<bool>, RedisStoreError>> + Send + 'a {
        let wait = self.wait(|reply| matches!(reply, Value::Int(1)));
        let reply = script.run(self.connection, key, arguments, wait, self.by);
        reply.map(|reply| {
            let reply = reply?;
            Ok((yes_or_no(&reply.value)?, reply.confirmed_by))
        })
    }

    fn run<'a>(
        &'a self,
        script: &'a Script,
        key: &'a Key,
        arguments: &'a (impl ToRedisArgs + Sync),
    ) -> impl Future<Output = Result<Value, RedisStoreError>> + Send + 'a {
        let reply = script.run(self.connection, key, arguments, None, self.by);
        reply.map_ok(|reply| reply.value)
    }

    fn wait(&self, wrote: fn(&Value) -> bool) -> Option<Wait> {
        let (replicas, at_most) = self.replicas?;
        Some(Wait {
            replicas,
            at_most,
            wrote,
        })
    }
}
