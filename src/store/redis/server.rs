//! Where a server is, and how to log in there.

use std::{fmt, time::Duration};

use redis::{ConnectionAddr, IntoConnectionInfo, RedisError, Value};
use tokio::time::timeout;

use super::{access::Access, error::RedisStoreError, stream, wire::Wire};
use crate::{StoreError, StoreErrorKind};

/// A server and how to get into it. Shown without the credentials.
pub(super) struct Server {
    address: ConnectionAddr,
    access: Access,
}

impl Server {
    /// The server at `redis://…` or `redis+unix://…`. The credentials there do not count.
    pub(super) fn at(
        url: impl IntoConnectionInfo,
        access: &Access,
    ) -> Result<Self, RedisStoreError> {
        let info = url
            .into_connection_info()
            .map_err(|error| malformed(&error))?;
        Ok(Self {
            address: info.addr().clone(),
            access: access.clone(),
        })
    }

    #[cfg(feature = "sentinel")]
    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }

    /// How long connecting may take, name look-up and login included.
    pub(super) const fn connect_timeout(&self) -> Duration {
        self.access.connect_timeout
    }

    /// Connects and logs in.
    pub(super) async fn connect(&self) -> Result<Wire, RedisStoreError> {
        let limit = self.connect_timeout();
        let connected = match timeout(limit, self.open()).await {
            Ok(connected) => connected,
            Err(_) => Err(RedisStoreError::connect_took_longer_than(limit)),
        };
        connected.map_err(|error| error.connecting_to(&self.address.to_string()))
    }

    async fn open(&self) -> Result<Wire, RedisStoreError> {
        let stream = stream::connect(&self.address, &self.access).await;
        let stream = stream.map_err(|error| RedisStoreError::new(&error.into()))?;
        let wire = Wire::over(stream, self.access.settings);
        self.log_in(&wire).await?;
        if self.access.db != 0 {
            let select = redis::cmd("SELECT").arg(self.access.db).take();
            wire.ask(&select).await?;
        }
        self.introduce(&wire).await?;
        Ok(wire)
    }

    /// Logs in. The `redis` crate would do so too, but drops what the server says.
    async fn log_in(&self, wire: &Wire) -> Result<(), RedisStoreError> {
        let login = &self.access.login;
        let Some(password) = &login.password else {
            return Ok(());
        };
        let mut auth = redis::cmd("AUTH");
        if let Some(username) = &login.username {
            auth.arg(username);
        }
        let reply = wire.send(auth.arg(password).take(), false).await;
        let Err(error) = reply.and_then(Value::extract_error) else {
            return Ok(());
        };
        let Some(code) = error.code() else {
            return Err(RedisStoreError::new(&error));
        };
        match error.detail() {
            // Servers older than 6.0 know no users.
            Some(detail) if login.username.is_some() && detail.contains("number of arguments") => {
                let again = wire.ask(redis::cmd("AUTH").arg(password)).await;
                again.map(drop).map_err(RedisStoreError::refusing_login)
            }
            // A server without AUTH repeats the arguments of the unknown command.
            Some(detail) if !detail.contains(password.as_str()) => {
                Err(RedisStoreError::said(code, detail).refusing_login())
            }
            _ => Err(RedisStoreError::said(code, "the server refused AUTH").refusing_login()),
        }
    }

    /// Gives the server a name for this client, which an operator finds in `CLIENT LIST`, and so
    /// makes sure that it answers at all. That it knows the command does not matter.
    async fn introduce(&self, wire: &Wire) -> Result<(), RedisStoreError> {
        let mut name = redis::cmd("CLIENT");
        name.arg("SETINFO")
            .arg("LIB-NAME")
            .arg(env!("CARGO_PKG_NAME"));
        match wire.ask(&name).await {
            Err(error)
                if error.kind() != StoreErrorKind::BadReply && error.code() != Some("NOPERM") =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

/// The details of the error may repeat parts of the URL, and with them the password. Its text may
/// say no more than that the URL was not understood, so this tells what one looks like.
pub(super) fn malformed(error: &RedisError) -> RedisStoreError {
    let text = error.to_string();
    let why = match text.split(" - ").next() {
        Some(why) if error.detail().is_none() => format!(" ({why})"),
        _ => String::new(),
    };
    RedisStoreError::misconfigured(format!(
        "the URL of the server is malformed{why}: it should be as \
         redis://[user][:password@]host[:port][/db], and user and password percent-encoded"
    ))
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = if self.access.is_over_tls() {
            " over TLS"
        } else {
            ""
        };
        write!(f, "{}/{}{over}", self.address, self.access.db)
    }
}
