//! A `redis-server` of the test's own.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{PATIENCE, Watch};

/// A server on a Unix socket in a temporary folder, so that servers do not clash. It keeps nothing
/// on disk, and stops when it is dropped.
#[derive(Debug)]
pub(crate) struct RedisServer {
    process: Child,
    folder: TempDir,
    arguments: Vec<String>,
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// The same, with more arguments for `redis-server`.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        Self::try_with(arguments).expect("redis-server ended at once")
    }

    /// The same; `None` if the server ends at once, as it does when its port is taken.
    pub(crate) fn try_with(arguments: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let arguments: Vec<_> = arguments.iter().map(|&it| it.to_owned()).collect();
        let mut server = Self {
            process: spawn(folder.path(), &arguments),
            folder,
            arguments,
        };
        server.wait_until_it_answers().then_some(server)
    }

    /// `redis+unix:///…`
    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        socket(self.folder.path())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Stops the process where it is (`SIGSTOP`): connections stay open, and nothing is answered.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets a frozen process go on.
    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.pid().to_string()])
            .status();
        assert!(status.unwrap().success(), "kill {signal}");
    }

    /// Ends the process at once, without a goodbye.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Ends the process if it still runs, and starts another, empty one at the same address.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.process = spawn(self.folder.path(), &self.arguments);
        assert!(self.wait_until_it_answers(), "redis-server ended at once");
    }

    /// Whether the process answers: it neither ended nor is it frozen.
    pub(crate) fn is_alive(&self) -> bool {
        let ping = || -> io::Result<usize> {
            let mut stream = UnixStream::connect(self.socket())?;
            stream.set_read_timeout(Some(Duration::from_millis(300)))?;
            stream.write_all(b"PING\r\n")?;
            stream.read(&mut [0; 16])
        };
        ping().is_ok_and(|bytes| bytes > 0)
    }

    /// Runs a command on a connection of its own, and panics if the server refuses.
    pub(crate) fn command(&self, command: &[&str]) -> redis::Value {
        self.try_command(command).unwrap()
    }

    /// Runs a command that the server may refuse.
    pub(crate) fn try_command(&self, command: &[&str]) -> redis::RedisResult<redis::Value> {
        let mut connection = redis::Client::open(self.url())?.get_connection()?;
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut connection)
    }

    /// The answer to a command as text: empty for nil.
    pub(crate) fn text(&self, command: &[&str]) -> String {
        redis::from_redis_value::<Option<String>>(self.command(command))
            .unwrap()
            .unwrap_or_default()
    }

    pub(crate) fn number(&self, command: &[&str]) -> i64 {
        redis::from_redis_value(self.command(command)).unwrap()
    }

    /// The clients of the server, apart from the one that asks: a line each.
    pub(crate) fn clients(&self) -> Vec<String> {
        let list = self.text(&["CLIENT", "LIST", "TYPE", "NORMAL"]);
        list.lines()
            .filter(|line| !line.contains("cmd=client|list"))
            .map(str::to_owned)
            .collect()
    }

    /// Records the commands that clients send from now on.
    pub(crate) fn watch(&self) -> Watch {
        Watch::start(self)
    }

    /// False if it ended.
    fn wait_until_it_answers(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        while !self.answers() {
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(Instant::now() < end, "redis-server does not answer");
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    fn answers(&self) -> bool {
        match self.try_command(&["PING"]) {
            Ok(_) => true,
            // It wants a password first.
            Err(error) => error.code() == Some("NOAUTH"),
        }
    }

    pub(super) fn connect(&self) -> UnixStream {
        UnixStream::connect(self.socket()).unwrap()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // It may have ended already, and be frozen: SIGKILL reaches it all the same.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("redis.sock")
}

fn spawn(folder: &Path, arguments: &[String]) -> Child {
    // A socket that a killed server left behind.
    drop(std::fs::remove_file(socket(folder)));
    let mut command = Command::new("redis-server");
    if arguments.iter().any(|it| it == "--sentinel") {
        // It writes down there what it learns.
        let config = folder.join("sentinel.conf");
        std::fs::write(&config, "").unwrap();
        command.arg(config);
    }
    let started = command
        .args(["--port", "0", "--save", "", "--appendonly", "no"])
        .arg("--unixsocket")
        .arg(socket(folder))
        .arg("--dir")
        .arg(folder)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    match started {
        Ok(process) => process,
        Err(error) if error.kind() == io::ErrorKind::NotFound => panic!(
            "redis-server is not installed: run scripts/test, or install your system's \
             redis-server package"
        ),
        Err(error) => panic!("redis-server: {error}"),
    }
}
