//! How to get into servers.

use std::time::Duration;

use redis::{Client, ConnectionInfo};

#[cfg(any(feature = "cluster", feature = "sentinel"))]
use super::server::Server;
use super::{error::RedisStoreError, server::malformed};

/// What all servers behind one URL have in common: the nodes of a cluster, or the servers that
/// Sentinels may name.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) login: Login,
    pub(super) db: i64,
    pub(super) tls: bool,
    pub(super) connect_timeout: Duration,
    #[cfg(feature = "tls")]
    pub(super) certificates: redis::TlsCertificates,
}

#[derive(Clone, Default)]
pub(super) struct Login {
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
}

impl Access {
    /// The server at `host:port`.
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    pub(super) fn server(&self, address: &str) -> Result<Server, RedisStoreError> {
        let scheme = if self.tls { "rediss" } else { "redis" };
        Server::at(format!("{scheme}://{address}"), self)
    }

    /// The server that another one names.
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    pub(super) fn named(&self, address: &str) -> Result<Server, RedisStoreError> {
        self.server(address).map_err(|_| {
            RedisStoreError::unreachable(format!("{address} is not the address of a server"))
        })
    }

    /// The same with another login, and without a database.
    #[cfg(feature = "sentinel")]
    pub(super) fn with(&self, login: Login) -> Self {
        let mut access = self.clone();
        (access.login, access.db) = (login, 0);
        access
    }

    pub(super) fn client(&self, info: ConnectionInfo) -> Result<Client, RedisStoreError> {
        #[cfg(feature = "tls")]
        if self.tls {
            // Its errors are about certificates, and quote none.
            return Client::build_with_tls(info, self.certificates.clone())
                .map_err(|error| RedisStoreError::misconfigured(format!("TLS: {error}")));
        }
        Client::open(info).map_err(|error| malformed(&error))
    }

    /// What has to be done before a connection is made.
    ///
    /// rustls panics where no cryptography is chosen for the process, or more than one could be.
    /// An application that chooses does so when it starts, which is before the first connection;
    /// for all others it is ring.
    #[cfg(feature = "tls")]
    pub(super) fn prepare(&self) {
        if self.tls && rustls::crypto::CryptoProvider::get_default().is_none() {
            // An error means that somebody else was faster, which is just as well.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_self, reason = "the other one needs it")]
    pub(super) const fn prepare(&self) {}
}

/// `host:port`, as it stands in a URL.
#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(super) fn address(host: &str, port: &str) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}
