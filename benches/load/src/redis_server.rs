//! A `redis-server` of the test's own.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    net::TcpListener,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use redis::{Connection, FromRedisValue, cmd};

use crate::{Result, process::Process};

const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct RedisServer {
    process: Process,
    connection: Connection,
    port: u16,
    /// What it is, and which version.
    pub(crate) name: String,
}

impl RedisServer {
    /// Starts a server that keeps nothing on disk, and waits until it answers.
    pub(crate) fn start(program: &str, core: Option<usize>) -> Result<Self> {
        let name = name(program)?;
        // The free port may be taken by the time Redis has started.
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let mut process = Process::start(core, &["redis", program, &port.to_string()])?;
            if let Some(connection) = connect(port, &mut process)? {
                return Ok(Self {
                    process,
                    connection,
                    port,
                    name,
                });
            }
        }
        Err("Redis ends right after its start".into())
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }

    pub(crate) fn command<T: FromRedisValue>(&mut self, command: &[&str]) -> Result<T> {
        let answer = cmd(command[0])
            .arg(&command[1..])
            .query(&mut self.connection)?;
        Ok(answer)
    }

    /// Forgets all keys, and gives their memory back before it answers.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.command(&["FLUSHALL", "SYNC"])
    }

    pub(crate) fn knows(&mut self, command: &str) -> Result<bool> {
        let known: Vec<redis::Value> = self.command(&["COMMAND", "INFO", command])?;
        Ok(known.first().is_some_and(|it| *it != redis::Value::Nil))
    }

    /// A figure of `INFO`.
    pub(crate) fn figure(&mut self, section: &str, name: &str) -> Result<u64> {
        let info: String = self.command(&["INFO", section])?;
        let figure = info
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .ok_or_else(|| format!("INFO {section} has no {name}"))?;
        Ok(figure.parse()?)
    }

    /// How often each command was called, by clients and by scripts.
    pub(crate) fn calls(&mut self) -> Result<BTreeMap<String, u64>> {
        let info: String = self.command(&["INFO", "commandstats"])?;
        let call = |line: &str| {
            let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let (calls, _) = figures.split_once(',')?;
            Some((name.to_owned(), calls.parse().ok()?))
        };
        Ok(info.lines().filter_map(call).collect())
    }
}

/// `Redis 7.4.1`, or `Valkey 9.0.0`.
fn name(program: &str) -> Result<String> {
    match Command::new(program).arg("--version").output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let mut words = text.split_whitespace();
            let name = words.next().unwrap_or("unknown");
            let version = words.find_map(|it| it.strip_prefix("v="));
            Ok(format!("{name} {}", version.unwrap_or("unknown")))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Err(format!(
            "{program} is not installed: scripts/test installs redis-server, as does your system's \
             package of that name"
        )
        .into()),
        Err(error) => Err(error.into()),
    }
}

/// `None` if the server ends.
fn connect(port: u16, process: &mut Process) -> Result<Option<Connection>> {
    let client = redis::Client::open(("127.0.0.1", port))?;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if process.has_ended()? {
            return Ok(None);
        }
        if let Ok(connection) = client.get_connection() {
            return Ok(Some(connection));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err("Redis does not answer".into())
}
