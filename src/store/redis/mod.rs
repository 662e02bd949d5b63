//! The store that many processes share: Redis.

mod access;
mod attempt;
mod builder;
mod busy_poll;
mod check;
#[cfg(feature = "cluster")]
mod cluster;
mod connection;
mod driver;
mod early_timer;
mod error;
mod finding;
mod own;
mod queue;
mod replicas;
mod replies;
mod script;
mod sending;
#[cfg(feature = "sentinel")]
mod sentinel;
mod server;
#[cfg(feature = "cluster")]
mod slots;
mod steps;
mod stream;
mod target;
#[cfg(feature = "tls")]
mod tls;
mod url;
mod value;
mod wire;

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use redis::aio::ConnectionLike;
use tokio::time::Instant;

use self::{connection::Connection, replicas::Replicas, steps::Steps};
use super::{Acquire, Entry, LeaseStore, Record, Release, Token};
use crate::Key;

pub use self::{builder::RedisStoreBuilder, error::RedisStoreError, finding::Finding};

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
/// between all calls; in a cluster, one for each node that it needs. Connecting takes at most 2
/// seconds, or [as told](RedisStoreBuilder::connect_timeout), but no call waits for it longer than
/// its own deadline. After a connect that failed there is a pause, of 50 ms at first and 1 s at
/// most, during which calls fail at once with the same error. A connection that breaks, or whose
/// server says that it is a replica, or that leaves 3 commands in a row unanswered, is replaced.
///
/// Commands that many requests have at the same time go out in one write, up to 64 of them, and one
/// that is alone goes out at once. Each keeps its own deadline, reply and error; one
/// that was given up before it was written is not sent.
/// [`coalesce(false)`](RedisStoreBuilder::coalesce) turns that off. Where requests come one at a
/// time, [`busy_poll`](RedisStoreBuilder::busy_poll) has them wait less for a Redis that is near.
/// Neither is done on connections that the store is given.
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
/// # One server, a cluster, Sentinels
///
/// - **Redis Cluster** (feature `cluster`): each command goes to the node that has its key, and
///   follows `MOVED` and `ASK`, so that slots may move at any time. Where the keys are is asked
///   with the first call, after a redirect, and when a node fails; nodes in order are not held up
///   meanwhile. The id of an event never chooses its slot: braces in it are encoded. With
///   `cluster-require-full-coverage no` a node that fails takes none but its own events down.
/// - **Sentinel** (feature `sentinel`): all Sentinels are asked at once, and a server that they
///   name has to say itself that it is a primary. While the store is in use, they are asked again
///   each second whether it still is: a primary that was replaced does not know it for some
///   seconds, and takes writes meanwhile that it will forget.
/// - **TLS** (feature `tls`): rustls, with the authorities that the system trusts, or
///   [those named](RedisStoreBuilder::authorities). If the application has not installed a
///   cryptography provider of rustls by the first connection, it is ring.
/// - [`new`](Self::new) takes the `redis` crate's own connection to a cluster as well. It repeats commands
///   by itself, which does no harm, but does not look for another primary while one is silent.
///
/// # The server
///
/// Redis 7.0 or newer is recommended; Valkey is fine. Where the server refuses `NX` together with
/// `GET`, as older ones do, a script acquires instead. [`check`](Self::check) tells at the start
/// whether all of the following is as it should be.
///
/// **Rights.** All that the user of the store needs:
///
/// ```text
/// ACL SETUSER webhooks on >secret ~webhook:lock:* resetchannels -@all +set +get +eval +evalsha +del +pexpire
/// ```
///
/// and `+select` where the URL names a database, `+cluster|slots +asking` in a cluster, `+role`
/// behind Sentinels (without it a server is believed to be the primary until a write fails), and
/// `+wait` for [`min_replicas`](RedisStoreBuilder::min_replicas).
///
/// **Eviction.** Set [`maxmemory-policy`][eviction] to `noeviction`: a server that evicts keys may
/// evict leases and records, and events run twice. When it is full it refuses instead, and so does
/// the layer; failed runs are still released.
///
/// **Persistence.** A server that restarts empty has forgotten what was done, and runs it again if
/// it comes again; leases that are running are taken again by their owners. `appendonly yes` with
/// `appendfsync everysec` loses a second at most.
///
/// **Failover.** [Replication is asynchronous][replication]: what the primary wrote last may not
/// be on the replica that takes its place. A lost lease is taken again by its owner with the next
/// renewal, within a third of the lease, if no duplicate is faster and runs beside it; an event
/// whose record was lost runs once more if it comes again.
/// [`min_replicas`](RedisStoreBuilder::min_replicas) closes the gap, at the price of a way to the
/// replica and back for each acquire and each completion. Until another server has taken over,
/// events are refused: with 1 second for `down-after-milliseconds` and `cluster-node-timeout`, for 2
/// to 3 seconds after a primary was killed. `SENTINEL FAILOVER` refuses none, but the old primary
/// goes on taking writes that are lost for some 2 seconds: of 500 events a second, some 900 records.
/// `CLUSTER FAILOVER` does neither. The test `redis_failover` measures all of these.
///
/// **Size.** An event that is done takes at most 300 bytes by `MEMORY USAGE`, with a key of 114 bytes
/// (endpoint, id, hash of the body), and at most 400 with the tables around it, for as long as
/// records are kept: a million events a day, kept for 4 days, are up to 1.6 GB.
///
/// [SET]: https://redis.io/docs/latest/commands/set/
/// [eviction]: https://redis.io/docs/latest/develop/reference/eviction/
/// [replication]: https://redis.io/docs/latest/operate/oss_and_stack/management/replication/
#[derive(Clone, Debug)]
pub struct RedisStore {
    connection: Connection,
    replicas: Option<Arc<Replicas>>,
    /// The server refused NX with GET.
    old_server: Arc<AtomicBool>,
}

