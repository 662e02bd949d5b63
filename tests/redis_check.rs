//! What `RedisStore::check` finds.

mod support;

use std::time::Duration;

use tower_webhook_dedup::{BodyHash, Finding, Key, LeaseStore, Record, RedisStore};

use self::support::{FakeRedis, Proxy, RedisServer, acquired, until};

async fn found(store: &RedisStore) -> Vec<String> {
    let findings = store.check().await;
    let sentence = |finding: &Finding| {
        let text = finding.to_string();
        assert!(text.ends_with('.') && !text.contains('\n'), "{text}");
        assert!(!text.ends_with(".."), "{text}");
        text
    };
    findings.iter().map(sentence).collect()
}

/// One that keeps what it is given.
fn fit() -> RedisServer {
    RedisServer::with(&["--appendonly", "yes"])
}

fn open(server: &RedisServer) -> RedisStore {
    RedisStore::open(&server.url()).unwrap()
}

#[tokio::test]
async fn a_server_that_is_fit_gives_no_cause_for_complaint() {
    let server = fit();
    assert_eq!(found(&open(&server)).await, [""; 0]);
    assert_eq!(server.number(&["DBSIZE"]), 0, "it leaves nothing behind");
    let client = redis::Client::open(server.url()).unwrap();
    let given = client.get_multiplexed_async_connection().await.unwrap();
    assert_eq!(found(&RedisStore::new(given)).await, [""; 0]);
    let snapshots = RedisServer::with(&["--save", "60 1"]);
    assert_eq!(found(&open(&snapshots)).await, [""; 0]);
}

