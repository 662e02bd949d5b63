//! Looks whether a Redis is fit for the store.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::{
    connection::{Connection, Given},
    error::RedisStoreError,
    finding::Finding,
    own::Own,
    sending::{Sending, answer},
};
use crate::{Key, StoreError, StoreErrorKind, Token};

/// How long each answer may take, a connect included.
const PATIENCE: Duration = Duration::from_secs(5);

/// Clocks that differ by less are in order.
const SKEW: Duration = Duration::from_secs(1);

pub(super) async fn check(connection: &Connection, replicas: Option<u32>) -> Vec<Finding> {
    let mut findings = Vec::new();
    match connection {
        Connection::Given(given) => {
            let server = Checked {
                name: "the server".to_owned(),
                line: Line::Given(given),
                in_cluster: false,
                replicas,
                findings: &mut findings,
            };
            server.check().await;
        }
        Connection::Own(own) => {
            let server = Checked {
                name: format!("{:?}", own.target()),
                line: Line::Own(own),
                in_cluster: false,
                replicas,
                findings: &mut findings,
            };
            server.check().await;
            #[cfg(feature = "sentinel")]
            if let super::target::Target::Primary(sentinels) = own.target() {
                check_sentinels(sentinels, &mut findings).await;
            }
        }
        #[cfg(feature = "cluster")]
        Connection::Cluster(cluster) => check_cluster(cluster, replicas, &mut findings).await,
    }
    findings
}

#[cfg(feature = "sentinel")]
async fn check_sentinels(sentinels: &super::sentinel::Sentinels, findings: &mut Vec<Finding>) {
    for (server, quorum) in sentinels.quorum().await {
        let Err(error) = quorum else { continue };
        findings.push(match error.code() {
            None => Finding::Unreachable { server, error },
            Some("NOQUORUM" | "NOGOODSLAVE" | "NOGOODREPLICA") => {
                Finding::NoQuorum { server, error }
            }
            Some(_) => Finding::Unknown {
                server,
                what: "whether a failover could be agreed on",
                error,
            },
        });
    }
}

#[cfg(feature = "cluster")]
async fn check_cluster(
    cluster: &Arc<super::cluster::Cluster>,
    replicas: Option<u32>,
    findings: &mut Vec<Finding>,
) {
    let server = format!("{cluster:?}");
    if let Err(error) = cluster.known(Instant::now() + PATIENCE).await {
        findings.push(Finding::Unreachable { server, error });
        return;
    }
    if let Some((uncovered, has_replicas)) = cluster.shape() {
        if uncovered > 0 {
            findings.push(Finding::Uncovered {
                server: server.clone(),
                slots: uncovered,
            });
        }
        if !has_replicas {
            findings.push(Finding::NoReplicas { server });
        }
    }
    for (address, own) in cluster.primaries() {
        let node = Checked {
            name: address.to_string(),
            line: Line::Own(&own),
            in_cluster: true,
            replicas,
            findings,
        };
        node.check().await;
    }
}

/// A server that is being looked at.
struct Checked<'a> {
    name: String,
    line: Line<'a>,
    in_cluster: bool,
    /// How many replicas have to confirm writes.
    replicas: Option<u32>,
    findings: &'a mut Vec<Finding>,
}

