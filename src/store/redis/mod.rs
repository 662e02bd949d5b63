//! The store that many processes share: Redis.

mod connection;
mod error;
mod own;
mod script;
mod server;
mod value;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{Value, aio::ConnectionLike};
use tokio::time::Instant;

use self::{
    connection::Connection,
    own::Own,
    script::Script,
    server::Server,
    value::{lasting, millis, stored, yes_or_no},
};
use super::{Acquire, Entry, LeaseStore, Record, Release, Token};
use crate::Key;

pub use self::error::RedisStoreError;

/// A [`LeaseStore`] in [Redis](https://redis.io), for any number of processes.
///
/// ```
/// use tower_webhook_dedup::RedisStore;
///
/// # fn main() -> Result<(), tower_webhook_dedup::RedisStoreError> {
/// let store = RedisStore::open("redis://127.0.0.1:6379")?;
/// # Ok(())
/// # }
/// ```
///
/// Each event is one key, which always has an expiry, and each step is one command or script on
/// that key alone: [`SET key value NX PX ttl GET`][SET] to acquire, a script for all else. Scripts
/// are sent by hash, and as text where the server does not know them, so that nothing needs to be
/// loaded, and `SCRIPT FLUSH` does no harm. Durations are whole milliseconds in Redis: at least
/// 1 ms, at most 100 years.
///
/// Clones share their connection.
///
/// # Connections
///
/// A store made with [`open`](Self::open) makes a connection with the first call, and shares it
/// between all calls. Connecting takes at most 2 seconds, but no call waits for it longer than its
/// own deadline. After a connect that failed there is a pause, of 50 ms at first and 1 s at most,
/// during which calls fail at once with the same error. A connection that breaks, or whose server
/// says that it is a replica, or that leaves 3 commands in a row unanswered, is replaced.
///
/// A store made with [`new`](Self::new) uses the connection that it is given, and cannot replace
/// it.
///
/// In both cases a command under which the connection broke is sent once more within the deadline:
/// each step is idempotent for its token.
///
/// The store needs a [tokio] runtime with time and I/O enabled, when it is called, not when it is
/// made. A runtime may end, and another go on with the same store.
///
/// # The server
///
/// Redis 7.0 or newer is recommended; Valkey is fine. Where the server refuses `NX` together with
/// `GET`, as older ones do, a script acquires instead.
///
/// Set [`maxmemory-policy`][eviction] to `noeviction`: a server that evicts keys may evict leases and
/// records, and events run twice. [Replication is asynchronous][replication], so a failover can
/// lose the last of them.
///
/// All that the user of the store needs, and `+select` where the URL names a database:
///
/// ```text
/// ACL SETUSER webhooks on >secret ~webhook:lock:* resetchannels -@all +set +get +eval +evalsha +del +pexpire
/// ```
///
/// [SET]: https://redis.io/docs/latest/commands/set/
/// [eviction]: https://redis.io/docs/latest/develop/reference/eviction/
/// [replication]: https://redis.io/docs/latest/operate/oss_and_stack/management/replication/
#[derive(Clone, Debug)]
pub struct RedisStore {
    connection: Connection,
    /// The server refused NX with GET.
    old_server: Arc<AtomicBool>,
}

impl RedisStore {
    /// How often an acquire looks again, when what it meant to take over has changed meanwhile.
    const ROUNDS: u32 = 8;

    /// A store that makes its own connections to one server.
    ///
    /// Does not connect, block or need a runtime: the first call connects. The URL is
    /// `redis://[user][:password@]host[:port][/db]`, or for a Unix socket
    /// `redis+unix:///path[?db=0&user=name&pass=password]`. The port is 6379 and the database 0
    /// unless given; what has a meaning in URLs is percent-encoded in user and password.
    ///
    /// # Errors
    ///
    /// If the URL is malformed, with the kind [`Unreachable`](crate::StoreErrorKind::Unreachable).
    /// The error does not repeat the URL.
    pub fn open(url: &str) -> Result<Self, RedisStoreError> {
        let own = Own::new(Server::from_url(url)?);
        Ok(Self::over(Connection::Own(Arc::new(own))))
    }

