//! Promise 6: the inner service sees the request as it was sent, and is asked as it wants to be.

mod body;
mod parts;
mod readiness;
mod untouched;
mod without_id;

#[path = "../support/http.rs"]
mod http_support;
#[path = "../support/stores.rs"]
mod stores;

use std::{
    convert::Infallible,
    io,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, request::Parts};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use tower::Service;
use tower_webhook_dedup::RequestBody;

type AnyBody = UnsyncBoxBody<Bytes, io::Error>;

fn whole(body: impl Into<Bytes>) -> AnyBody {
    UnsyncBoxBody::new(Full::new(body.into()).map_err(|never| match never {}))
}

fn framed(frames: Vec<Frame<Bytes>>) -> AnyBody {
    let frames = futures_util::stream::iter(frames.into_iter().map(Ok));
    UnsyncBoxBody::new(StreamBody::new(frames))
}

/// A request as a handler got it.
#[derive(Debug)]
struct Got {
    parts: Parts,
    data: Bytes,
    trailers: Option<HeaderMap>,
    buffered: bool,
}

/// An inner service that keeps what it gets.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<Vec<Got>>>);

impl Keeper {
    fn take(&self) -> Vec<Got> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn one(&self) -> Got {
        let mut got = self.take();
        assert_eq!(got.len(), 1);
        got.remove(0)
    }
}

impl<B> Service<Request<RequestBody<B>>> for Keeper
where
    B: Body<Error: std::fmt::Debug> + Send + 'static,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<B>>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let buffered = body.bytes().is_some();
            let body = body.collect().await.unwrap();
            let trailers = body.trailers().cloned();
            let data = body.to_bytes();
            this.0.lock().unwrap().push(Got {
                parts,
                data,
                trailers,
                buffered,
            });
            Ok(Response::new(Full::from("kept")))
        })
    }
}
