//! `RedisStore` over TLS: whom it trusts, and how it shows who we are.

mod support;

#[path = "support/certs.rs"]
mod certs;

#[path = "support/hook.rs"]
mod hook;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use rcgen::ExtendedKeyUsagePurpose::ClientAuth;
use tower_webhook_dedup::{
    RedisStore, RedisStoreBuilder, StoreError, StoreErrorKind, store::contract,
};

use self::{
    certs::Authority,
    hook::{Hook, send_until_taken},
    support::{RedisServer, acquired, fresh, listening_with, refused, refused_by_name, until},
};

/// A server that speaks nothing but TLS, apart from the socket over which the test looks at it.
fn start(authority: &Authority, host: &str, checks_clients: bool) -> (String, RedisServer) {
    let certificates = authority.server_arguments(host, checks_clients);
    let (port, server) = listening_with(&certificates, &[]);
    (format!("rediss://127.0.0.1:{port}"), server)
}

fn trusting(url: &str, authority: &Authority) -> RedisStoreBuilder {
    RedisStore::builder(url).authorities(authority.pem.clone())
}

#[tokio::test]
async fn a_private_authority_is_trusted_where_it_is_named() {
    let authority = Authority::new("ours");
    let (url, _server) = start(&authority, "127.0.0.1", false);
    contract(trusting(&url, &authority).open().unwrap()).await;

    // The system does not know it, and another did not sign.
    for store in [
        RedisStore::open(&url),
        trusting(&url, &Authority::new("theirs")).open(),
    ] {
        let error = refused_by_name(&store.unwrap()).await;
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
        assert!(!error.may_have_landed());
        assert!(error.to_string().contains("certificate"), "{error}");
    }
    // Without TLS on our side.
    let plain = RedisStore::open(&url.replace("rediss", "redis")).unwrap();
    assert!(!refused(&plain).await.may_have_landed());
}

#[tokio::test]
async fn a_certificate_of_another_host_is_refused() {
    let authority = Authority::new("ours");
    let (url, _server) = start(&authority, "redis.example", false);
    let error = refused_by_name(&trusting(&url, &authority).open().unwrap()).await;
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[tokio::test]
async fn a_server_that_checks_clients_lets_in_those_with_a_certificate() {
    let authority = Authority::new("ours");
    let (url, _server) = start(&authority, "127.0.0.1", true);
    let ours = authority.sign(ClientAuth);
    let store = trusting(&url, &authority)
        .client_certificate(ours.certificate, ours.key)
        .open()
        .unwrap();
    acquired(&store, &fresh()).await;

    let error = refused_by_name(&trusting(&url, &authority).open().unwrap()).await;
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    assert!(!error.may_have_landed(), "{error}");
    let forged = Authority::new("ours").sign(ClientAuth);
    let store = trusting(&url, &authority)
        .client_certificate(forged.certificate, forged.key)
        .open()
        .unwrap();
    let error = refused_by_name(&store).await;
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    assert!(!error.may_have_landed(), "{error}");
}

#[cfg(feature = "cluster")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_spoken_to_over_tls_also_after_a_failover() {
    let authority = Authority::new("ours");
    let certificates = authority.server_arguments("127.0.0.1", false);
    let cluster = support::Cluster::start_over_tls(&certificates);
    let store = trusting(&cluster.url(), &authority).open().unwrap();
    contract(store.clone()).await;
    let error = refused_by_name(&RedisStore::open(&cluster.url()).unwrap()).await;
    assert!(error.to_string().contains("certificate"), "{error}");

    let hook = Hook::with_store(store, |layer| layer);
    send_until_taken(&hook, "e1").await.is(200, "run");
    let old = cluster.nodes()[..3].iter().position(|node| {
        let server = &node.server;
        !hook::keys(server, "e1").is_empty()
    });
    let new = cluster.replica_of(old.unwrap());
    let new = &cluster.nodes()[new].server;
    new.command(&["CLUSTER", "FAILOVER"]);
    until("it takes over", async || {
        let replication = new.text(&["INFO", "replication"]);
        replication.contains("role:master")
    })
    .await;
    let again = send_until_taken(&hook, "e1").await;
    again.is(200, "duplicate");
}

/// The Sentinels and the servers check certificates alike.
#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_their_primary_are_spoken_to_over_tls_also_after_a_failover() {
    let authority = Authority::new("ours");
    let certificates = authority.server_arguments("127.0.0.1", true);
    let service = support::Service::start_over_tls(&certificates);
    let ours = authority.sign(ClientAuth);
    let store = trusting(&service.url(), &authority)
        .client_certificate(ours.certificate, ours.key)
        .open()
        .unwrap();
    contract(store.clone()).await;
    let nobody = trusting(&service.url(), &authority).open().unwrap();
    let error = refused_by_name(&nobody).await;
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");

    let hook = Hook::with_store(store, |layer| layer);
    send_until_taken(&hook, "e1").await.is(200, "run");
    until("both replicas have it", async || {
        service.servers().all(|server| hook::is_done(server, "e1"))
    })
    .await;
    service.fail_over();
    let next = AtomicUsize::new(2);
    until("the new primary is asked", async || {
        let id = format!("e{}", next.fetch_add(1, Ordering::Relaxed));
        send_until_taken(&hook, &id).await;
        let primary = service.servers().nth(service.primary()).unwrap();
        hook::is_done(primary, &id)
    })
    .await;
    send_until_taken(&hook, "e1").await.is(200, "duplicate");
}

/// R72 over TLS.
#[tokio::test]
async fn a_connection_closed_while_idle_is_not_noticed() {
    let authority = Authority::new("ours");
    let (url, server) = start(&authority, "127.0.0.1", false);
    let store = trusting(&url, &authority).open().unwrap();
    acquired(&store, &fresh()).await;
    server.command(&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES"]);
    until("the server hung up", async || server.clients().is_empty()).await;
    acquired(&store, &fresh()).await;

    // Handshakes take their time.
    let patient = Duration::from_secs(5);
    let hook = Hook::with_store(store, |layer| layer.store_timeout(patient));
    hook.send("e1").await.is(200, "run");
    server.command(&["CONFIG", "SET", "timeout", "1"]);
    until("the server hung up", async || server.clients().is_empty()).await;
    hook.send("e2").await.is(200, "run");
    assert_eq!(hook.runs("e2"), 1);
    assert!(hook.troubles().is_empty(), "{:?}", hook.troubles());
}

#[test]
fn certificates_that_make_no_sense_are_an_error() {
    let authority = Authority::new("ours");
    let ours = authority.sign(ClientAuth);
    let url = "rediss://:s3cr3t@localhost";
    let nonsense = "-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n";
    for builder in [
        RedisStore::builder(url).authorities(nonsense),
        RedisStore::builder(url).client_certificate(ours.certificate.clone(), "s3cr3t"),
        // They would not be used.
        trusting("redis://:s3cr3t@localhost", &authority),
    ] {
        let shown = format!("{builder:?}");
        assert!(
            !shown.contains("s3cr3t") && !shown.contains("BEGIN"),
            "{shown}"
        );
        let error = builder.open().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("s3cr3t"), "{shown}");
    }
    let store = trusting(url, &authority)
        .client_certificate(ours.certificate, ours.key)
        .open()
        .unwrap();
    let shown = format!("{store:?}");
    assert!(
        shown.contains("TLS") && !shown.contains("s3cr3t"),
        "{shown}"
    );
}
