//! How `RedisStore` gets to its server, and what it says when it does not.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::TcpListener,
    runtime::{self, Runtime},
    time::Instant,
};
use tower_webhook_dedup::{LeaseStore, RedisStore, StoreError, StoreErrorKind};

use self::support::{
    FakeRedis, Proxy, RedisServer, acquired, builder_at, by, fresh, refused, refused_by_name,
    until, works,
};

fn open(server: &RedisServer) -> RedisStore {
    RedisStore::open(&server.url()).unwrap()
}

/// R48.
#[tokio::test]
async fn a_wrong_password_is_a_clear_error_without_it() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    let proxy = Proxy::before(&server).await;
    let at = |login: &str| proxy.url().replace("redis://", &format!("redis://{login}"));

    let store = RedisStore::open(&at("sesam:s3cr3t@")).unwrap();
    let error = refused_by_name(&store).await;
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    assert_eq!(error.code(), Some("WRONGPASS"));
    for shown in [
        format!("{store:?}"),
        format!("{error}"),
        format!("{error:?}"),
    ] {
        assert!(!shown.contains("s3cr3t"), "{shown}");
    }
    let none = refused_by_name(&RedisStore::open(&proxy.url()).unwrap()).await;
    assert_eq!(none.kind(), StoreErrorKind::Denied, "{none}");
    assert_eq!(none.code(), Some("NOAUTH"));
    acquired(&RedisStore::open(&at(":right@")).unwrap(), &fresh()).await;
    acquired(&RedisStore::open(&at("default:right@")).unwrap(), &fresh()).await;
}

#[tokio::test]
async fn a_server_that_repeats_the_password_is_not_quoted() {
    let fake =
        FakeRedis::saying("-ERR unknown command 'AUTH', with args beginning with: 's3cr3t'").await;
    let url = fake.url().replace("redis://", "redis://:s3cr3t@");
    let error = refused_by_name(&RedisStore::open(&url).unwrap()).await;
    assert!(
        !format!("{error} {error:?}").contains("s3cr3t"),
        "{error:?}"
    );
}

/// Whatever the server's words: it did not let us in.
#[tokio::test]
async fn a_refused_login_is_denied() {
    for answer in [
        "-WRONGPASS invalid username-password pair or user is disabled.",
        "-ERR invalid password",
        "-ERR AUTH <password> called without any password configured for the default user.",
        "-ERR Client sent AUTH, but no password is set",
        "-ERR unknown command 'AUTH', with args beginning with: 's3cr3t'",
        "-ERR wrong number of arguments for 'auth' command",
        "-NOTYET come again",
    ] {
        let fake = FakeRedis::saying(answer).await;
        for login in [":s3cr3t@", "user:s3cr3t@"] {
            let url = fake.url().replace("redis://", &format!("redis://{login}"));
            let error = refused_by_name(&RedisStore::open(&url).unwrap()).await;
            assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
            assert!(!error.may_have_landed());
        }
    }
    // It says nothing about the login.
    let fake = FakeRedis::saying("-LOADING Redis is loading the dataset in memory").await;
    let url = fake.url().replace("redis://", "redis://:s3cr3t@");
    let error = refused_by_name(&RedisStore::open(&url).unwrap()).await;
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
}

/// As `main` prints it.
#[test]
fn an_error_is_shown_as_a_sentence() {
    fn main() -> Result<(), Box<dyn std::error::Error>> {
        RedisStore::open("redis:/localhost")?;
        Ok(())
    }
    let error = main().unwrap_err();
    let shown = "the store is misconfigured: the URL of the server";
    assert!(format!("{error:?}").starts_with(shown), "{error:?}");
}

#[test]
fn a_malformed_url_is_told_what_one_looks_like() {
    for url in [
        "localhost:6379",
        "redis://:pass/word@localhost",
        "http://localhost",
    ] {
        let error = RedisStore::open(url).expect_err(url).to_string();
        let form = "redis://[user][:password@]host[:port][/db]";
        assert!(
            error.contains(form) && error.contains("percent-encoded"),
            "{error}"
        );
    }
}

