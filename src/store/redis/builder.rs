//! What a URL cannot say.

use std::{fmt, sync::Arc, time::Duration};

#[cfg(feature = "sentinel")]
use super::access::Login;
#[cfg(feature = "cluster")]
use super::cluster::Cluster;
#[cfg(feature = "sentinel")]
use super::sentinel::Sentinels;
#[cfg(feature = "tls")]
use super::tls::Certificates;
use super::{
    RedisStore,
    access::Access,
    connection::Connection,
    driver::Settings,
    error::RedisStoreError,
    own::Own,
    replicas::Replicas,
    server::Server,
    target::Target,
    url::{Place, Url},
};

/// Makes a [`RedisStore`] of which a URL does not say everything.
///
/// ```
/// use std::time::Duration;
/// use tower_webhook_dedup::RedisStore;
///
/// # fn main() -> Result<(), tower_webhook_dedup::RedisStoreError> {
/// let store = RedisStore::builder("redis://10.0.0.7")
///     .connect_timeout(Duration::from_millis(500))
///     .min_replicas(1, Duration::from_millis(100))
///     .open()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct RedisStoreBuilder {
    url: String,
    connect_timeout: Duration,
    settings: Settings,
    replicas: Option<(u32, Duration)>,
    #[cfg(feature = "sentinel")]
    sentinel_login: Login,
    #[cfg(feature = "tls")]
    certificates: Certificates,
}