#[tokio::test]
async fn a_server_that_forgets_is_found_out() {
    let server = RedisServer::start();
    let store = open(&server);
    let findings = store.check().await;
    assert!(
        matches!(&findings[..], [Finding::NotPersistent { .. }]),
        "{findings:?}"
    );
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    assert_eq!(
        store.check().await.len(),
        1,
        "without a limit it evicts nothing"
    );
    server.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let findings = store.check().await;
    assert!(
        matches!(&findings[..], [Finding::Evicts { policy, .. }, _] if policy == "allkeys-lru"),
        "{findings:?}"
    );
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_found_out() {
    let server = fit();
    let store = open(&server);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let findings = store.check().await;
    assert!(
        matches!(&findings[..], [Finding::RefusesWrites { error, .. }] if error.code() == Some("OOM")),
        "{findings:?}"
    );
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let findings = store.check().await;
    assert!(
        matches!(&findings[..], [Finding::Replica { .. }]),
        "{findings:?}"
    );
}

#[tokio::test]
async fn missing_rights_are_named_one_by_one() {
    let server = fit();
    let needed = ["+set", "+get", "+eval", "+evalsha", "+del", "+pexpire"];
    let denied = async |rights: &[&str]| {
        let mut command = vec!["ACL", "SETUSER", "w", "reset", "on", ">s3cr3t"];
        command.extend(["~webhook:lock:*", "-@all"]);
        command.extend(rights);
        server.command(&command);
        let url = format!("{}?user=w&pass=s3cr3t", server.url());
        let store = RedisStore::builder(&url).min_replicas(1, Duration::from_millis(10));
        let mut denied = Vec::new();
        let mut unknown = 0;
        for finding in store.open().unwrap().check().await {
            assert!(!finding.to_string().contains("s3cr3t"), "{finding}");
            match finding {
                Finding::Denied { command, .. } => denied.push(command),
                Finding::Unknown { .. } => unknown += 1,
                Finding::TooFewReplicas { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        (denied, unknown)
    };
    for (n, right) in needed.iter().enumerate() {
        let mut rights = needed.to_vec();
        rights.remove(n);
        rights.push("+wait");
        let (denied, unknown) = denied(&rights).await;
        assert_eq!(denied, [right[1..].to_uppercase()], "{right}");
        assert_eq!(unknown, 2, "INFO and TIME");
    }
    assert_eq!(denied(&needed).await.0, ["WAIT"]);
    let mut all = needed.to_vec();
    all.extend(["+wait", "+info", "+time", "+config|get"]);
    assert_eq!(denied(&all).await, (vec![], 0));

    // The commands, but not on our keys.
    server.command(&["ACL", "SETUSER", "k", "on", ">p", "~other:*", "+@all"]);
    let store = RedisStore::open(&format!("{}?user=k&pass=p", server.url())).unwrap();
    let findings = store.check().await;
    assert_eq!(findings.len(), 6, "{findings:?}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_one_finding() {
    let mut server = RedisServer::with(&["--requirepass", "right"]);
    let findings = open(&server).check().await;
    assert!(
        matches!(&findings[..], [Finding::Unreachable { error, .. }] if error.code() == Some("NOAUTH")),
        "{findings:?}"
    );
    // The server's own words end with a full stop.
    assert!(found(&open(&server)).await[0].contains("NOAUTH"));
    server.kill();
    let proxy = Proxy::before(&server).await;
    let store = RedisStore::builder(&proxy.url()).connect_timeout(Duration::from_millis(200));
    let findings = store.open().unwrap().check().await;
    assert!(
        matches!(&findings[..], [Finding::Unreachable { .. }]),
        "{findings:?}"
    );
}

#[tokio::test]
async fn what_keeps_a_connection_from_coming_about_is_one_finding() {
    let server = fit();
    server.command(&["ACL", "SETUSER", "w", "on", ">p", "~*", "+@all", "-select"]);
    for url in [
        format!("{}?db=99", server.url()),
        format!("{}?db=1&user=w&pass=p", server.url()),
    ] {
        let store = RedisStore::open(&url).unwrap();
        let findings = store.check().await;
        assert!(
            matches!(&findings[..], [Finding::Unreachable { .. }]),
            "{findings:?}"
        );
    }
}

#[tokio::test]
async fn a_command_that_the_server_does_not_know_is_named() {
    let server = RedisServer::with(&["--appendonly", "yes", "--rename-command", "EVAL", ""]);
    let findings = open(&server).check().await;
    assert!(
        matches!(
            &findings[..],
            [Finding::Denied {
                command: "EVAL",
                ..
            }]
        ),
        "{findings:?}"
    );
}

#[tokio::test]
async fn an_old_server_and_one_whose_clock_is_off_are_found_out() {
    let fake = FakeRedis::start(|command| {
        match &*command[0] {
            "INFO" => "$40\r\nredis_version:6.2.14\r\nrole:master\r\nx:y\r\n",
            "TIME" => "*2\r\n$10\r\n1000000000\r\n$1\r\n0",
            "EVALSHA" => "-NOSCRIPT No matching script",
            _ => "$-1",
        }
        .to_owned()
    })
    .await;
    let findings = RedisStore::open(&fake.url()).unwrap().check().await;
    assert!(
        matches!(
            &findings[..],
            [Finding::Old { version, .. }, Finding::Skewed { .. }] if version == "6.2.14"
        ),
        "{findings:?}"
    );
}

#[tokio::test]
async fn too_few_replicas_are_found_out() {
    let (port, server) = support::listening(&["--appendonly", "yes"]);
    let store = RedisStore::builder(&server.url()).min_replicas(1, Duration::from_millis(100));
    let store = store.open().unwrap();
    let findings = store.check().await;
    assert!(
        matches!(
            &findings[..],
            [Finding::TooFewReplicas {
                connected: 0,
                needed: 1,
                ..
            }]
        ),
        "{findings:?}"
    );
    let _replica = RedisServer::with(&["--replicaof", "127.0.0.1", &port.to_string()]);
    until("it is connected", async || store.check().await.is_empty()).await;
}

#[cfg(feature = "cluster")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_cluster_is_found_out() {
    let cluster = support::Cluster::of_one();
    let node = &cluster.nodes()[0];
    let server = &node.server;
    server.command(&["CONFIG", "SET", "appendonly", "yes"]);
    let store = RedisStore::open(&cluster.url()).unwrap();
    let findings = store.check().await;
    assert!(
        matches!(&findings[..], [Finding::NoReplicas { .. }]),
        "{findings:?}"
    );
    let alone = RedisStore::open(&server.url()).unwrap();
    let findings = alone.check().await;
    assert!(
        matches!(&findings[..], [Finding::ClusterNode { .. }]),
        "{findings:?}"
    );
    let client =
        redis::cluster::ClusterClient::new([format!("redis://127.0.0.1:{}", node.port)]).unwrap();
    let given = client.get_async_connection().await.unwrap();
    assert_eq!(found(&RedisStore::new(given)).await, [""; 0]);
    server.command(&["CLUSTER", "DELSLOTS", "7", "8"]);
    let findings = RedisStore::open(&cluster.url()).unwrap().check().await;
    assert!(
        matches!(
            &findings[..],
            [
                Finding::Uncovered { slots: 2, .. },
                Finding::NoReplicas { .. }
            ]
        ),
        "{findings:?}"
    );
    let away = RedisStore::open("redis+cluster://127.0.0.1:1").unwrap();
    let findings = away.check().await;
    assert!(
        matches!(&findings[..], [Finding::Unreachable { .. }]),
        "{findings:?}"
    );
}

#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_sentinels_is_found_out() {
    let mut service = support::Service::start();
    for server in service.servers() {
        server.command(&["CONFIG", "SET", "appendonly", "yes"]);
    }
    let store = RedisStore::open(&service.url()).unwrap();
    assert_eq!(found(&store).await, [""; 0]);
    service.sentinel_mut(0).kill();
    service.sentinel_mut(1).kill();
    until("the third one has noticed", async || {
        let findings = store.check().await;
        let unreachable = findings
            .iter()
            .filter(|it| matches!(it, Finding::Unreachable { .. }));
        let no_quorum = findings
            .iter()
            .any(|it| matches!(it, Finding::NoQuorum { .. }));
        unreachable.count() == 2 && no_quorum
    })
    .await;
}

#[tokio::test]
async fn a_sentinel_that_is_taken_for_a_server_is_one_finding() {
    let (_, sentinel) = support::listening(&["--sentinel"]);
    let client = redis::Client::open(sentinel.url()).unwrap();
    let given = client.get_multiplexed_async_connection().await.unwrap();
    for store in [open(&sentinel), RedisStore::new(given)] {
        let findings = store.check().await;
        assert!(
            matches!(&findings[..], [Finding::Sentinel { .. }]),
            "{findings:?}"
        );
        assert!(found(&store).await[0].contains("redis+sentinel://"));
    }
    // It has no databases either, so that no connection comes about.
    let store = RedisStore::open(&format!("{}?db=1", sentinel.url())).unwrap();
    let findings = found(&store).await;
    assert!(
        matches!(&findings[..], [one] if one.contains("redis+sentinel://")),
        "{findings:?}"
    );
}

/// What the documentation says that an event takes.
#[tokio::test]
async fn an_event_takes_as_much_memory_as_documented() {
    let server = RedisServer::start();
    let store = open(&server);
    let size = |key: &str| server.number(&["MEMORY", "USAGE", key, "SAMPLES", "0"]);
    // As the layer makes them: an endpoint, an id, and the hash of the body, which the record has, too.
    let hash = BodyHash::of(b"{}");
    let key = Key::with_hash("billing", "evt_1NG8Du2eZvKYlo2CUI79vXWy", hash);
    let token = acquired(&store, &key).await;
    let running = size(key.as_str());
    let record = Record::new(Some(200), Some(hash));
    let complete = store.complete(&key, token, &record, support::LEASE, support::by());
    assert!(complete.await.unwrap());
    let done = size(key.as_str());
    assert!(
        running.max(done) <= 300,
        "running {running}, done {done} bytes, of a key of {}",
        key.as_str().len()
    );

    // With all that Redis keeps beside the key.
    let used = || {
        let memory = server.text(&["INFO", "memory"]);
        let mut fields = memory.lines().filter_map(|line| line.split_once(':'));
        let (_, used) = fields.find(|(name, _)| *name == "used_memory").unwrap();
        used.parse::<u64>().unwrap()
    };
    let value = server.text(&["GET", key.as_str()]);
    let stem = &key.as_str()[..key.as_str().len() - 8];
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let before = used();
    for batch in 0..128 {
        let mut pipe = redis::pipe();
        for n in 0..1024 {
            // As long as the real one.
            let key = format!("{stem}{:08}", batch * 1024 + n);
            let set = pipe.cmd("SET").arg(key).arg(&value);
            set.arg("PX").arg(345_600_000).ignore();
        }
        pipe.exec(&mut connection).unwrap();
    }
    let each = (used() - before) / (128 * 1024);
    println!("a completed event takes {done} bytes by MEMORY USAGE, and {each} with all around it");
    assert!(each <= 400, "{each} bytes each");
}
