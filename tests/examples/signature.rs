//! Signatures are verified before the store is asked.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::{Engine, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use http::StatusCode;
use sha2::Sha256;
use tokio::net::TcpListener;
use tower_webhook_dedup::{MemoryStore, RedisStore};

use crate::{
    support::RedisServer,
    web::{Answer, Web},
};

#[expect(dead_code, reason = "the test starts the server in its own way")]
#[path = "../../examples/signature.rs"]
mod example;

const KEY: &[u8] = b"a key of the sender and the receiver";
const BODY: &str = r#"{"type":"invoice.paid"}"#;

fn secret() -> String {
    format!("whsec_{}", BASE64_STANDARD.encode(KEY))
}

/// Signs as Standard Webhooks says: `{id}.{timestamp}.{body}`, by HMAC-SHA256.
fn sign(key: &[u8], id: &str, timestamp: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(format!("{id}.{timestamp}.{BODY}").as_bytes());
    format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
}

async fn deliver(web: &Web, key: &[u8], signed_id: &str, id: &str) -> Answer {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let timestamp = now.as_secs().to_string();
    let signature = sign(key, signed_id, &timestamp);
    let headers = [
        ("webhook-id", id),
        ("webhook-timestamp", &timestamp),
        ("webhook-signature", &signature),
    ];
    web.post_with("/webhooks/demo", BODY, &headers).await
}

#[tokio::test]
async fn a_signed_event_runs_once() {
    let (app, _drain) = example::app(MemoryStore::new(), secret());
    let web = serve(app).await;
    for outcome in ["run", "duplicate"] {
        let answer = deliver(&web, KEY, "msg_1", "msg_1").await;
        assert_eq!((answer.status, answer.outcome()), (StatusCode::OK, outcome));
    }
}

#[tokio::test]
async fn a_forged_event_makes_no_store_call() {
    let redis = RedisServer::start();
    let store = RedisStore::open(&redis.url()).unwrap();
    let (app, _drain) = example::app(store, secret());
    let web = serve(app).await;
    let mut watch = redis.watch();

    let forged = deliver(&web, b"another key", "msg_1", "msg_1").await;
    assert_eq!(forged.status, StatusCode::UNAUTHORIZED);
    // Replayed under another id, so that it would run again.
    let replayed = deliver(&web, KEY, "msg_1", "msg_2").await;
    assert_eq!(replayed.status, StatusCode::UNAUTHORIZED);
    let unsigned = web.post("/webhooks/demo", BODY).await;
    assert_eq!(unsigned.status, StatusCode::BAD_REQUEST);
    assert!(watch.commands().is_empty());

    let signed = deliver(&web, KEY, "msg_1", "msg_1").await;
    assert_eq!(signed.outcome(), "run");
    assert!(!watch.commands().is_empty());
}

async fn serve(app: axum::Router) -> Web {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let web = Web::new(listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, app).into_future());
    web
}
