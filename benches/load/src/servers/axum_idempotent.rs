//! The crate `axum-idempotent` over the Redis store of `ruts`, everything at its default. It takes the
//! whole request for the event, and keeps answers in the session that a cookie names.

use std::sync::Arc;

use axum::Router;
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use fred::{clients::Client, interfaces::ClientLike, types::config::Config};
use ruts::{CookieOptions, SessionLayer, store::redis::RedisStore};
use tower_cookies::CookieManagerLayer;

use crate::Result;

pub(super) async fn around(app: Router, redis: &str) -> Result<Router> {
    let client = Client::new(Config::from_url(redis)?, None, None, None);
    client.init().await?;
    let store = RedisStore::new(Arc::new(client)).await?;
    let layer = IdempotentLayer::<RedisStore<Client>>::new(IdempotentOptions::default());
    let sessions = SessionLayer::new(Arc::new(store));
    let sessions = sessions.with_cookie_options(CookieOptions::build().name("session"));
    Ok(app
        .layer(layer)
        .layer(sessions)
        .layer(CookieManagerLayer::new()))
}
