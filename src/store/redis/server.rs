//! Where a server is, and how to log in there.

use std::{fmt, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, Value, aio::MultiplexedConnection,
};
use tokio::time::timeout;

use super::{access::Access, error::RedisStoreError};
use crate::{StoreError, StoreErrorKind};

/// A server and how to get into it. Shown without the credentials.
pub(super) struct Server {
    client: Client,
    address: String,
    access: Access,
}

impl Server {
    /// How many commands may wait for the socket; the client's 50 make a burst wait in line.
    const SEND_QUEUE: usize = 1024;

    /// The server at `redis://…` or `redis+unix://…`. The credentials there do not count.
    pub(super) fn at(
        url: impl IntoConnectionInfo,
        access: &Access,
    ) -> Result<Self, RedisStoreError> {
        let info = url
            .into_connection_info()
            .map_err(|error| malformed(&error))?;
        Ok(Self {
            address: info.addr().to_string(),
            client: access.client(without_login(&info))?,
            access: access.clone(),
        })
    }

    #[cfg(feature = "sentinel")]
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// How long connecting may take, name look-up and login included.
    pub(super) const fn connect_timeout(&self) -> Duration {
        self.access.connect_timeout
    }

    /// Connects and logs in.
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, RedisStoreError> {
        let limit = self.connect_timeout();
        let connected = match timeout(limit, self.open()).await {
            Ok(connected) => connected,
            Err(_) => Err(RedisStoreError::connect_took_longer_than(limit)),
        };
        connected.map_err(|error| error.connecting_to(&self.address))
    }

    async fn open(&self) -> Result<MultiplexedConnection, RedisStoreError> {
        self.access.prepare();
        // The time limits are ours: the client's would cut a longer deadline short.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(Self::SEND_QUEUE);
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| RedisStoreError::new(&error))?;
        self.log_in(&mut connection).await?;
        if self.access.db != 0 {
            run(&mut connection, redis::cmd("SELECT").arg(self.access.db)).await?;
        }
        self.introduce(&mut connection).await?;
        Ok(connection)
    }

    /// Logs in. The client would do so too, but drops what the server says.
    async fn log_in(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisStoreError> {
        let login = &self.access.login;
        let Some(password) = &login.password else {
            return Ok(());
        };
        let mut auth = redis::cmd("AUTH");
        if let Some(username) = &login.username {
            auth.arg(username);
        }
        let Err(error) = connection
            .send_packed_command(auth.arg(password))
            .await
            .and_then(Value::extract_error)
        else {
            return Ok(());
        };
        let Some(code) = error.code() else {
            return Err(RedisStoreError::new(&error));
        };
        match error.detail() {
            // Servers older than 6.0 know no users.
            Some(detail) if login.username.is_some() && detail.contains("number of arguments") => {
                let again = run(connection, redis::cmd("AUTH").arg(password)).await;
                again.map_err(RedisStoreError::refusing_login)
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
    async fn introduce(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), RedisStoreError> {
        let mut name = redis::cmd("CLIENT");
        name.arg("SETINFO")
            .arg("LIB-NAME")
            .arg(env!("CARGO_PKG_NAME"));
        match run(connection, &name).await {
            Err(error)
                if error.kind() != StoreErrorKind::BadReply && error.code() != Some("NOPERM") =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

async fn run(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<(), RedisStoreError> {
    ask(connection, command).await.map(drop)
}

/// Sends a command and waits for the answer without a limit.
pub(super) async fn ask(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
) -> Result<Value, RedisStoreError> {
    let reply = connection.send_packed_command(command).await;
    reply
        .and_then(Value::extract_error)
        .map_err(|error| RedisStoreError::new(&error))
}

/// The address alone. Small commands must not wait to be sent together (`TCP_NODELAY`).
fn without_login(info: &ConnectionInfo) -> ConnectionInfo {
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    info.clone()
        .set_tcp_settings(tcp)
        .set_redis_settings(RedisConnectionInfo::default().set_skip_set_lib_name())
}

/// The client's details may repeat parts of the URL, and with them the password.
pub(super) fn malformed(error: &RedisError) -> RedisStoreError {
    let text = if error.detail().is_none() {
        format!("the URL of the server: {error}")
    } else {
        "the URL of the server is malformed".to_owned()
    };
    RedisStoreError::misconfigured(text)
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = if self.access.tls { " over TLS" } else { "" };
        write!(f, "{}/{}{over}", self.address, self.access.db)
    }
}
