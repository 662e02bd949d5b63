//! A Redis Cluster of the test's own.

use std::{
    collections::HashMap,
    net::TcpListener,
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use tower_webhook_dedup::{Key, Token};

use super::{PATIENCE, RedisServer, fresh, sentinel::listening_at};

/// Primaries, and a replica for each. All stop when it is dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<Node>,
    tls: bool,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) server: RedisServer,
    pub(crate) port: u16,
    pub(crate) id: String,
    bus: u16,
}

/// After so long without an answer a node is held for dead.
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_millis(1000);

const SLOTS: usize = 16_384;

impl Cluster {
    /// Three primaries and three replicas.
    pub(crate) fn start() -> Self {
        Self::of(3, true, &[])
    }

    /// The same, which speaks nothing but TLS, among its nodes too.
    pub(crate) fn start_over_tls(certificates: &[String]) -> Self {
        Self::of(3, true, certificates)
    }

    /// One primary alone.
    pub(crate) fn of_one() -> Self {
        Self::of(1, false, &[])
    }

    fn of(primaries: usize, with_replicas: bool, certificates: &[String]) -> Self {
        let count = if with_replicas {
            2 * primaries
        } else {
            primaries
        };
        let nodes: Vec<_> = (0..count).map(|_| Node::start(certificates)).collect();
        for (n, node) in nodes[..primaries].iter().enumerate() {
            let slots = slots_of(n, primaries);
            let (first, last) = (slots.start.to_string(), (slots.end - 1).to_string());
            node.server
                .command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            node.server
                .command(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()]);
        }
        for other in &nodes[1..] {
            let bus = other.bus.to_string();
            let port = other.port.to_string();
            nodes[0]
                .server
                .command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        let cluster = Self {
            nodes,
            tls: !certificates.is_empty(),
        };
        for (n, replica) in cluster.nodes[primaries..].iter().enumerate() {
            let primary = &cluster.nodes[n].id;
            wait_for("a replica", || {
                let reply = replica
                    .server
                    .try_command(&["CLUSTER", "REPLICATE", primary]);
                reply.is_ok()
            });
        }
        cluster.wait_until_ok();
        wait_for("replicas in step", || {
            cluster.nodes[primaries..].iter().all(|it| {
                it.server
                    .text(&["INFO", "replication"])
                    .contains("master_link_status:up")
            })
        });
        cluster
    }

