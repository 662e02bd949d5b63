//! A service that Sentinels watch, of the test's own.

use std::time::Duration;

use super::{
    RedisServer,
    cluster::{free_ports, wait_for},
};

/// A primary, two replicas, and three Sentinels. All stop when it is dropped.
#[derive(Debug)]
pub(crate) struct Service {
    servers: Vec<(u16, RedisServer)>,
    sentinels: Vec<(u16, RedisServer)>,
    tls: bool,
}

/// After so long without an answer a server is held for dead.
pub(crate) const DOWN_AFTER: Duration = Duration::from_millis(1000);

impl Service {
    pub(crate) const NAME: &str = "webhooks";
    /// Of the Sentinels, for the user `default`.
    pub(crate) const PASSWORD: &str = "s3ntinel";

    pub(crate) fn start() -> Self {
        Self::start_over_tls(&[])
    }

    /// The same, which speaks nothing but TLS with these certificates.
    pub(crate) fn start_over_tls(certificates: &[String]) -> Self {
        let listening = |arguments: &[&str]| listening_with(certificates, arguments);
        let primary = listening(&["--repl-diskless-sync-delay", "0"]);
        let port = primary.0.to_string();
        let mut servers = vec![primary];
        for _ in 0..2 {
            servers.push(listening(&[
                "--replicaof",
                "127.0.0.1",
                &port,
                "--repl-diskless-sync-delay",
                "0",
            ]));
        }
        let in_step = |(_, server): &(u16, RedisServer)| {
            let replication = server.text(&["INFO", "replication"]);
            replication.contains("master_link_status:up")
        };
        wait_for("replicas in step", || servers[1..].iter().all(in_step));
        let sentinels = (0..3).map(|_| sentinel(&port, certificates)).collect();
        let service = Self {
            servers,
            sentinels,
            tls: !certificates.is_empty(),
        };
        wait_for("Sentinels that know each other and the replicas", || {
            let fields = service.sentinels.iter().map(|(_, sentinel)| {
                let master = sentinel.command(&["SENTINEL", "MASTER", Self::NAME]);
                let fields: Vec<String> = redis::from_redis_value(master).unwrap();
                let of = |name: &str| {
                    let at = fields.iter().position(|it| it == name);
                    fields[at.unwrap() + 1].clone()
                };
                (of("num-other-sentinels"), of("num-slaves"))
            });
            fields.into_iter().all(|it| it == ("2".into(), "2".into()))
        });
        service
    }

    /// `redis+sentinel://127.0.0.1:…/webhooks` or `rediss+sentinel://…`
    pub(crate) fn url(&self) -> String {
        let addresses = self
            .sentinels
            .iter()
            .map(|(port, _)| format!("127.0.0.1:{port}"));
        let addresses: Vec<_> = addresses.collect();
        let scheme = if self.tls { "rediss" } else { "redis" };
        format!("{scheme}+sentinel://{}/{}", addresses.join(","), Self::NAME)
    }

    pub(crate) fn servers(&self) -> impl Iterator<Item = &RedisServer> {
        self.servers.iter().map(|(_, server)| server)
    }

    pub(crate) fn server_mut(&mut self, n: usize) -> &mut RedisServer {
        &mut self.servers[n].1
    }

    pub(crate) fn sentinel_mut(&mut self, n: usize) -> &mut RedisServer {
        &mut self.sentinels[n].1
    }

    /// The index of the primary, as the Sentinels that live say.
    pub(crate) fn primary(&self) -> usize {
        let alive = || self.sentinels.iter().filter(|(_, it)| it.is_alive());
        let mut found = None;
        wait_for("Sentinels that agree on a primary", || {
            let ports: Vec<_> = alive()
                .map(|(_, sentinel)| {
                    let address =
                        sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::NAME]);
                    redis::from_redis_value::<(String, u16)>(address).unwrap().1
                })
                .collect();
            let same = ports.iter().all(|port| *port == ports[0]);
            found = self.servers.iter().position(|(port, _)| *port == ports[0]);
            same && found.is_some()
        });
        found.unwrap()
    }

    /// Makes a replica the primary, as an operator does, and waits until it is.
    pub(crate) fn fail_over(&self) {
        let before = self.primary();
        let (_, sentinel) = &self.sentinels[0];
        wait_for("a failover", || {
            sentinel
                .try_command(&["SENTINEL", "FAILOVER", Self::NAME])
                .is_ok()
        });
        wait_for("another primary", || self.primary() != before);
    }
}

fn sentinel(primary: &str, certificates: &[String]) -> (u16, RedisServer) {
    let (port, sentinel) = listening_with(certificates, &["--sentinel"]);
    let down_after = DOWN_AFTER.as_millis().to_string();
    let name = Service::NAME;
    for command in [
        &["SENTINEL", "MONITOR", name, "127.0.0.1", primary, "2"][..],
        &[
            "SENTINEL",
            "SET",
            name,
            "down-after-milliseconds",
            &down_after,
        ],
        &["SENTINEL", "SET", name, "failover-timeout", "5000"],
    ] {
        sentinel.command(command);
    }
    (port, sentinel)
}

/// A server on a port that nobody else listens at.
pub(crate) fn listening(arguments: &[&str]) -> (u16, RedisServer) {
    listening_with(&[], arguments)
}

/// The same; where there are certificates, it speaks nothing but TLS there.
pub(crate) fn listening_with(certificates: &[String], arguments: &[&str]) -> (u16, RedisServer) {
    // Somebody else may take the port in between, if only rarely.
    for _ in 0..20 {
        let port = free_ports().0;
        let number = port.to_string();
        let mut all = listening_at(&number, certificates);
        all.extend(arguments);
        if let Some(server) = RedisServer::try_with(&all) {
            return (port, server);
        }
    }
    panic!("no free port for a server");
}

/// The arguments for that. Servers speak TLS with each other, too, where they speak it.
pub(super) fn listening_at<'a>(port: &'a str, certificates: &'a [String]) -> Vec<&'a str> {
    let mut arguments = vec!["--bind", "127.0.0.1"];
    if certificates.is_empty() {
        arguments.extend(["--port", port]);
    } else {
        arguments.extend(["--tls-port", port, "--tls-replication", "yes"]);
        arguments.extend(certificates.iter().map(String::as_str));
    }
    arguments
}
