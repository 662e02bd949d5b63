//! Layers inside each other.

mod layers;
mod runs;
mod unkept;
mod worlds;

#[path = "../support/http.rs"]
mod http_support;
#[path = "../support/stores.rs"]
mod stores;

use std::{convert::Infallible, fmt::Debug, future::Future};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, Service, service_fn, util::BoxCloneService};
use tower_webhook_dedup::{LeaseStore, RequestBody, WebhookDedupLayer};

use self::http_support::{Answer, send};

type Sent = Request<Full<Bytes>>;
type Boxed<Q> = BoxCloneService<Q, Response<Full<Bytes>>, Infallible>;

/// The layer around a service.
fn around<St: LeaseStore, S>(layer: &WebhookDedupLayer<St>, service: S) -> Boxed<Sent>
where
    S: Service<Request<RequestBody<Full<Bytes>>>, Response = Response<Full<Bytes>>>
        + Clone
        + Send
        + 'static,
    S::Error: Send + Debug + 'static,
    S::Future: Send + 'static,
{
    let layered = layer.layer(service);
    answering(move |request| send(&layered, request))
}

/// What stands between two layers, and does with the requests what it likes.
fn between<F>(
    act: impl Fn(Sent) -> F + Clone + Send + 'static,
) -> Boxed<Request<RequestBody<Full<Bytes>>>>
where
    F: Future<Output = Answer> + Send + 'static,
{
    answering(move |request: Request<RequestBody<Full<Bytes>>>| {
        act(request.map(|body| Full::new(body.bytes().unwrap().clone())))
    })
}

fn pass_on(inner: Boxed<Sent>) -> Boxed<Request<RequestBody<Full<Bytes>>>> {
    between(move |request| send(&inner, request))
}

fn answering<Q: Send + 'static, F>(act: impl Fn(Q) -> F + Clone + Send + 'static) -> Boxed<Q>
where
    F: Future<Output = Answer> + Send + 'static,
{
    BoxCloneService::new(service_fn(move |request| {
        let answer = act(request);
        async { Ok(response(answer.await)) }
    }))
}

fn response(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(answer.body));
    *response.status_mut() = answer.status.try_into().unwrap();
    *response.headers_mut() = answer.headers;
    *response.extensions_mut() = answer.extensions;
    response
}
