//! A server with a replica.

use super::{RedisServer, listening, until};

/// A primary, and a replica of it.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) primary: RedisServer,
    pub(crate) replica: RedisServer,
}

impl Pair {
    pub(crate) async fn start() -> Self {
        let (port, primary) = listening(&["--repl-diskless-sync-delay", "0"]);
        let port = port.to_string();
        let replica = RedisServer::with(&["--replicaof", "127.0.0.1", &port]);
        until("the replica is in step", async || {
            let replication = replica.text(&["INFO", "replication"]);
            replication.contains("master_link_status:up")
        })
        .await;
        // It is up some time before the primary counts it.
        until("the replica counts", async || {
            let replication = primary.text(&["INFO", "replication"]);
            replication.contains("state=online")
        })
        .await;
        let client = redis::Client::open(primary.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        redis::cmd("SET")
            .arg("warm")
            .arg("up")
            .exec(&mut connection)
            .unwrap();
        let mut wait = redis::cmd("WAIT");
        let confirmed: u32 = wait.arg(1).arg(20_000).query(&mut connection).unwrap();
        assert_eq!(confirmed, 1);
        Self { primary, replica }
    }
}
