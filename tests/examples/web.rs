//! What curl does.

#![allow(dead_code, reason = "no test uses all of it")]

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;

/// A client of one server.
#[derive(Clone)]
pub(crate) struct Web {
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Web {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { client, address }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        self.post_with(path, body, &[]).await
    }

    pub(crate) async fn post_with(
        &self,
        path: &str,
        body: &str,
        headers: &[(&str, &str)],
    ) -> Answer {
        self.send(Method::POST, path, body, headers).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, "", &[]).await.unwrap()
    }

    /// `None`: the server closed the connection, or did not take it.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: &str,
        headers: &[(&str, &str)],
    ) -> Option<Answer> {
        let uri: Uri = format!("http://{}{path}", self.address).parse().unwrap();
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::from(body.to_owned())).unwrap();
        let (head, body) = self.client.request(request).await.ok()?.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        Some(Answer {
            status: head.status,
            headers: head.headers,
            body: String::from_utf8(body.into()).unwrap(),
        })
    }
}

impl Answer {
    /// The layer's header.
    pub(crate) fn outcome(&self) -> &str {
        self.headers
            .get("webhook-dedup")
            .map_or("", |outcome| outcome.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}
