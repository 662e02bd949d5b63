//! A `redis-server` of the storm's own, which keeps nothing on disk.

use std::{
    collections::HashMap,
    error::Error,
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::Stdio,
    time::Duration,
};

use redis::{AsyncConnectionConfig, FromRedisValue, RedisResult, aio::MultiplexedConnection};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(10);

/// A port that was free a moment ago may be taken by now.
const TRIES: usize = 5;

/// Ends with this, without a goodbye.
pub(crate) struct RedisServer {
    /// Ends the server should this process end without having done so.
    watch: Child,
    process: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    pub(crate) async fn start() -> Result<Self, Box<dyn Error>> {
        for _ in 0..TRIES {
            let mut server = Self::spawn()?;
            if server.is_up().await? {
                return Ok(server);
            }
        }
        Err("redis-server does not start".into())
    }

    fn spawn() -> Result<Self, Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
            .args(["--save", "", "--appendonly", "no"])
            // Its replica is to be there soon.
            .args(["--repl-diskless-sync-delay", "0"])
            .arg("--dir")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        match process {
            Ok(process) => Ok(Self {
                watch: watch(&process)?,
                process,
                address,
                _folder: folder,
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(
                "redis-server is not installed: install your system's redis-server package, \
                 or give --redis the URL of a server"
                    .into(),
            ),
            Err(error) => Err(format!("redis-server: {error}").into()),
        }
    }

    /// Waits until it answers; `false` if it has ended.
    async fn is_up(&mut self) -> Result<bool, Box<dyn Error>> {
        let end = Instant::now() + PATIENCE;
        // By its id, since another one may have got the port.
        let id = format!("process_id:{}\r\n", id(&self.process)?);
        while self.process.try_wait()?.is_none() && Instant::now() < end {
            let info: RedisResult<String> = self.command(&["INFO", "server"]).await;
            if info.is_ok_and(|info| info.contains(&id)) {
                return Ok(true);
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(false)
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Runs a command on a connection of its own.
    pub(crate) async fn command<T: FromRedisValue>(&self, command: &[&str]) -> RedisResult<T> {
        let mut connection = self.connect().await?;
        let mut sent = redis::cmd(command[0]);
        sent.arg(&command[1..]).query_async(&mut connection).await
    }

    /// What it keeps of each event.
    pub(crate) async fn events(&self) -> RedisResult<HashMap<String, Option<String>>> {
        let keys: Vec<String> = self.command(&["KEYS", "webhook:lock:*"]).await?;
        // A command needs one at least.
        let mut get = vec!["MGET", "none"];
        get.extend(keys.iter().map(String::as_str));
        let values: Vec<Option<String>> = self.command(&get).await?;
        // webhook:lock:{namespace}:{id}:{hash}
        let ids = keys.iter().filter_map(|key| key.split(':').nth(3));
        let ids = ids.map(str::to_owned);
        Ok(ids.zip(values.into_iter().skip(1)).collect())
    }

    /// How many replicas have all that was written up to now; waits for one a little.
    pub(crate) async fn confirm(&self) -> RedisResult<usize> {
        let mut connection = self.connect().await?;
        let mut pipeline = redis::pipe();
        // `WAIT` is about what its own connection wrote, and all before that.
        pipeline.cmd("SET").arg("storm").arg("now").ignore();
        pipeline.cmd("WAIT").arg(1).arg(100);
        let (replicas,) = pipeline.query_async(&mut connection).await?;
        Ok(replicas)
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let client = redis::Client::open(self.url())?;
        // The client's own limits are short for a busy machine.
        let patient = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let connect = client.get_multiplexed_async_connection_with_config(&patient);
        connect.await
    }

    /// Makes it a replica of that one; of nobody, a primary.
    pub(crate) async fn follow(&self, primary: Option<&Self>) -> RedisResult<()> {
        let (host, port) = match primary {
            Some(primary) => ("127.0.0.1", primary.address.port().to_string()),
            None => ("NO", "ONE".to_owned()),
        };
        self.command(&["REPLICAOF", host, &port]).await
    }

    /// Stops it where it is: connections stay open, and nothing is answered.
    pub(crate) async fn freeze(&self) -> io::Result<()> {
        signal(&self.process, "-STOP").await
    }

    pub(crate) async fn thaw(&self) -> io::Result<()> {
        signal(&self.process, "-CONT").await
    }

    /// Ends it at once.
    pub(crate) async fn kill(&mut self) -> io::Result<()> {
        // First, as the id of the server will be free.
        self.watch.kill().await?;
        self.process.kill().await
    }
}

/// Kills the process when we are gone: its standard input ends with us.
fn watch(process: &Child) -> io::Result<Child> {
    Command::new("sh")
        .args(["-c", "read _; kill -9 $0"])
        .arg(id(process)?)
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
}

/// Sends a signal to a process that we started and have not waited for.
pub(super) async fn signal(process: &Child, signal: &str) -> io::Result<()> {
    let mut kill = Command::new("kill");
    let status = kill.args([signal, &id(process)?]).status().await?;
    status.success().then_some(()).ok_or_else(ended)
}

fn id(process: &Child) -> io::Result<String> {
    Ok(process.id().ok_or_else(ended)?.to_string())
}

fn ended() -> io::Error {
    io::Error::other("the process has ended")
}
