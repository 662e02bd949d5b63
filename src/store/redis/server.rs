//! Where a server is, and how to log in there.

use std::{fmt, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, Value, aio::MultiplexedConnection,
};
use tokio::time::timeout;

use super::error::RedisStoreError;
use crate::{StoreError, StoreErrorKind};

/// A server and the credentials for it. Shown without them.
pub(super) struct Server {
    client: Client,
    address: String,
    username: Option<String>,
    password: Option<String>,
    db: i64,
}

impl Server {
    /// How long connecting may take, name look-up and login included.
    pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

    /// How many commands may wait for the socket; the client's 50 make a burst wait in line.
    const SEND_QUEUE: usize = 1024;

    pub(super) fn from_url(url: &str) -> Result<Self, RedisStoreError> {
        let info = url
            .into_connection_info()
            .map_err(|error| malformed(&error))?;
        let settings = info.redis_settings();
        let (username, password) = (settings.username(), settings.password());
        Ok(Self {
            address: info.addr().to_string(),
            username: username.map(str::to_owned),
            password: password.map(str::to_owned),
            db: settings.db(),
            client: Client::open(without_login(&info)).map_err(|error| malformed(&error))?,
        })
    }

    /// Connects and logs in, within [`CONNECT_TIMEOUT`](Self::CONNECT_TIMEOUT).
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, RedisStoreError> {
        let connected = match timeout(Self::CONNECT_TIMEOUT, self.open()).await {
            Ok(connected) => connected,
            Err(_) => Err(RedisStoreError::connect_took_longer_than(
                Self::CONNECT_TIMEOUT,
            )),
        };
        connected.map_err(|error| error.connecting_to(&self.address))
    }

    async fn open(&self) -> Result<MultiplexedConnection, RedisStoreError> {
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
        if self.db != 0 {
            run(&mut connection, redis::cmd("SELECT").arg(self.db)).await?;
        }
        self.introduce(&mut connection).await?;
        Ok(connection)
    }

    /// Logs in. The client would do so too, but drops what the server says.
    async fn log_in(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisStoreError> {
        let Some(password) = &self.password else {
            return Ok(());
        };
        let mut auth = redis::cmd("AUTH");
        if let Some(username) = &self.username {
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
            Some(detail) if self.username.is_some() && detail.contains("number of arguments") => {
                run(connection, redis::cmd("AUTH").arg(password)).await
            }
            // A server without AUTH repeats the arguments of the unknown command.
            Some(detail) if !detail.contains(password.as_str()) => {
                Err(RedisStoreError::said(code, detail))
            }
            _ => Err(RedisStoreError::said(code, "the server refused AUTH")),
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
    let reply = connection.send_packed_command(command).await;
    match reply.and_then(Value::extract_error) {
        Ok(_) => Ok(()),
        Err(error) => Err(RedisStoreError::new(&error)),
    }
}

/// The address alone. Small commands must not wait to be sent together (`TCP_NODELAY`).
fn without_login(info: &ConnectionInfo) -> ConnectionInfo {
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    info.clone()
        .set_tcp_settings(tcp)
        .set_redis_settings(RedisConnectionInfo::default().set_skip_set_lib_name())
}

/// The client's details may repeat parts of the URL, and with them the password.
fn malformed(error: &RedisError) -> RedisStoreError {
    let text = if error.detail().is_none() {
        format!("the URL of the server: {error}")
    } else {
        "the URL of the server is malformed".to_owned()
    };
    RedisStoreError::unreachable(text)
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.db)
    }
}
