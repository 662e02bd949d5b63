//! How to get into servers.

use std::time::Duration;

use super::driver::Settings;
#[cfg(feature = "tls")]
use super::tls::Tls;
#[cfg(any(feature = "cluster", feature = "sentinel"))]
use super::{error::RedisStoreError, server::Server};

/// What all servers behind one URL have in common: the nodes of a cluster, or the servers that
/// Sentinels may name.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) login: Login,
    pub(super) db: i64,
    pub(super) connect_timeout: Duration,
    pub(super) settings: Settings,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Tls>,
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
        Server::at(format!("redis://{address}"), self)
    }

    #[cfg(feature = "tls")]
    pub(super) const fn is_over_tls(&self) -> bool {
        self.tls.is_some()
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_self, reason = "the other one needs it")]
    pub(super) const fn is_over_tls(&self) -> bool {
        false
    }

    /// The server that another one names.
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    pub(super) fn named(&self, address: &str) -> Result<Server, RedisStoreError> {
        self.server(address).map_err(|_| {
            RedisStoreError::unreachable(format!("{address} is not the address of a server"))
        })
    }

    /// The same for connections on which nobody waits for microseconds.
    pub(super) fn without_busy_poll(&self) -> Self {
        let mut access = self.clone();
        access.settings.busy_poll = Duration::ZERO;
        access
    }

    /// The same with another login, and without a database.
    #[cfg(feature = "sentinel")]
    pub(super) fn with(&self, login: Login) -> Self {
        let mut access = self.without_busy_poll();
        (access.login, access.db) = (login, 0);
        access
    }
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