#[test]
fn a_malformed_url_is_an_error_without_the_password() {
    for url in [
        "",
        "s3cr3t",
        "http://:s3cr3t@localhost",
        "redis://",
        "redis://:s3cr3t@",
        "redis://:s3cr3t@localhost:port",
        "redis://:s3cr3t@localhost/db",
        "redis://:s3c#r3t@localhost",
        "redis://localhost/?protocol=s3cr3t",
        "rediss://:s3cr3t@localhost#insecure",
        "redis+cluster://",
        "redis+cluster://:s3cr3t@",
        "redis+cluster://:s3cr3t@localhost,",
        "redis+cluster://:s3cr3t@localhost:port,localhost",
        "redis+cluster://:s3cr3t@localhost/5",
        "redis+cluster://localhost?protocol=s3cr3t",
        "redis+sentinel://:s3cr3t@localhost",
        "redis+sentinel://:s3cr3t@localhost/",
        "redis+sentinel://:s3cr3t@localhost/service/db",
        "redis+sentinel://:s3cr3t@,/service",
        "redis+sentinel://:s3cr3t@localhost/service#s3cr3t",
    ] {
        let error = RedisStore::open(url).expect_err(url);
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
        assert!(!error.may_have_landed());
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("s3c"), "{shown}");
    }
    // No runtime is needed, and no server.
    let store = RedisStore::open("redis://user:s3cr3t@localhost:1/5").unwrap();
    let shown = format!("{store:?}");
    assert!(shown.contains("localhost:1/5"), "{shown}");
    for not_so in ["s3cr3t", "TLS"] {
        assert!(!shown.contains(not_so), "{shown}");
    }
}

#[test]
fn a_url_that_needs_a_feature_is_an_error_without_it() {
    for (url, feature, on) in [
        (
            "redis+cluster://:s3cr3t@a,b:7000",
            "cluster",
            cfg!(feature = "cluster"),
        ),
        (
            "redis+sentinel://:s3cr3t@a,[::1]:7000/service/2",
            "sentinel",
            cfg!(feature = "sentinel"),
        ),
        ("rediss://:s3cr3t@a", "tls", cfg!(feature = "tls")),
        (
            "rediss+cluster://:s3cr3t@a,b",
            "tls",
            cfg!(all(feature = "tls", feature = "cluster")),
        ),
    ] {
        let shown = match RedisStore::open(url) {
            Ok(store) => {
                assert!(on, "{store:?}");
                format!("{store:?} {:?}", RedisStore::builder(url))
            }
            Err(error) => {
                assert!(!on, "{error}");
                assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
                assert!(error.to_string().contains(feature), "{error}");
                format!("{error} {error:?}")
            }
        };
        assert!(!shown.contains("s3cr3t"), "{shown}");
    }
}

/// R48.
#[tokio::test]
async fn a_server_that_cannot_be_reached_is_an_error_in_time() {
    // Nobody listens on a port that was just given back.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = listener.local_addr().unwrap();
    drop(listener);
    let store = RedisStore::open(&format!("redis://{closed}")).unwrap();
    for _ in 0..3 {
        let error = refused_by_name(&store).await;
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
        assert!(!error.may_have_landed());
        assert!(error.to_string().contains(&closed.to_string()), "{error}");
    }

    let store = RedisStore::open("redis://no-such-host.invalid:6379").unwrap();
    let error = refused(&store).await;
    assert!(!error.may_have_landed(), "{error}");

    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    proxy.black_hole();
    let store = RedisStore::open(&proxy.url()).unwrap();
    let error = refused(&store).await;
    assert_eq!(error.kind(), StoreErrorKind::TimedOut, "{error}");
    assert!(!error.may_have_landed(), "it was never sent");
    // Many callers, one attempt.
    assert_eq!(proxy.connections(), 1);
    let error = store.inspect(&fresh(), by()).await.unwrap_err();
    assert_eq!(
        error.kind(),
        StoreErrorKind::Unreachable,
        "the attempt has a limit: {error}"
    );
}