impl RedisStore {
    /// A store that makes its own connections.
    ///
    /// Does not connect, block or need a runtime: the first call connects.
    ///
    /// | URL | what is there |
    /// |---|---|
    /// | `redis://[user][:password@]host[:port][/db]` | a server |
    /// | `redis+unix:///path[?db=0&user=name&pass=password]` | a server behind a Unix socket |
    /// | `redis+cluster://[user][:password@]host[:port][,host[:port]…]` | a Redis Cluster, some of whose nodes these are; feature `cluster` |
    /// | `redis+sentinel://[user][:password@]host[:port][,host[:port]…]/service[/db]` | Sentinels, and the name of the service that they watch; feature `sentinel` |
    ///
    /// `rediss://`, `rediss+cluster://` and `rediss+sentinel://` are the same over TLS; feature
    /// `tls`. The port is 6379, or 26379 for a Sentinel, and the database 0 unless given; what has
    /// a meaning in URLs is percent-encoded in user, password and service. User and password are
    /// those for the servers, all nodes of a cluster alike; [builder](Self::builder) has the rest.
    ///
    /// # Errors
    ///
    /// If the URL is malformed or needs a feature that is off, with the kind
    /// [`Misconfigured`](crate::StoreErrorKind::Misconfigured). The error does not repeat the URL.
    pub fn open(url: &str) -> Result<Self, RedisStoreError> {
        Self::builder(url).open()
    }

    /// For a store of which the URL does not say everything: certificates, replicas that have to
    /// confirm, the credentials for Sentinels, the connect timeout, how commands are sent.
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url)
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

    /// Looks whether the servers are fit for the store: whether they can be reached, let its user
    /// do what it does, keep what they are given, and are as recent as they should be.
    ///
    /// For the log at the start, in a task of its own if that must not wait some seconds for a
    /// silent server. It changes nothing, and nothing depends on it: an empty list is good, and
    /// what cannot be found out is in the list. Under an ACL that allows nothing but what the store
    /// needs, that is the version, the eviction policy, persistence and the clock; `+info +time
    /// +config|get` would tell.
    ///
    /// ```no_run
    /// # async fn check(store: tower_webhook_dedup::RedisStore) {
    /// for finding in store.check().await {
    ///     eprintln!("redis: {finding}");
    /// }
    /// # }
    /// ```
    pub async fn check(&self) -> Vec<Finding> {
        let needed = self.replicas.as_ref().map(|replicas| replicas.count());
        check::check(&self.connection, needed).await
    }

    fn over(connection: Connection) -> Self {
        Self {
            connection,
            replicas: None,
            old_server: Arc::default(),
        }
    }

    fn steps(&self, by: Instant) -> Steps<'_> {
        Steps {
            connection: &self.connection,
            old_server: &self.old_server,
            replicas: None,
            by,
        }
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
        if let Some(replicas) = &self.replicas {
            let lease = (key, token, lease);
            return Box::pin(replicas.acquire(&self.old_server, lease, by)).await;
        }
        let (acquire, _) = self.steps(by).acquire(key, token, lease).await?;
        Ok(acquire)
    }

    async fn renew(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Result<bool, RedisStoreError> {
        let (renewed, _) = self.steps(by).renew(key, token, lease).await?;
        Ok(renewed)
    }

    async fn complete(
        &self,
        key: &Key,
        token: Token,
        record: &Record,
        retention: Duration,
        by: Instant,
    ) -> Result<bool, RedisStoreError> {
        if let Some(replicas) = &self.replicas {
            let (lease, done) = ((key, token), (record, retention));
            return Box::pin(replicas.complete(&self.old_server, lease, done, by)).await;
        }
        let steps = self.steps(by);
        let (written, _) = steps.complete(key, token, record, retention).await?;
        Ok(written)
    }

    async fn release(
        &self,
        key: &Key,
        token: Token,
        release: Release,
        keep: Duration,
        by: Instant,
    ) -> Result<bool, RedisStoreError> {
        self.steps(by).release(key, token, release, keep).await
    }

    async fn inspect(&self, key: &Key, by: Instant) -> Result<Option<Entry>, RedisStoreError> {
        self.steps(by).inspect(key).await
    }

    async fn forget(&self, key: &Key, force: bool, by: Instant) -> Result<bool, RedisStoreError> {
        self.steps(by).forget(key, force).await
    }
}
