//! Where a connection leads, and how it is made.

use std::{fmt, time::Duration};

#[cfg(feature = "sentinel")]
use super::sentinel::Sentinels;
use super::{error::RedisStoreError, server::Server, wire::Wire};

pub(super) enum Target {
    Server(Box<Server>),
    /// The server that is the primary at the moment.
    #[cfg(feature = "sentinel")]
    Primary(Sentinels),
}

impl Target {
    /// A connection, and where it leads if that may change.
    pub(super) async fn connect(&self) -> Result<(Wire, Option<String>), RedisStoreError> {
        match self {
            Self::Server(server) => Ok((server.connect().await?, None)),
            #[cfg(feature = "sentinel")]
            Self::Primary(sentinels) => {
                let (connection, address) = sentinels.connect().await?;
                Ok((connection, Some(address)))
            }
        }
    }

    /// Why a connection that leads there should be given up, if it should.
    #[cfg_attr(
        not(feature = "sentinel"),
        expect(clippy::unused_async, unused_variables, reason = "one place")
    )]
    pub(super) async fn has_moved(&self, from: &str) -> Option<RedisStoreError> {
        match self {
            Self::Server(_) => None,
            #[cfg(feature = "sentinel")]
            Self::Primary(sentinels) => sentinels.has_replaced(from).await,
        }
    }

    /// How long connecting may take.
    pub(super) const fn connect_timeout(&self) -> Duration {
        match self {
            Self::Server(server) => server.connect_timeout(),
            #[cfg(feature = "sentinel")]
            Self::Primary(sentinels) => sentinels.connect_timeout(),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(server) => server.fmt(f),
            #[cfg(feature = "sentinel")]
            Self::Primary(sentinels) => sentinels.fmt(f),
        }
    }
}
