//! The flow of one request, top to bottom.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::{
    AfterWait, Begun, DedupEvent, Error, InFlight, Key, Lease, LeaseStore, MissingId, NoId,
    Outcome, Refusal, RequestBody, ResponseBody, StoreFailure, Unprotected,
    buffered::Buffered,
    delivery::Identity,
    engine::{Claim, NotStoodBy, Waited},
    future::{Call, ResponseFuture},
    guard::Guard,
    inner::{Answer, Inner, oneshot},
};

/// When the sender may come again after the store failed.
pub(crate) const SOON: Duration = Duration::from_secs(1);

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
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Guard { dedup, rules } = &*self.guard;
        let (tracker, settings) = (dedup.tracker().clone(), dedup.settings().clone());
        let on_disconnect = rules.on_disconnect();
        let call = Arc::new(Call::new(tracker, settings, on_disconnect));
        let flow = Flow {
            inner: self.inner.clone(),
            guard: self.guard.clone(),
            call: Some(call.clone()),
        };
        ResponseFuture::new(call, flow.answer(request))
    }
}

/// One request on its way.
pub(crate) struct Flow<S, St: LeaseStore> {
    pub(crate) inner: S,
    pub(crate) guard: Arc<Guard<St>>,
    /// `None` for a run that no sender waits for.
    pub(crate) call: Option<Arc<Call>>,
}

impl<S, St: LeaseStore> Flow<S, St> {
    async fn answer<B: Body + Send + 'static>(self, request: Request<B>) -> Answer<S, B>
    where
        S: Inner<B>,
    {
        let guard = self.guard.clone();
        let Guard { dedup, rules } = &*guard;

        // Does not apply: the body streams through.
        let (parts, body) = request.into_parts();
        if !(rules.applies_to)(&parts) {
            let request = Request::from_parts(parts, RequestBody::streaming(body));
            return Ok(oneshot(self.inner, request).await?.map(ResponseBody::inner));
        }

        // The whole body, before any store call.
        let (request, hash) = match guard.read(parts, body).await {
            Ok(read) => read,
            Err((refusal, None)) => return Ok(guard.refuse(refusal)),
            Err((refusal, Some(request))) => {
                let outcome = Outcome::Refused(refusal);
                return self.forward(request, outcome).await;
            }
        };

        // A handshake or a probe: the handler answers it each time.
        if rules.passes_by(&request.parts, &request.data) {
            dedup.settings().emit(&DedupEvent::Bypassed);
            let answer = oneshot(self.inner, request.into_request(None)).await?;
            return Ok(answer.map(ResponseBody::inner));
        }

        // Which event it is.
        let identity = match rules.identify(&request.parts, &request.data, hash) {
            Ok(identity) => identity,
            Err(reason) => return self.without_id(request, reason).await,
        };

        // Who runs it.
        let begun = dedup.acquire(&identity.key).await;
        if rules.shadow {
            return self.shadow(request, identity, begun).await;
        }
        match begun {
            Ok(Begun::Acquired(lease)) => self.run_and_answer(request, identity, lease).await,
            Ok(Begun::Done(record)) => Ok(guard.duplicate(&identity, record)),
            Ok(Begun::InFlight { retry_after }) => {
                self.in_flight(request, identity, retry_after).await
            }
            Err((error, claim)) => self.store_failed(request, identity, error, claim).await,
        }
    }

    /// No id can be read: refused, or forwarded.
    async fn without_id<B>(self, request: Buffered, reason: NoId) -> Answer<S, B>
    where
        S: Inner<B>,
    {
        let Guard { dedup, rules } = &*self.guard;
        dedup.settings().emit(&DedupEvent::NoEventId { reason });
        if rules.shadow {
            let outcome = match rules.missing_id {
                MissingId::Refuse => Outcome::Refused(Refusal::NoEventId(reason)),
                _ => Outcome::Unprotected(Unprotected::NoEventId(reason)),
            };
            return self.forward(request.into_request(None), outcome).await;
        }
        if rules.missing_id == MissingId::Refuse {
            return Ok(self.guard.refuse(Refusal::NoEventId(reason)));
        }
        let response = oneshot(self.inner, request.into_request(None)).await?;
        let outcome = Outcome::Unprotected(Unprotected::NoEventId(reason));
        Ok(rules.mark(response.map(ResponseBody::inner), outcome))
    }

    /// The lease is held: runs the handler and gives its answer.
    async fn run_and_answer<B>(
        self,
        request: Buffered,
        identity: Identity,
        lease: Lease<St>,
    ) -> Answer<S, B>
    where
        S: Inner<B>,
    {
        let guard = self.guard.clone();
        let outcome = Outcome::Run {
            attempt: lease.attempt(),
        };
        guard.ran(self.run(request, identity, Some(lease)).await, outcome)
    }

    /// Another attempt is running: acknowledges and stands by, refuses, or waits first.
    async fn in_flight<B: Send + 'static>(
        self,
        request: Buffered,
        identity: Identity,
        retry_after: Duration,
    ) -> Answer<S, B>
    where
        S: Inner<B>,
    {
        let guard = self.guard.clone();
        let Guard { dedup, rules } = &*guard;
        let then = match rules.in_flight {
            InFlight::Acknowledge => AfterWait::Acknowledge,
            InFlight::RetryLater => AfterWait::RetryLater,
            InFlight::Wait { max, then } => {
                match dedup.wait(&identity.key, max, request.size()).await {
                    Waited::Acquired(lease) => {
                        return self.run_and_answer(request, identity, lease).await;
                    }
                    Waited::Done(record) => return Ok(guard.duplicate(&identity, record)),
                    Waited::InVain => then,
                }
            }
        };
        if then == AfterWait::RetryLater {
            return Ok(guard.in_flight(Refusal::InFlight { retry_after }));
        }
        match self.stand_by(request, identity) {
            Ok(key) => Ok(guard.stood_by(key)),
            Err(NotStoodBy::NoRoom) => Ok(guard.in_flight(Refusal::NoRoom { retry_after })),
            Err(NotStoodBy::Draining) => Ok(guard.in_flight(Refusal::Draining { retry_after })),
        }
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
        let room = guard.dedup.room(request.size() + identity.event_id.len())?;
        let candidate = self.candidate(request.into_owned(), identity);
        guard.dedup.stand_by(&key, candidate, room)?;
        Ok(key)
    }

    /// The store failed: refused, or forwarded. The claim is what this request may hold for all
    /// that; dropped, it is released.
    async fn store_failed<B>(
        self,
        request: Buffered,
        identity: Identity,
        error: Error,
        claim: Claim<'_, St>,
    ) -> Answer<S, B>
    where
        S: Inner<B>,
    {
        let guard = self.guard.clone();
        if guard.rules.store_failure == StoreFailure::Refuse {
            let retry_after = SOON;
            return Ok(guard.refuse(Refusal::StoreFailed { error, retry_after }));
        }
        let outcome = Outcome::Unprotected(Unprotected::StoreFailed(error));
        let ran = self.run(request, identity, claim.unconfirmed()).await;
        guard.ran(ran, outcome)
    }
}