    /// Waits until all nodes agree that all slots are served, and on who serves them.
    pub(crate) fn wait_until_ok(&self) {
        wait_for("the cluster is in order", || {
            let alive = || self.nodes.iter().filter(|it| it.server.is_alive());
            let mut views = alive().map(|node| {
                let mut nodes = node.view();
                nodes.retain(|_, (state, _)| !state.contains("fail"));
                nodes
            });
            let first = views.next().unwrap();
            let same = views.all(|view| view == first);
            let ok = |node: &Node| {
                let info = node.server.text(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok")
            };
            same && alive().all(ok)
        });
    }

    /// `redis+cluster://127.0.0.1:…` or `rediss+cluster://…`, with the first two nodes.
    pub(crate) fn url(&self) -> String {
        let seeds: Vec<_> = self.nodes.iter().take(2).map(Node::address).collect();
        let scheme = if self.tls { "rediss" } else { "redis" };
        format!("{scheme}+cluster://{}", seeds.join(","))
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn node_mut(&mut self, n: usize) -> &mut Node {
        &mut self.nodes[n]
    }

    /// The index of the primary that has the key, as it says itself.
    pub(crate) fn owner(&self, key: &str) -> usize {
        let mut owners = (0..self.nodes.len()).filter(|n| {
            let node = &self.nodes[*n];
            if !node.server.is_alive() {
                return false;
            }
            // A replica would send us on.
            let reply = node.server.try_command(&["GET", key]);
            reply.is_ok()
        });
        owners.next().expect("some node has it")
    }

    /// The index of the replica of this primary.
    pub(crate) fn replica_of(&self, n: usize) -> usize {
        let primary = &self.nodes[n].id;
        let is_replica = |node: &Node| {
            let nodes = self.nodes[n].server.text(&["CLUSTER", "NODES"]);
            let line = nodes.lines().find(|line| line.starts_with(&node.id));
            line.is_some_and(|line| line.split(' ').nth(3) == Some(primary))
        };
        self.nodes.iter().position(is_replica).unwrap()
    }

    /// A key that nobody used yet, on this primary as the cluster was made.
    pub(crate) fn fresh_on(&self, n: usize) -> Key {
        loop {
            let key = fresh();
            if slots_of(n, 3).contains(&usize::from(self.slot(key.as_str()))) {
                return key;
            }
        }
    }

    /// So many ids that nobody used yet, whose keys in the namespace `t` are on this primary as
    /// the cluster was made, where the id alone makes the key.
    pub(crate) fn ids_on(&self, n: usize, count: usize) -> Vec<String> {
        let client = redis::Client::open(self.nodes[0].server.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut found = Vec::new();
        while found.len() < count {
            let ids = (0..10_000).map(|_| Token::random().to_string());
            let ids: Vec<_> = ids.collect();
            let mut pipe = redis::pipe();
            for id in &ids {
                let key = Key::new("t", id);
                pipe.cmd("CLUSTER").arg("KEYSLOT").arg(key.as_str());
            }
            let slots: Vec<usize> = pipe.query(&mut connection).unwrap();
            let all = ids.into_iter().zip(slots);
            let here = all.filter(|(_, slot)| slots_of(n, 3).contains(slot));
            found.extend(here.map(|(id, _)| id));
        }
        found
    }

    pub(crate) fn slot(&self, key: &str) -> u16 {
        let slot = self.nodes[0].server.number(&["CLUSTER", "KEYSLOT", key]);
        u16::try_from(slot).unwrap()
    }

    /// Begins to move a slot: new keys are created at `to`, old ones are still at `from`.
    pub(crate) fn begin_to_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        to.server
            .command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from.id]);
        from.server
            .command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to.id]);
    }

    /// Moves one key of a slot that is being moved.
    pub(crate) fn move_key(&self, key: &str, from: usize, to: usize) {
        let port = self.nodes[to].port.to_string();
        self.nodes[from]
            .server
            .command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }

    /// Moves the rest of the keys, and says so.
    pub(crate) fn finish_move(&self, slot: u16, from: usize, to: usize) {
        let number = slot.to_string();
        loop {
            let keys =
                self.nodes[from]
                    .server
                    .command(&["CLUSTER", "GETKEYSINSLOT", &number, "100"]);
            let keys: Vec<String> = redis::from_redis_value(keys).unwrap();
            if keys.is_empty() {
                break;
            }
            for key in keys {
                self.move_key(&key, from, to);
            }
        }
        let owner = &self.nodes[to].id;
        for n in [to, from] {
            self.nodes[n]
                .server
                .command(&["CLUSTER", "SETSLOT", &number, "NODE", owner]);
        }
    }
}

/// The slots that this of so many primaries has at first.
const fn slots_of(n: usize, primaries: usize) -> Range<usize> {
    n * SLOTS / primaries..(n + 1) * SLOTS / primaries
}

impl Node {
    /// A node that listens where nobody else does.
    fn start(certificates: &[String]) -> Self {
        // Somebody else may take the ports in between, if only rarely.
        for _ in 0..20 {
            let (port, bus) = free_ports();
            let (port_text, bus_text) = (port.to_string(), bus.to_string());
            let timeout = NODE_TIMEOUT.as_millis().to_string();
            let mut arguments = listening_at(&port_text, certificates);
            arguments.extend([
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus_text,
                "--cluster-node-timeout",
                &timeout,
                "--cluster-replica-validity-factor",
                "0",
                "--cluster-require-full-coverage",
                "no",
                "--repl-diskless-sync-delay",
                "0",
                "--repl-ping-replica-period",
                "1",
            ]);
            if !certificates.is_empty() {
                arguments.extend(["--tls-cluster", "yes"]);
            }
            if let Some(server) = RedisServer::try_with(&arguments) {
                let id = server.text(&["CLUSTER", "MYID"]);
                return Self {
                    server,
                    port,
                    bus,
                    id,
                };
            }
        }
        panic!("no free ports for a node");
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Each node with what it is and which slots it has, as this node sees it.
    fn view(&self) -> HashMap<String, (String, String)> {
        let nodes = self.server.text(&["CLUSTER", "NODES"]);
        let view = nodes.lines().map(|line| {
            let fields: Vec<_> = line.split(' ').collect();
            let state = fields[2].replace("myself,", "");
            (fields[0].to_owned(), (state, fields[8..].join(" ")))
        });
        view.collect()
    }
}

/// Two ports that nobody listens at.
pub(crate) fn free_ports() -> (u16, u16) {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = listeners.map(|it| it.local_addr().unwrap().port());
    (ports[0], ports[1])
}

#[track_caller]
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
