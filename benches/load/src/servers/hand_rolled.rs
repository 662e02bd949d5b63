//! Deduplication as people write it: half of the work in Redis, and none of the safety.

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use redis::{Client, aio::ConnectionManager};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::handle;
use crate::Result;

pub(super) async fn app(redis: &str) -> Result<Router> {
    let connection = Client::open(redis)?.get_connection_manager().await?;
    Ok(Router::new()
        .route("/webhook", post(webhook))
        .with_state(connection))
}

async fn webhook(State(mut connection): State<ConnectionManager>, body: Bytes) -> Response {
    let Ok(event) = serde_json::from_slice::<Value>(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let Some(id) = event.pointer("/id").and_then(Value::as_str) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let hash = hex::encode(Sha256::digest(&body));
    let first = redis::cmd("SET")
        .arg(format!("webhook:{id}"))
        .arg(&hash)
        .arg("NX")
        .arg("EX")
        .arg(600)
        .query_async::<Option<String>>(&mut connection)
        .await;
    match first {
        Ok(Some(_)) => handle(body).await.into_response(),
        Ok(None) => "duplicate".into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
