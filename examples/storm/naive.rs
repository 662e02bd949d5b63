//! What is usually written by hand: `SET key NX EX`, and 200 where the key is taken.
//!
//! It runs each event at most once, and loses those whose run fails: nobody takes the key away, and
//! the sender was told that all is well.

use std::{
    collections::HashSet,
    error::Error,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use redis::aio::MultiplexedConnection;
use sha2::{Digest, Sha256};

use super::plan::Payload;

const MAX_BODY: usize = 1024 * 1024;
const SECONDS: u64 = 300;

/// The keys that are taken.
#[derive(Clone)]
pub(crate) struct Locks {
    namespace: String,
    redis: Option<MultiplexedConnection>,
    memory: Arc<Mutex<HashSet<String>>>,
}

impl Locks {
    pub(crate) async fn open(
        redis: Option<&str>,
        namespace: String,
    ) -> Result<Self, Box<dyn Error>> {
        let redis = match redis {
            Some(url) => Some(
                redis::Client::open(url)?
                    .get_multiplexed_async_connection()
                    .await?,
            ),
            None => None,
        };
        Ok(Self {
            namespace,
            redis,
            memory: Arc::default(),
        })
    }

    async fn take(&self, key: String) -> redis::RedisResult<bool> {
        let Some(redis) = &self.redis else {
            let mut taken = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
            return Ok(taken.insert(key));
        };
        let mut set = redis::cmd("SET");
        set.arg(key).arg("locked").arg("NX").arg("EX").arg(SECONDS);
        let set: Option<String> = set.query_async(&mut redis.clone()).await?;
        Ok(set.is_some())
    }
}

pub(crate) async fn guard(State(locks): State<Locks>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_BODY).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let Ok(Payload { id, .. }) = serde_json::from_slice(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let hash = hex::encode(Sha256::digest(&body));
    match locks.take(format!("{}:{id}:{hash}", locks.namespace)).await {
        Ok(true) => next.run(Request::from_parts(parts, Body::from(body))).await,
        // The header is only for the table.
        Ok(false) => [("webhook-dedup", "duplicate")].into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
