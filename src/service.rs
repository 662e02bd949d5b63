//! The flow of one request, top to bottom.

use std::{
    future::Future,
    sync::Arc,
    task::{self, Poll},
    time::Duration,
};

use futures_util::{FutureExt, TryFutureExt};
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::{
    AfterWait, Begun, DedupEvent, Error, InFlight, Key, Lease, LeaseStore, NoId, Outcome, Refusal,
    RequestBody, ResponseBody,
    buffered::Buffered,
    call::Call,
    delivery::Identity,
    engine::{Claim, NotStoodBy, Waited},
    event::Context,
    future::{ResponseFuture, Step},
    guard::{Guard, Outside},
    inner::{Answer, Inner, InnerEnded, Next, forward},
};

/// Middleware that runs each webhook event once; made by
/// [`WebhookDedupLayer`](crate::WebhookDedupLayer).
///
/// See the [crate docs](crate) for what it does and an example.
#[derive(Debug)]
pub struct WebhookDedup<S, St: LeaseStore> {
    inner: S,
    guard: Arc<Guard<St>>,
}

impl<S, St: LeaseStore> WebhookDedup<S, St> {
    pub(crate) const fn new(inner: S, guard: Arc<Guard<St>>) -> Self {
        Self { inner, guard }
    }
}

impl<S: Clone, St: LeaseStore> Clone for WebhookDedup<S, St> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            guard: self.guard.clone(),
        }
    }
}

impl<S, St, B, R> Service<Request<B>> for WebhookDedup<S, St>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    St: LeaseStore,
    B: Body + Send + 'static,
    R: Body<Error: Send> + Send + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<Result<Self::Response, S::Error>>;

    /// Always ready: a full inner service must not hold up duplicates, which do not need it.
    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let flow = Flow {
            inner: self.inner.clone(),
            guard: self.guard.clone(),
            context: Some(Context::current()),
        };
        let tracker = self.guard.dedup.tracker();
        ResponseFuture::new(tracker, flow.decide(request))
    }
}

/// One request on its way.
pub(crate) struct Flow<S, St: LeaseStore> {
    pub(crate) inner: S,
    pub(crate) guard: Arc<Guard<St>>,
    /// `None` for a run that no sender waits for.
    pub(crate) context: Option<Context>,
}

