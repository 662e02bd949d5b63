//! The processes of the test: this program again, with a role.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use clap::Subcommand;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::{
    Result, latency, machine,
    scale::fill::{self, Store},
    servers::{self, Server},
};

/// What a process of the test does.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Becomes `redis-server`.
    Redis { program: String, port: u16 },
    /// Is a server under test, and prints its port.
    Serve { server: Server, redis: String },
    /// Prints how long round trips to Redis take, in nanoseconds, whenever a line comes.
    RoundTrips { redis: String },
    /// Keeps its core from being halted.
    KeepAwake,
    /// Completes events in a store, and prints the bytes that they take.
    Fill {
        store: Store,
        events: usize,
        redis: String,
    },
}

impl Role {
    pub(crate) fn play(self, core: Option<usize>) -> Result<()> {
        // Nothing is left over if the test itself is killed.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if let Some(core) = core {
            machine::pin(core)?;
        }
        match self {
            Self::Redis { program, port } => {
                let port = port.to_string();
                let mut command = Command::new(program);
                command.args(["--bind", "127.0.0.1", "--port", &port]);
                command.args(["--save", "", "--appendonly", "no", "--loglevel", "warning"]);
                Err(command.exec().into())
            }
            Self::Serve { server, redis } => servers::serve(server, &redis),
            Self::RoundTrips { redis } => latency::round_trips(&redis),
            Self::KeepAwake => machine::keep_awake().map(|never| match never {}),
            Self::Fill {
                store,
                events,
                redis,
            } => fill::fill(store, events, &redis),
        }
    }
}

/// A process that is ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts this program with the arguments of a [`Role`].
    pub(crate) fn start(core: Option<usize>, role: &[&str]) -> Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg("child");
        if let Some(core) = core {
            command.args(["--core", &core.to_string()]);
        }
        let mut child = command
            .args(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().ok_or("no stdin")?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        Ok(Self {
            child,
            stdin,
            stdout,
        })
    }

    /// Sends it an empty line.
    pub(crate) fn ask(&mut self) -> Result<()> {
        Ok(self.stdin.write_all(b"\n")?)
    }

    /// The next line that it prints, or an error if it ends.
    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            return Err("a process of the test ended before its time".into());
        }
        Ok(line.trim().to_owned())
    }

    pub(crate) fn cpu(&self) -> Result<Duration> {
        machine::cpu(self.child.id())
    }

    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