    /// A store over a connection of yours: a [`MultiplexedConnection`], a `ConnectionManager`, or
    /// whatever else can be cloned and shared.
    ///
    /// The store cannot replace it: a `MultiplexedConnection` that breaks stays broken, and a
    /// `ConnectionManager` makes a new one when it breaks, but not when it stops answering or the
    /// server becomes a replica. A response timeout of the connection (500 ms unless changed) ends
    /// calls whose deadline is later.
    ///
    /// [`MultiplexedConnection`]: redis::aio::MultiplexedConnection
    #[must_use]
    pub fn new<C>(connection: C) -> Self
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self::over(Connection::Given(Arc::new(connection)))
    }

    fn over(connection: Connection) -> Self {
        Self {
            connection,
            old_server: Arc::default(),
        }
    }

    async fn run(
        &self,
        script: &Script,
        key: &Key,
        arguments: &[&str],
        by: Instant,
    ) -> Result<Value, RedisStoreError> {
        script.run(&self.connection, key, arguments, by).await
    }

    /// Writes the value if there is none, else returns the one there is.
    async fn set_or_get(
        &self,
        key: &Key,
        running: &str,
        lease: &str,
        by: Instant,
    ) -> Result<Value, RedisStoreError> {
        if !self.old_server.load(Ordering::Relaxed) {
            let mut set = redis::cmd("SET");
            set.arg(key.as_str()).arg(running);
            set.arg("NX").arg("PX").arg(lease).arg("GET");
            match self.connection.send(&set, by).await {
                Err(error) if error.is_syntax() => self.old_server.store(true, Ordering::Relaxed),
                reply => return reply,
            }
        }
        let arguments = [running, lease];
        self.run(&script::ACQUIRE, key, &arguments, by).await
    }
}

impl LeaseStore for RedisStore {
    type Error = RedisStoreError;

    async fn acquire(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Result<Acquire, RedisStoreError> {
        let lease = lasting(lease);
        let px = millis(lease);
        let running = Entry::running(token, lease, 1).to_string();
        let mut reply = self.set_or_get(key, &running, &px, by).await?;
        for _ in 0..Self::ROUNDS {
            let Some((entry, text)) = stored(reply)? else {
                return Ok(Acquire::Acquired { attempt: 1 });
            };
            let attempts = match entry {
                // The reply to an earlier try got lost, or the last round took over.
                Entry::Running {
                    token: holder,
                    attempt,
                    ..
                } if holder == token => return Ok(Acquire::Acquired { attempt }),
                Entry::Running { since, lease, .. } => {
                    return Ok(Acquire::InFlight {
                        since,
                        at_most: lease,
                    });
                }
                Entry::Done { record, .. } => return Ok(Acquire::Done(record)),
                Entry::Failed { attempts, .. } => attempts,
            };
            let running = Entry::running(token, lease, attempts.saturating_add(1)).to_string();
            let arguments = [&*text, &*running, &*px];
            reply = self.run(&script::TAKE_OVER, key, &arguments, by).await?;
        }
        Err(RedisStoreError::timed_out(
            false,
            "the entry changed each time it was looked at",
        ))
    }

    async fn renew(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Result<bool, RedisStoreError> {
        let lease = lasting(lease);
        let running = Entry::running(token, lease, 1).to_string();
        let arguments = [&*token.to_string(), &*running, &*millis(lease)];
        yes_or_no(&self.run(&script::RENEW, key, &arguments, by).await?)
    }

    async fn complete(
        &self,
        key: &Key,
        token: Token,
        record: &Record,
        retention: Duration,
        by: Instant,
    ) -> Result<bool, RedisStoreError> {
        let record = record.clone();
        let done = Entry::Done { token, record }.to_string();
        let px = millis(lasting(retention));
        let arguments = [&*token.to_string(), &*done, &*px];
        yes_or_no(&self.run(&script::COMPLETE, key, &arguments, by).await?)
    }

    async fn release(
        &self,
        key: &Key,
        token: Token,
        release: Release,
        keep: Duration,
        by: Instant,
    ) -> Result<bool, RedisStoreError> {
        let (counts_as, status) = match release {
            Release::Failed { status } => ("1", status),
            Release::Abandoned => ("0", None),
        };
        let arguments = [
            &*token.to_string(),
            counts_as,
            &*value::now(),
            &*status.map_or_else(|| "-".to_owned(), |status| status.to_string()),
            &*millis(lasting(keep)),
        ];
        yes_or_no(&self.run(&script::RELEASE, key, &arguments, by).await?)
    }

    async fn inspect(&self, key: &Key, by: Instant) -> Result<Option<Entry>, RedisStoreError> {
        let mut get = redis::cmd("GET");
        let reply = self.connection.send(get.arg(key.as_str()), by).await?;
        Ok(stored(reply)?.map(|(entry, _)| entry))
    }

    async fn forget(&self, key: &Key, force: bool, by: Instant) -> Result<bool, RedisStoreError> {
        let arguments = [if force { "1" } else { "0" }];
        yes_or_no(&self.run(&script::FORGET, key, &arguments, by).await?)
    }
}