impl<S, St: LeaseStore> Flow<S, St> {
    /// Finds out what becomes of the request.
    ///
    /// What is rare is boxed, so that it costs the others no room; and this is no `async fn`, since
    /// the request would take its room once more wherever it is moved to.
    fn decide<B: Body + Send + 'static>(
        self,
        request: Request<B>,
    ) -> impl Future<Output = Next<S, B>> + Send + use<S, St, B>
    where
        S: Inner<B>,
    {
        let (parts, body) = request.into_parts();
        let mut request = Buffered::unread(parts);
        async move {
            let guard = self.guard.clone();
            let Guard { dedup, rules } = &*guard;

            // Does not apply: the body streams through.
            if !(rules.applies_to)(&request.parts) {
                let request = Request::from_parts(request.parts, RequestBody::streaming(body));
                return Step::inner(forward(self.inner, request));
            }

            // The whole body, before any store call.
            let hash = match guard.read(&mut request, body).await {
                Ok(hash) => hash,
                Err((refusal, None)) => return Step::Answer(Ok(guard.refuse(refusal))),
                Err((refusal, Some(body))) => {
                    let request = Request::from_parts(request.parts, body);
                    return self.forward_in_shadow(request, Outcome::Refused(refusal));
                }
            };

            // A handshake or a probe: the handler answers it each time.
            if rules.passes_by(&request.parts, &request.data) {
                dedup.settings().emit(&DedupEvent::Bypassed);
                return Step::inner(forward(self.inner, request.into_request(None)));
            }

            // Which event it is.
            let identity = match rules.identify(&request.parts, &request.data, hash) {
                Ok(identity) => identity,
                Err(reason) => return self.without_id(request, reason),
            };

            // Who runs it. In a block of its own, after which all this needs no room.
            let retry_after = {
                match dedup.acquire(&identity.key).await {
                    Ok(Begun::InFlight { retry_after }) => retry_after,
                    begun if rules.shadow => return self.shadow(request, identity, begun),
                    Ok(Begun::Acquired(lease)) => {
                        return self.run_and_answer(request, identity, lease);
                    }
                    Ok(Begun::Done(record)) => {
                        rules.recognise(&request.data, &identity);
                        return Step::Answer(Ok(guard.duplicate(request, &identity, record)));
                    }
                    Err((error, claim)) => {
                        return self.store_failed(request, identity, error, claim);
                    }
                }
            };
            rules.recognise(&request.data, &identity);
            Box::pin(self.in_flight(request, identity, retry_after)).await
        }
    }

    /// No id can be read: refused, or forwarded.
    fn without_id<B: Send + 'static>(self, request: Buffered, reason: NoId) -> Next<S, B>
    where
        S: Inner<B>,
    {
        let Guard { dedup, rules } = &*self.guard;
        dedup.settings().emit(&DedupEvent::NoEventId { reason });
        let outcome = rules.without_id(reason);
        if rules.shadow {
            return self.forward_in_shadow(request.into_request(None), outcome);
        }
        match outcome {
            Outcome::Refused(refusal) => Step::Answer(Ok(self.guard.refuse(refusal))),
            outcome => self.forward(request.into_request(None), outcome),
        }
    }

    /// Has the handler answer a request that is no event, and says what became of that.
    pub(crate) fn forward<B: Send + 'static>(
        self,
        request: Request<RequestBody<B>>,
        outcome: Outcome,
    ) -> Next<S, B>
    where
        S: Inner<B>,
    {
        let Self { inner, guard, .. } = self;
        let answer = forward(inner, request);
        Step::inner(answer.map_ok(move |response| guard.rules.mark(response, outcome)))
    }

    /// The lease is held: runs the handler and gives its answer.
    fn run_and_answer<B: Send + 'static>(
        self,
        request: Buffered,
        identity: Identity,
        lease: Lease<St>,
    ) -> Next<S, B>
    where
        S: Inner<B>,
    {
        let outcome = Outcome::Run {
            attempt: lease.attempt(),
        };
        let answer = move |guard: &Guard<St>, ended| guard.ran(ended, outcome);
        self.call(request, identity, Some(lease), answer)
    }

    /// Runs the handler, whether or not the sender hangs up, and makes its answer of what came of it.
    pub(crate) fn call<B: Send + 'static>(
        mut self,
        request: Buffered,
        identity: Identity,
        lease: Option<Lease<St>>,
        answer: impl FnOnce(&Guard<St>, InnerEnded<S, B>) -> Answer<S, B> + Send + 'static,
    ) -> Next<S, B>
    where
        S: Inner<B>,
    {
        let (guard, context) = (self.guard.clone(), self.context.take());
        let call = Call::new(&guard, &request, identity, lease.as_ref(), context);
        let call = Arc::new(call);
        let running = call.clone();
        let run = self.run(request, running, lease);
        Step::Inner(
            Box::pin(run.map(move |ended| answer(&guard, ended))),
            Some(call),
        )
    }

    /// Another attempt is running; where that is a run outside which does not keep the event, this
    /// layer takes its place.
    async fn in_flight<B: Send + 'static>(
        self,
        request: Buffered,
        identity: Identity,
        retry_after: Duration,
    ) -> Next<S, B>
    where
        S: Inner<B>,
    {
        let guard = self.guard.clone();
        loop {
            let outside = guard.outside(&request, &identity.key).await;
            if guard.rules.shadow {
                return self.in_flight_in_shadow(request, identity, outside, retry_after);
            }
            let Ok(Outside::Claims { claim, .. }) = outside else {
                return self.held(request, identity, outside, retry_after).await;
            };
            match guard.dedup.acquire_from(&claim).await {
                Ok(Begun::InFlight { .. }) => {}
                Ok(Begun::Acquired(lease)) => return self.run_and_answer(request, identity, lease),
                Ok(Begun::Done(record)) => {
                    return Step::Answer(Ok(guard.duplicate(request, &identity, record)));
                }
                Err((error, claim)) => return self.store_failed(request, identity, error, claim),
            }
        }
    }

    /// What is not to be had: acknowledges and stands by, refuses, or waits first; unless it is a run
    /// outside that has it.
    async fn held<B: Send + 'static>(
        self,
        request: Buffered,
        identity: Identity,
        outside: Result<Outside, Error>,
        retry_after: Duration,
    ) -> Next<S, B>
    where
        S: Inner<B>,
    {
        let guard = self.guard.clone();
        let Guard { dedup, rules } = &*guard;
        let mut acknowledges = true;
        match outside {
            Ok(Outside::Nothing) => {}
            // That layer judges the answer.
            Ok(Outside::Holds { attempt } | Outside::Claims { attempt, .. }) => {
                return self.forward(request.into_request(None), Outcome::Run { attempt });
            }
            // It would record the event as done, of which nobody knows yet how it ends.
            Ok(Outside::Waits) => acknowledges = false,
            Err(error) => {
                return match rules.store_failed(error) {
                    Outcome::Refused(refusal) => Step::Answer(Ok(guard.refuse(refusal))),
                    outcome => self.forward(request.into_request(None), outcome),
                };
            }
        }
        let then = match rules.in_flight {
            InFlight::Acknowledge => AfterWait::Acknowledge,
            InFlight::RetryLater => AfterWait::RetryLater,
            InFlight::Wait { max, then } => {
                match dedup.wait(&identity.key, max, request.size()).await {
                    Waited::Acquired(lease) => {
                        return self.run_and_answer(request, identity, lease);
                    }
                    Waited::Done(record) => {
                        return Step::Answer(Ok(guard.duplicate(request, &identity, record)));
                    }
                    Waited::InVain => then,
                }
            }
        };
        if then == AfterWait::RetryLater || !acknowledges {
            return Step::Answer(Ok(guard.in_flight(Refusal::InFlight { retry_after })));
        }
        Step::Answer(Ok(match self.stand_by(request, identity) {
            Ok(key) => guard.stood_by(key),
            Err(NotStoodBy::NoRoom) => guard.in_flight(Refusal::NoRoom { retry_after }),
            Err(NotStoodBy::Draining) => guard.in_flight(Refusal::Draining { retry_after }),
        }))
    }

    /// Makes the promise to bring the event to an end.
    fn stand_by<B: Send + 'static>(
        self,
        request: Buffered,
        identity: Identity,
    ) -> Result<Key, NotStoodBy>
    where
        S: Inner<B>,
    {
        let (guard, key) = (self.guard.clone(), identity.key.clone());
        if guard
            .dedup
            .stand_by_again(&key, |kept| request.is_same(kept))
        {
            return Ok(key);
        }
        // Room first: what finds none is not copied.
        let room = guard
            .dedup
            .room(request.size() + identity.event_id.size())?;
        let candidate = self.candidate(request.into_owned(), identity);
        guard.dedup.stand_by(&key, candidate, room)?;
        Ok(key)
    }

    /// The store failed: refused, or forwarded. The claim is what this request may hold for all
    /// that; dropped, it is released.
    fn store_failed<B: Send + 'static>(
        self,
        request: Buffered,
        identity: Identity,
        error: Error,
        claim: Claim<'_, St>,
    ) -> Next<S, B>
    where
        S: Inner<B>,
    {
        match self.guard.rules.store_failed(error) {
            Outcome::Refused(refusal) => Step::Answer(Ok(self.guard.refuse(refusal))),
            outcome => {
                let answer = move |guard: &Guard<St>, ended| guard.ran(ended, outcome);
                self.call(request, identity, claim.unconfirmed(), answer)
            }
        }
    }
}
