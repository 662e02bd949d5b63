//! Signatures are verified before the store is asked.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use http::StatusCode;
use sha2::Sha256;
use tokio::net::TcpListener;
use tower_webhook_dedup::{LeaseStore, MemoryStore, RedisStore};
use webhook_verify::{Clock, VerifyOptions};

use crate::{
    fixtures::{Fixture, fixture},
    support::{RedisServer, until},
    web::{Answer, Web},
};

#[expect(dead_code, reason = "the test starts the server in its own way")]
#[path = "../../examples/signature.rs"]
mod example;

/// When the last of the fixtures was signed.
struct Then;

impl Clock for Then {
    fn now(&self) -> u64 {
        1_764_205_202
    }
}

async fn serve(store: impl LeaseStore) -> Web {
    let secrets = example::Secrets {
        stripe: "fixture-secret-stripe".to_owned(),
        github: "fixture-secret-github".to_owned(),
        standard_webhooks: format!(
            "whsec_{}",
            BASE64_STANDARD.encode("fixture-secret-standardwebhooks!")
        ),
    };
    let options = VerifyOptions::default()
        .with_clock(Some(Arc::new(Then)))
        // Stripe's retry comes an hour later.
        .with_max_age(Some(Duration::from_secs(2 * 3600)));
    let (app, _drains) = example::app(&store, secrets, &options);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let web = Web::new(listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, app).into_future());
    web
}

/// The fixtures of each sender, where they go, and the header that has their id.
const SENDERS: [(&str, &str, &str, Option<&str>); 3] = [
    ("/webhooks/stripe", "stripe", "stripe_retry", None),
    ("/webhooks/github", "github", "github", None),
    (
        "/webhooks/standard",
        "standard_webhooks",
        "standard_webhooks_retry",
        Some("webhook-id"),
    ),
];

/// Delivers the fixture, with these headers changed.
async fn deliver(web: &Web, path: &str, fixture: &Fixture, changed: &[(&str, &str)]) -> Answer {
    let headers = fixture.headers.iter().filter_map(|(name, value)| {
        let change = changed.iter().find(|(changed, _)| name == changed);
        let value = change.map_or(value.to_str().unwrap(), |&(_, value)| value);
        (name != "host").then_some((name.as_str(), value))
    });
    let headers: Vec<_> = headers.collect();
    let body = str::from_utf8(&fixture.body).unwrap();
    web.post_with(path, body, &headers).await
}

#[tokio::test]
async fn a_signed_event_runs_once() {
    let web = serve(MemoryStore::new()).await;
    for (path, first, retry, _) in SENDERS {
        let answer = deliver(&web, path, &fixture(first), &[]).await;
        assert_eq!((answer.status, answer.outcome()), (StatusCode::OK, "run"));
        // Signed anew.
        let answer = deliver(&web, path, &fixture(retry), &[]).await;
        assert_eq!(answer.status, StatusCode::OK, "{retry}");
        assert_eq!(answer.outcome(), "duplicate", "{retry}");
    }
}

#[tokio::test]
async fn a_long_event_of_github_reaches_the_handler() {
    let web = serve(MemoryStore::new()).await;
    // Longer than what axum, or the layer, takes by default: GitHub would not send it again.
    let mut event = fixture("github");
    event.body = format!(r#"{{"diff":"{}"}}"#, "+".repeat(3 * 1024 * 1024)).into();
    let mut mac = Hmac::<Sha256>::new_from_slice(b"fixture-secret-github").unwrap();
    mac.update(&event.body);
    let signature = format!("sha256={}", hex::encode(mac.finalize().into_bytes()));

    let signed = [("x-hub-signature-256", &*signature)];
    for outcome in ["run", "duplicate"] {
        let answer = deliver(&web, "/webhooks/github", &event, &signed).await;
        assert_eq!((answer.status, answer.outcome()), (StatusCode::OK, outcome));
    }
}

#[tokio::test]
async fn a_ping_is_verified_and_passes_by() {
    let web = serve(MemoryStore::new()).await;
    for ping in [fixture("github_ping"), fixture("github_ping_form")] {
        for _ in 0..2 {
            let answer = deliver(&web, "/webhooks/github", &ping, &[]).await;
            assert_eq!((answer.status, answer.outcome()), (StatusCode::OK, ""));
        }
        let forged = [("x-hub-signature-256", "sha256=00")];
        let answer = deliver(&web, "/webhooks/github", &ping, &forged).await;
        assert_ne!(answer.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_forged_event_makes_no_store_call() {
    let redis = RedisServer::start();
    let web = serve(RedisStore::open(&redis.url()).unwrap()).await;
    let mut watch = redis.watch();

    for (path, first, _, signed_header) in SENDERS {
        let true_one = fixture(first);
        // Another body under the signature.
        let mut forged = true_one.clone();
        forged.body = [&true_one.body[..], b" "].concat().into();
        let answer = deliver(&web, path, &forged, &[]).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{first}");
        // No signature.
        let mut unsigned = true_one.clone();
        unsigned.headers.clear();
        let answer = deliver(&web, path, &unsigned, &[]).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{first}");
        // Replayed under another id, so that it would run again.
        if let Some(header) = signed_header {
            let answer = deliver(&web, path, &true_one, &[(header, "msg_2")]).await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{first}");
        }
    }
    assert!(watch.commands().is_empty());

    for (path, first, ..) in SENDERS {
        // A machine that is busy may be too slow for the store timeout.
        until("the true one is taken", async || {
            let answer = deliver(&web, path, &fixture(first), &[]).await;
            answer.status == StatusCode::OK
        })
        .await;
    }
    assert!(!watch.commands().is_empty());
}