fn runtime() -> Runtime {
    runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn another_runtime_goes_on_with_the_store() {
    let server = RedisServer::start();
    let store = open(&server);
    for _ in 0..3 {
        runtime().block_on(acquired(&store, &fresh()));
    }
    // A runtime that ended while it was connecting.
    server.command(&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES"]);
    let store = open(&server);
    server.freeze();
    let error = runtime().block_on(refused(&store));
    assert!(!error.may_have_landed(), "{error}");
    server.thaw();
    let start = Instant::now();
    runtime().block_on(acquired(&store, &fresh()));
    let took = start.elapsed();
    assert!(
        took < Duration::from_secs(1),
        "it waited for a task that is gone: {took:?}"
    );
}

/// What fails there is connecting, and it is not tried again and again until the time is over.
#[test]
fn a_runtime_without_io_is_an_error_at_once() {
    let server = RedisServer::start();
    let store = open(&server);
    let mut without_io = runtime::Builder::new_current_thread();
    let without_io = without_io.enable_time().build().unwrap();
    let error = without_io.block_on(refused(&store));
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    assert!(!error.may_have_landed());
    // Nothing of that stays behind.
    runtime().block_on(until("it works", async || works(&store).await));
}

#[test]
fn a_runtime_that_nobody_drives_holds_up_nobody_for_long() {
    let server = RedisServer::start();
    let store = open(&server);
    let asleep = runtime();
    asleep.block_on(acquired(&store, &fresh()));
    runtime().block_on(until("it works again", async || works(&store).await));
    drop(asleep);
}

/// Nor does the attempt to connect of one.
#[test]
fn an_attempt_that_nobody_drives_holds_up_nobody_for_long() {
    let server = RedisServer::start();
    let store = builder_at(&server.url()).connect_timeout(Duration::from_secs(1));
    let store = store.open().unwrap();
    server.freeze();
    let asleep = runtime();
    let soon = Instant::now() + Duration::from_millis(50);
    let error = asleep.block_on(store.inspect(&fresh(), soon)).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TimedOut, "{error}");
    server.thaw();
    runtime().block_on(acquired(&store, &fresh()));
    drop(asleep);
}

#[test]
fn with_busy_poll_the_thread_does_not_sleep_while_a_reply_is_awaited() {
    let server = RedisServer::start();
    let slept = Arc::new(AtomicBool::new(false));
    let sleeps = slept.clone();
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || sleeps.store(true, Ordering::Relaxed))
        .build()
        .unwrap();
    for (busy_poll, sleeps) in [(Duration::ZERO, true), (Duration::from_secs(60), false)] {
        let store = builder_at(&server.url()).busy_poll(busy_poll).open();
        let store = store.unwrap();
        runtime.block_on(acquired(&store, &fresh()));
        server.freeze();
        slept.store(false, Ordering::Relaxed);
        let soon = Instant::now() + Duration::from_millis(100);
        let error = runtime.block_on(store.inspect(&fresh(), soon)).unwrap_err();
        assert_eq!(slept.load(Ordering::Relaxed), sleeps, "{busy_poll:?}");
        assert_eq!(error.kind(), StoreErrorKind::TimedOut, "{error}");
        server.thaw();
        // Whoever waited for a reply before does not get this one's.
        runtime.block_on(acquired(&store, &fresh()));
    }
}

#[tokio::test]
async fn a_given_manager_reconnects_under_the_call() {
    let mut server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let store = RedisStore::new(client.get_connection_manager().await.unwrap());
    acquired(&store, &fresh()).await;
    server.command(&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES"]);
    acquired(&store, &fresh()).await;
    server.restart();
    acquired(&store, &fresh()).await;
}

#[tokio::test]
async fn a_given_connection_that_broke_stays_broken() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let store = RedisStore::new(client.get_multiplexed_async_connection().await.unwrap());
    acquired(&store, &fresh()).await;
    server.freeze();
    assert_eq!(refused(&store).await.kind(), StoreErrorKind::TimedOut);
    server.thaw();
    until("it works again", async || works(&store).await).await;
    server.command(&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES"]);
    assert_eq!(
        refused_by_name(&store).await.kind(),
        StoreErrorKind::Unreachable
    );
    assert_eq!(
        refused_by_name(&store).await.kind(),
        StoreErrorKind::Unreachable
    );
}
