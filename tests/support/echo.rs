//! The layer with its defaults, and a service behind it that sends back what it gets.

#![allow(dead_code, reason = "no test uses all of it")]

use std::{convert::Infallible, fmt::Debug};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tower::{Service, service_fn};
use tower_webhook_dedup::{EventId, WebhookDedupLayer};

use crate::front::MemoryStore;

pub(crate) const EVENT: &str = r#"{"id":"e1","n":1}"#;

/// The body of the answer to a duplicate.
pub(crate) const DUPLICATE: &str = r#"{"status":"success","message":"Duplicate request ignored."}"#;

pub(crate) fn layer() -> WebhookDedupLayer<MemoryStore> {
    WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"))
}

/// Answers with the body of the request.
pub(crate) async fn answer<B, E>(request: Request<B>) -> Result<Response<Full<Bytes>>, E>
where
    B: Body<Error: Debug>,
{
    let body = request.into_body().collect().await.unwrap().to_bytes();
    Ok(Response::new(Full::new(body)))
}

/// The service that answers so.
pub(crate) fn echo<B>()
-> impl Service<Request<B>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send>
+ Clone
+ Send
where
    B: Body<Data: Send, Error: Debug> + Send + 'static,
{
    service_fn(answer)
}

pub(crate) fn outcome<B>(response: &Response<B>) -> &str {
    response.headers()["webhook-dedup"].to_str().unwrap()
}

pub(crate) async fn text<B: Body<Error: Debug>>(response: Response<B>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}