enum Line<'a> {
    Own(&'a Arc<Own>),
    Given(&'a Arc<dyn Given>),
}

impl Checked<'_> {
    async fn check(mut self) {
        if let Err(error) = self.try_to_check().await {
            let server = self.name;
            self.findings.push(Finding::Unreachable { server, error });
        }
    }

    /// Fails where going on makes no sense.
    async fn try_to_check(&mut self) -> Result<(), RedisStoreError> {
        // What the server says to a login is not about each of the commands.
        if let Line::Own(own) = self.line {
            own.connected(Instant::now() + PATIENCE).await?;
        }
        if self.check_rights().await? {
            return Ok(());
        }
        let what = "its version, role, eviction policy and persistence";
        if let Some(info) = self.look(what, &redis::cmd("INFO")).await? {
            self.check_info(&Info::read(&info)).await?;
        }
        let sent = SystemTime::now();
        if let Some(time) = self.look("its time", &redis::cmd("TIME")).await? {
            self.check_time(sent, time);
        }
        Ok(())
    }

    /// Runs what the store runs, on a key that does not exist and in such a way that nothing
    /// happens. Whether it is a replica or a Sentinel, about which nothing else matters.
    async fn check_rights(&mut self) -> Result<bool, RedisStoreError> {
        let key = Key::new("check", Token::random().to_string());
        let key = key.as_str();
        let command = |name: &'static str, arguments: &[&str]| {
            let mut command = redis::cmd(name);
            command.arg(arguments);
            (name, command, false)
        };
        let no_script = "0".repeat(40);
        let mut commands = vec![
            command("GET", &[key]),
            command("SET", &[key, "-", "XX", "PX", "1"]),
            command("DEL", &[key]),
            command("PEXPIRE", &[key, "1"]),
            command("EVALSHA", &[&no_script, "1", key]),
            command("EVAL", &["return 0", "1", key]),
        ];
        if self.replicas.is_some() {
            commands.push(command("WAIT", &["0", "1"]));
        }
        if self.in_cluster {
            commands.push(command("CLUSTER", &["SLOTS"]));
            let (_, get, _) = command("GET", &[key]);
            commands.push(("ASKING", get, true));
        }
        for (command, line, asking) in commands {
            let Err(error) = self.send(&line, asking).await else {
                continue;
            };
            let server = self.name.clone();
            match (error.code(), error.kind()) {
                (Some("READONLY"), _) => {
                    self.findings.push(Finding::Replica { server });
                    return Ok(true);
                }
                (Some("ERR"), _) if self.is_sentinel().await => {
                    self.findings.push(Finding::Sentinel { server });
                    return Ok(true);
                }
                // It let us run it.
                (Some("MOVED" | "ASK" | "NOSCRIPT"), _) => {}
                (Some("NOAUTH" | "WRONGPASS"), _)
                | (_, StoreErrorKind::Unreachable | StoreErrorKind::TimedOut) => return Err(error),
                (_, StoreErrorKind::OutOfMemory | StoreErrorKind::ReadOnly) => {
                    self.add(Finding::RefusesWrites { server, error });
                }
                _ => self.findings.push(Finding::Denied {
                    server,
                    command,
                    error,
                }),
            }
        }
        Ok(false)
    }

    /// Asked where a command is refused with a plain `ERR`: a Sentinel knows none of them.
    async fn is_sentinel(&self) -> bool {
        let info = self.send(redis::cmd("INFO").arg("server"), false).await;
        info.is_ok_and(|info| Info::read(&info).text("redis_mode") == Some("sentinel"))
    }

    async fn check_info(&mut self, info: &Info) -> Result<(), RedisStoreError> {
        let name = self.name.clone();
        let server = || name.clone();
        if let Some(version) = info.text("redis_version")
            && version
                .split('.')
                .next()
                .and_then(|major| major.parse().ok())
                < Some(7_u32)
        {
            self.findings.push(Finding::Old {
                server: server(),
                version: version.to_owned(),
            });
        }
        if info.text("role") == Some("slave") {
            self.findings.push(Finding::Replica { server: server() });
        }
        if !self.in_cluster && info.text("cluster_enabled") == Some("1") {
            self.findings
                .push(Finding::ClusterNode { server: server() });
        }
        if let Some(needed) = self.replicas
            && let Some(connected) = info.number("connected_slaves")
            && connected < needed
        {
            self.findings.push(Finding::TooFewReplicas {
                server: server(),
                connected,
                needed,
            });
        }
        if let Some(policy) = info.text("maxmemory_policy")
            && policy != "noeviction"
            // Without a limit nothing is evicted.
            && info.text("maxmemory") != Some("0")
        {
            self.findings.push(Finding::Evicts {
                server: server(),
                policy: policy.to_owned(),
            });
        }
        if info.text("aof_enabled") == Some("0") {
            let mut snapshots = redis::cmd("CONFIG");
            snapshots.arg("GET").arg("save");
            let what = "whether it writes snapshots";
            if let Some(save) = self.look(what, &snapshots).await?
                && redis::from_redis_value::<HashMap<String, String>>(save)
                    .is_ok_and(|it| it.get("save").is_some_and(String::is_empty))
            {
                self.findings
                    .push(Finding::NotPersistent { server: server() });
            }
        }
        Ok(())
    }

    fn check_time(&mut self, sent: SystemTime, time: Value) {
        let Ok((seconds, micros)) = redis::from_redis_value::<(u64, u64)>(time) else {
            return;
        };
        let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros);
        let since_1970 = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH);
        let (Ok(before), Ok(after)) = (since_1970(sent), since_1970(SystemTime::now())) else {
            return;
        };
        // It was read between the two.
        let by = before
            .saturating_sub(theirs)
            .max(theirs.saturating_sub(after));
        if by > SKEW {
            self.findings.push(Finding::Skewed {
                server: self.name.clone(),
                by,
            });
        }
    }

    /// The answer to a command that the store can do without; `None`, and a finding, if there is
    /// none.
    async fn look(
        &mut self,
        what: &'static str,
        command: &Cmd,
    ) -> Result<Option<Value>, RedisStoreError> {
        match self.send(command, false).await {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.code().is_some() => {
                self.findings.push(Finding::Unknown {
                    server: self.name.clone(),
                    what,
                    error,
                });
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn send(&self, command: &Cmd, asking: bool) -> Result<Value, RedisStoreError> {
        let by = Instant::now() + PATIENCE;
        match self.line {
            Line::Own(own) => {
                let make = |_| command.clone();
                let sending = Sending {
                    asking,
                    ..Sending::plain(&make)
                };
                match own.send(sending, by).await {
                    // It was closed while idle, perhaps; nothing here does any harm.
                    Err(error) if error.is_broken() => own.send(sending, by).await,
                    reply => reply,
                }
                .map(|reply| reply.value)
            }
            Line::Given(given) => answer(by, || given.send(command.clone())).await,
        }
    }

    /// Not twice.
    fn add(&mut self, finding: Finding) {
        let text = finding.to_string();
        if !self.findings.iter().any(|it| it.to_string() == text) {
            self.findings.push(finding);
        }
    }
}

/// The reply to `INFO`.
struct Info(HashMap<String, String>);

impl Info {
    fn read(reply: &Value) -> Self {
        let text = redis::from_redis_value_ref::<String>(reply).unwrap_or_default();
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Self(fields.map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
    }

    fn text(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }

    fn number(&self, field: &str) -> Option<u32> {
        self.text(field)?.parse().ok()
    }
}
