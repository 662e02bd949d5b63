//! The server processes: how they are started, killed and stopped.

use std::{env, error::Error, net::SocketAddr, process::Stdio, time::Duration};

use fastrand::Rng;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdin, Command},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::redis_server::signal;
use crate::{ledger::Incarnation, receiver::DRAIN, sender::Targets};

/// What is beyond draining when a server ends.
const GOODBYE: Duration = Duration::from_secs(5);

/// What the servers have in common.
pub(super) struct Setup {
    pub(super) ledger: SocketAddr,
    pub(super) redis: String,
    pub(super) namespace: String,
}

pub(super) struct Servers {
    setup: Setup,
    /// By place: a server that is killed makes room for another one.
    servers: Vec<Server>,
    targets: Targets,
    /// By incarnation.
    lives: Vec<Life>,
}

struct Server {
    incarnation: Incarnation,
    process: Child,
    address: SocketAddr,
    /// It lives no longer than this.
    _stdin: Option<ChildStdin>,
}

/// What became of one incarnation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Life {
    /// When it was told to end at once. Whatever it did, it did before.
    pub(crate) killed: Option<Instant>,
}

impl Servers {
    pub(super) async fn start(setup: Setup, count: usize) -> Result<Self, Box<dyn Error>> {
        let mut servers = Vec::with_capacity(count);
        for incarnation in 0..count {
            servers.push(Server::start(&setup, incarnation).await?);
        }
        let targets = servers.iter().map(|server| server.address).collect();
        Ok(Self {
            setup,
            servers,
            targets: Targets::new(targets),
            lives: vec![Life::default(); count],
        })
    }

    pub(super) const fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Kills one every so often and starts another in its place, until it is over.
    pub(super) async fn kill_at_random(
        &mut self,
        rng: &mut Rng,
        over: &CancellationToken,
    ) -> Result<(), Box<dyn Error>> {
        while timeout(millis(rng.u64(1200..2200)), over.cancelled())
            .await
            .is_err()
        {
            let place = rng.usize(..self.servers.len());
            self.lives[self.servers[place].incarnation].killed = Some(Instant::now());
            self.servers[place].kill().await?;
            // For a while the sender is refused here.
            sleep(millis(rng.u64(50..250))).await;
            let server = Server::start(&self.setup, self.lives.len()).await?;
            self.lives.push(Life::default());
            self.targets.replace(place, server.address);
            self.servers[place] = server;
        }
        Ok(())
    }

    /// Tells all of them to stop. Whether each drained and ended well, and how they lived.
    pub(super) async fn stop(self) -> Result<(bool, Vec<Life>), Box<dyn Error>> {
        for server in &self.servers {
            signal(&server.process, "-TERM").await?;
        }
        let end = Instant::now() + DRAIN + GOODBYE;
        let mut well = true;
        for mut server in self.servers {
            let left = end.saturating_duration_since(Instant::now());
            well &= match timeout(left, server.process.wait()).await {
                Ok(status) => status?.success(),
                Err(_) => false,
            };
        }
        Ok((well, self.lives))
    }
}

impl Server {
    async fn start(setup: &Setup, incarnation: Incarnation) -> Result<Self, Box<dyn Error>> {
        let mut process = Command::new(env::current_exe()?)
            .arg("serve")
            .args(["--incarnation", &incarnation.to_string()])
            .args(["--ledger", &setup.ledger.to_string()])
            .args(["--redis", &setup.redis])
            .args(["--namespace", &setup.namespace])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        // Taken out, since waiting for a process closes its standard input.
        let stdin = process.stdin.take();
        let mut line = String::new();
        if let Some(stdout) = process.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).await?;
        }
        let address = line.trim_end().parse();
        Ok(Self {
            incarnation,
            process,
            address: address.map_err(|_| "a server did not start")?,
            _stdin: stdin,
        })
    }

    async fn kill(&mut self) -> Result<(), Box<dyn Error>> {
        if let Some(status) = self.process.try_wait()? {
            return Err(format!("server {} ended by itself: {status}", self.incarnation).into());
        }
        Ok(self.process.kill().await?)
    }
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
