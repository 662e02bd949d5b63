//! The scripts, and how they are sent.

use std::{future::Future, sync::LazyLock};

use redis::{Cmd, ToRedisArgs};
use tokio::time::Instant;

use super::{
    connection::Connection,
    error::RedisStoreError,
    sending::{Reply, Wait, command},
};
use crate::Key;

/// One atomic step on one key.
pub(super) struct Script {
    text: &'static str,
    /// What the server calls it by.
    hash: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        let hash = redis::Script::new(text).get_hash().to_owned();
        Self { text, hash }
    }

    /// Runs the script, by its hash if the server knows it.
    ///
    /// It is not loaded with `SCRIPT LOAD`, which some users may not run, and which leaves a gap
    /// before the next command in which a `SCRIPT FLUSH` or another node can come between. `EVAL`
    /// brings the text along, and the server remembers it.
    #[expect(clippy::manual_async_fn, reason = "see `connection`")]
    pub(super) fn run<'a>(
        &'a self,
        connection: &'a Connection,
        key: &'a Key,
        arguments: &'a (impl ToRedisArgs + Sync),
        wait: Option<Wait>,
        by: Instant,
    ) -> impl Future<Output = Result<Reply, RedisStoreError>> + Send + 'a {
        async move {
            let by_hash = |empty| Self::command(empty, "EVALSHA", &self.hash, key, arguments);
            match connection.send(key, &by_hash, wait, by).await {
                Err(error) if error.code() == Some("NOSCRIPT") => {
                    let by_text = |empty| Self::command(empty, "EVAL", self.text, key, arguments);
                    let reply = Box::pin(connection.send(key, &by_text, wait, by)).await;
                    reply.map_err(|later| later.after(&error))
                }
                reply => reply,
            }
        }
    }

    fn command(
        empty: Option<Cmd>,
        name: &str,
        script: &str,
        key: &Key,
        arguments: &impl ToRedisArgs,
    ) -> Cmd {
        let mut command = command(empty, name, script.len() + key.as_str().len());
        command.arg(script).arg(1).arg(key.as_str()).arg(arguments);
        command
    }
}

/// A script that starts with `entry.lua`.
macro_rules! on_entry {
    ($file:literal) => {
        LazyLock::new(|| Script::new(concat!(include_str!("entry.lua"), include_str!($file))))
    };
}

pub(super) static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("acquire.lua")));
pub(super) static TAKE_OVER: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("take_over.lua")));
pub(super) static RENEW: LazyLock<Script> = on_entry!("renew.lua");
pub(super) static COMPLETE: LazyLock<Script> = on_entry!("complete.lua");
pub(super) static RELEASE: LazyLock<Script> = on_entry!("release.lua");
pub(super) static FORGET: LazyLock<Script> = on_entry!("forget.lua");