impl RedisStoreBuilder {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            connect_timeout: Duration::from_secs(2),
            settings: Settings {
                coalesce: true,
                busy_poll: Duration::ZERO,
            },
            replicas: None,
            #[cfg(feature = "sentinel")]
            sentinel_login: Login::default(),
            #[cfg(feature = "tls")]
            certificates: Certificates::default(),
        }
    }

    /// How long connecting may take: looking up names, asking Sentinels, TLS and login included.
    ///
    /// Defaults to 2 seconds. Calls do not wait for it longer than their own deadline.
    ///
    /// # Panics
    ///
    /// If it is zero.
    #[track_caller]
    pub const fn connect_timeout(mut self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "the connect timeout must not be zero");
        self.connect_timeout = limit;
        self
    }

    /// Whether the commands that many calls have at the same time go out in one write.
    ///
    /// On by default: under load, both sides do much less for each command. A command that is alone
    /// on its connection goes out at once; the others wait until the tasks that were ready before
    /// them have run, which takes no longer than they do. Each remains a command of its own, with
    /// its own deadline, reply and error.
    pub const fn coalesce(mut self, coalesce: bool) -> Self {
        self.settings.coalesce = coalesce;
        self
    }

    /// On a runtime with one worker: for how long after a command went out the thread looks for its
    /// reply, again and again, instead of sleeping until it comes. It is what [`SO_BUSY_POLL`][socket]
    /// is to a socket.
    ///
    /// Zero by default. A thread that has slept takes some tens of microseconds to go on, more in a
    /// virtual machine: where requests come one at a time, that is a good part of what they wait for.
    /// All other tasks of the thread, its timers and its sockets have their turn meanwhile; what is
    /// spent is CPU time, up to this long for each command that is alone on its connection. So it is
    /// for a server near its Redis, with a core to spare: where a round trip takes 60 µs, 150 µs are
    /// plenty; where it takes 200, they are for nothing.
    ///
    /// It does nothing on a runtime with several workers, as that of a plain `#[tokio::main]` is: they
    /// would wake each other each time, and be slower than without. So it is for tokio's
    /// `current_thread` and `worker_threads(1)`, and for a store that one such runtime uses alone.
    /// The connections of [`min_replicas`](Self::min_replicas) and those to Sentinels do without.
    ///
    /// [socket]: https://man7.org/linux/man-pages/man7/socket.7.html
    pub const fn busy_poll(mut self, at_most: Duration) -> Self {
        self.settings.busy_poll = at_most;
        self
    }

    /// A lease is taken, and an event is done, only when so many replicas have it in memory:
    /// [`WAIT`][WAIT]. If they do not within the time limit, or within the deadline of the call,
    /// acquiring gives the lease back and fails, as completing does, with the kind
    /// [`ReadOnly`](crate::StoreErrorKind::ReadOnly).
    ///
    /// By default the primary alone is enough, and a failover can lose what it wrote last. With
    /// this, a failover loses it only if it promotes another replica than those that confirmed: to
    /// be sure, ask for all of them. It costs the way to the replica and back for each acquire and
    /// each completion, and connections of their own, 16 at most for each server. Renewals and
    /// releases are not confirmed.
    ///
    /// # Panics
    ///
    /// If the number or the time is zero.
    ///
    /// [WAIT]: https://redis.io/docs/latest/commands/wait/
    #[track_caller]
    pub const fn min_replicas(mut self, replicas: u32, at_most: Duration) -> Self {
        assert!(replicas > 0, "no replica would have to confirm");
        assert!(!at_most.is_zero(), "there must be some time to wait");
        self.replicas = Some((replicas, at_most));
        self
    }

    /// The credentials for the Sentinels. The URL has those for the servers they watch.
    ///
    /// By default no login is sent to Sentinels. Where they have a password but no users, the
    /// username is `default`.
    #[cfg(feature = "sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sentinel")))]
    pub fn sentinel_login(mut self, username: &str, password: &str) -> Self {
        self.sentinel_login = Login {
            username: Some(username.to_owned()),
            password: Some(password.to_owned()),
        };
        self
    }

    /// The authorities whose certificates are trusted, in PEM, instead of those that the system
    /// trusts.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn authorities(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.authorities = Some(pem.into());
        self
    }

    /// The certificate with which we show who we are, and its private key, both in PEM.
    ///
    /// The certificate is the first one there, and those that lead from it to its authority follow.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    /// The store. Does not connect, block or need a runtime.
    ///
    /// # Errors
    ///
    /// As [`RedisStore::open`], and if a certificate cannot be read, or is not needed since the
    /// URL does not ask for TLS.
    pub fn open(self) -> Result<RedisStore, RedisStoreError> {
        let url = Url::parse(&self.url)?;
        #[cfg(feature = "tls")]
        if !url.tls && !self.certificates.is_empty() {
            return Err(RedisStoreError::misconfigured(
                "there are certificates, but the URL does not ask for TLS: rediss://",
            ));
        }
        let access = Access {
            login: url.login.clone(),
            db: url.db,
            connect_timeout: self.connect_timeout,
            settings: self.settings,
            #[cfg(feature = "tls")]
            tls: url.tls.then(|| self.certificates.read()).transpose()?,
        };
        let mut store = RedisStore::over(self.connection(&url.place, &access)?);
        if let Some((count, at_most)) = self.replicas {
            let access = access.without_busy_poll();
            let connect = || self.connection(&url.place, &access);
            let connections = (0..Replicas::CONNECTIONS).map(|_| connect());
            let connections = connections.collect::<Result<_, _>>()?;
            store.replicas = Some(Arc::new(Replicas::new(count, at_most, connections)));
        }
        Ok(store)
    }

    fn connection(&self, place: &Place, access: &Access) -> Result<Connection, RedisStoreError> {
        let target = match place {
            Place::Server(url) => Target::Server(Box::new(Server::at(url.as_str(), access)?)),
            #[cfg(feature = "sentinel")]
            Place::Sentinel { sentinels, service } => Target::Primary(Sentinels::new(
                sentinels,
                service.clone(),
                self.sentinel_login.clone(),
                access.clone(),
            )?),
            #[cfg(feature = "cluster")]
            Place::Cluster(nodes) => {
                let cluster = Cluster::new(nodes, access.clone())?;
                return Ok(Connection::Cluster(Arc::new(cluster)));
            }
        };
        Ok(Connection::Own(Arc::new(Own::new(target))))
    }
}

impl fmt::Debug for RedisStoreBuilder {
    /// Without the URL and the certificates, which are secrets or hold some.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("connect_timeout", &self.connect_timeout)
            .field("coalesce", &self.settings.coalesce)
            .field("busy_poll", &self.settings.busy_poll)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}
