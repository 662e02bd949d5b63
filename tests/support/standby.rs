//! Duplicates of an event that is in flight.

#![allow(dead_code, reason = "no test uses all of it")]

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::Instant;
use tower_webhook_dedup::{Entry, Key, LeaseStore, Record, WebhookDedup};

use crate::http_support::{Answer, Handler, post, post_body, secs, send_later};

/// `e1` in the nth of its many forms.
pub(crate) fn form(n: usize) -> Request<Full<Bytes>> {
    post_body(&format!(r#"{{"id":"e1","form":{n}}}"#))
}

pub(crate) fn forms(handler: &Handler) -> Vec<usize> {
    let form = |body: String| {
        let number = body.split("form\":").nth(1)?.strip_suffix('}')?;
        number.parse().ok()
    };
    handler.bodies().into_iter().filter_map(form).collect()
}

pub(crate) fn form_bytes(n: usize) -> Bytes {
    format!(r#"{{"id":"e1","form":{n}}}"#).into()
}

/// The handler's first run is in flight, as `e1`.
pub(crate) async fn first_in_flight<St: LeaseStore>(
    service: &WebhookDedup<Handler, St>,
    handler: &Handler,
) -> tokio::task::JoinHandle<Answer> {
    let first = send_later(service, post("e1"));
    handler.began(1).await;
    first
}

pub(crate) async fn done(store: &impl LeaseStore, key: &Key) -> Option<Record> {
    match store.inspect(key, Instant::now() + secs(1)).await.unwrap() {
        Some(Entry::Done { record, .. }) => Some(record),
        _ => None,
    }
}

pub(crate) fn signed(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    let headers = request.headers_mut();
    headers.insert("x-signature", "true".parse().unwrap());
    request
}
