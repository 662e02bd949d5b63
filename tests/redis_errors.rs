//! What `RedisStore` makes of what a server says when it refuses.

mod support;

use std::time::SystemTime;

use tower_webhook_dedup::{Entry, LeaseStore, Release, StoreError, StoreErrorKind, Token};

use self::support::{
    FAILED, FakeRedis, LEASE, RedisServer, acquired, by, fresh, listening, refused,
    refused_by_name, store_at,
};

#[tokio::test]
async fn errors_of_the_server_are_sorted() {
    use StoreErrorKind::{BadReply, Denied, Misconfigured, OutOfMemory, ReadOnly, Unreachable};
    for (line, kind) in [
        (
            "-LOADING Redis is loading the dataset in memory",
            Unreachable,
        ),
        ("-MASTERDOWN Link with MASTER is down", Unreachable),
        ("-CLUSTERDOWN The cluster is down", Unreachable),
        (
            "-TRYAGAIN Multiple keys request during rehashing of slot",
            Unreachable,
        ),
        ("-BUSY Redis is busy running a script", Unreachable),
        (
            "-READONLY You can't write against a read only replica.",
            ReadOnly,
        ),
        ("-NOREPLICAS Not enough good replicas to write.", ReadOnly),
        (
            "-OOM command not allowed when used memory > 'maxmemory'.",
            OutOfMemory,
        ),
        (
            "-MISCONF Redis is configured to save RDB snapshots",
            OutOfMemory,
        ),
        ("-NOAUTH Authentication required.", Denied),
        ("-NOPERM this user has no permissions", Denied),
        ("-MOVED 866 127.0.0.1:7001", BadReply),
        (
            "-ERR Error running script (call to f_1): @user_script:9: -OOM command not allowed",
            OutOfMemory,
        ),
        (
            "-ERR Error running script (call to f_1): @user_script:3: -READONLY You can't write",
            ReadOnly,
        ),
        ("-ERR something new", BadReply),
        ("-ERR unknown command 'SETTLE'", BadReply),
        ("-ERR unknown command 'SET'", Misconfigured),
        ("-ERR unknown command 'GET'", Misconfigured),
        (
            "-ERR unknown command `SET`, with args beginning with: `k`,",
            Misconfigured,
        ),
        ("+OK", BadReply),
        (":1", BadReply),
        ("*0", BadReply),
    ] {
        let fake = FakeRedis::saying(line).await;
        let store = store_at(&fake.url());
        let error = refused(&store).await;
        assert_eq!(error.kind(), kind, "{line}: {error}");
        let refusal = line.strip_prefix('-');
        assert_eq!(
            error.may_have_landed(),
            refusal.is_none(),
            "{line}: {error}"
        );
        assert!(
            error.to_string().contains(refusal.unwrap_or_default()),
            "{error}"
        );
        assert_eq!(fake.commands().len(), 1, "{line}: not repeated");

        // From a replica, and from no other, the next one goes over a new connection.
        refused(&store).await;
        let replica = line.contains("READONLY") || line.contains("MASTERDOWN");
        let connections = 1 + u32::from(replica);
        assert_eq!(fake.connections(), connections, "{line}");
    }
}

#[tokio::test]
async fn a_reply_that_is_no_protocol_is_an_error() {
    let fake = FakeRedis::saying("HTTP/1.1 400 Bad Request").await;
    let error = refused_by_name(&store_at(&fake.url())).await;
    assert_eq!(error.kind(), StoreErrorKind::BadReply, "{error}");
    assert!(error.may_have_landed());
}

#[tokio::test]
async fn a_user_without_scripts_is_denied() {
    let server = RedisServer::start();
    server.command(&[
        "ACL", "SETUSER", "w", "on", ">p", "~*", "-@all", "+set", "+get",
    ]);
    let store = store_at(&format!("{}?user=w&pass=p", server.url()));
    let key = fresh();
    let token = acquired(&store, &key).await;
    let error = store
        .release(&key, token, FAILED, LEASE, by())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    // Without the commands that the script runs.
    server.command(&["ACL", "SETUSER", "w", "+eval", "+evalsha"]);
    let error = store
        .release(&key, token, Release::Abandoned, LEASE, by())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn a_sentinel_that_is_taken_for_a_server_is_misconfigured() {
    let (_, sentinel) = listening(&["--sentinel"]);
    for url in [sentinel.url(), format!("{}?db=1", sentinel.url())] {
        let error = refused_by_name(&store_at(&url)).await;
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("redis+sentinel://"), "{error}");
        assert!(!error.may_have_landed());
    }
}

/// Only with its text, where the server does not know it.
#[tokio::test]
async fn a_script_that_is_refused_is_not_sent_again() {
    for (line, sent) in [
        ("-NOPERM this user has no permissions", 1),
        ("-ERR something new", 1),
        ("-NOSCRIPT No matching script", 2),
    ] {
        let fake = FakeRedis::saying(line).await;
        let store = store_at(&fake.url());
        let key = fresh();
        let renew = store.renew(&key, Token::random(), LEASE, by());
        assert!(renew.await.is_err());
        assert_eq!(fake.commands().len(), sent, "{line}");
    }
}

/// Others take the event over and fail, each time before this one can.
#[tokio::test]
async fn an_entry_that_changes_each_time_is_given_up() {
    let failed = Entry::Failed {
        token: Token::random(),
        at: SystemTime::now(),
        attempts: 1,
        status: None,
    };
    let failed = failed.to_string();
    let fake = FakeRedis::saying(&format!("${}\r\n{failed}", failed.len())).await;
    let (store, key) = (store_at(&fake.url()), fresh());
    let acquire = store.acquire(&key, Token::random(), LEASE, by());
    let error = acquire.await.unwrap_err();
    assert!(error.to_string().contains("changed"), "{error}");
    assert!(!error.may_have_landed());
}
