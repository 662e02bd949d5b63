//! The inner service, and what is asked of it.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::TryFutureExt;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{RequestBody, ResponseBody, future::Step, run::Ended};

/// A service that takes the layer's requests; any that is one is one of these.
pub(crate) trait Inner<B>:
    Service<
        Request<RequestBody<B>>,
        Response = Response<Self::Body>,
        Error: Send + 'static,
        Future: Send + 'static,
    > + Clone
    + Send
    + 'static
{
    type Body: Body<Error: Send> + Send + 'static;
}

impl<S, B, R> Inner<B> for S
where
    R: Body<Error: Send> + Send + 'static,
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
{
    type Body = R;
}

/// The answer to the sender.
pub(crate) type Answer<S, B> = Result<
    Response<ResponseBody<<S as Inner<B>>::Body>>,
    <S as Service<Request<RequestBody<B>>>>::Error,
>;

/// What follows for the sender, or at once the answer.
pub(crate) type Next<S, B> = Step<Answer<S, B>>;

/// The answer of the inner service; `None`: it took too long.
pub(crate) type InnerAnswer<S, B> =
    Option<Result<Response<<S as Inner<B>>::Body>, <S as Service<Request<RequestBody<B>>>>::Error>>;

/// What came of a run of the inner service.
pub(crate) type InnerEnded<S, B> =
    Ended<<S as Inner<B>>::Body, <S as Service<Request<RequestBody<B>>>>::Error>;

/// The answer of the service as it goes out, without a run.
pub(crate) fn forward<S: Inner<B>, B>(
    service: S,
    request: Request<RequestBody<B>>,
) -> impl Future<Output = Answer<S, B>> {
    oneshot(service, request).map_ok(|response| response.map(ResponseBody::inner))
}

/// Waits until the service is ready, and calls it. It is this request's own clone.
pub(crate) const fn oneshot<S: Service<Q>, Q>(service: S, request: Q) -> Oneshot<S, Q> {
    Oneshot::Waiting {
        waiting: Some((service, request)),
    }
}

pin_project! {
    /// Not an `async fn`, which would keep the room for the request until the answer is here.
    #[project = OneshotProj]
    pub(crate) enum Oneshot<S: Service<Q>, Q> {
        Waiting { waiting: Option<(S, Q)> },
        Called { #[pin] answer: S::Future },
    }
}

impl<S: Service<Q>, Q> Future for Oneshot<S, Q> {
    type Output = Result<S::Response, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let waiting = match self.as_mut().project() {
                OneshotProj::Called { answer } => return answer.poll(cx),
                OneshotProj::Waiting { waiting } => waiting,
            };
            if let Some((service, _)) = waiting {
                ready!(service.poll_ready(cx))?;
            }
            // Gone only after an error, or a panic, after which nobody polls.
            let Some((mut service, request)) = waiting.take() else {
                return Poll::Pending;
            };
            let answer = service.call(request);
            self.set(Self::Called { answer });
        }
    }
}
