//! One run of the handler, and how it ends its lease.

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::Either};
use http::Response;
use http_body::Body;
use tokio::time::timeout;

use crate::{
    BodyHash, DeadLetter, DedupEvent, Delivery, Duplicate, Key, Lease, LeaseStore, Record, Release,
    ResponseBody,
    buffered::Buffered,
    call::{Call, Running},
    delivery::Identity,
    engine::{Candidate, End},
    guard::Guard,
    inner::{Inner, InnerAnswer, InnerEnded, oneshot},
    mutex::Mutex,
    replay,
    service::Flow,
};

/// What came of a run.
pub(crate) enum Ended<R: Body, E> {
    /// The handler answered.
    Answered {
        answer: Result<Response<ResponseBody<R>>, E>,
        /// Whether that completes the event.
        completed: bool,
    },
    /// It took too long.
    OverLimit,
    /// It failed, once too often.
    GaveUp { attempts: u32 },
}

impl<R: Body, E> Ended<R, E> {
    /// Whether the event need not run again.
    pub(crate) const fn is_final(&self) -> bool {
        match self {
            Self::Answered { completed, .. } => *completed,
            Self::OverLimit => false,
            Self::GaveUp { .. } => true,
        }
    }

    /// How the event ended, by a run of this body.
    const fn end(&self, body: BodyHash) -> Option<End> {
        match self {
            Self::GaveUp { .. } => Some(End::GivenUp(Some(body))),
            _ if self.is_final() => Some(End::Completed),
            _ => None,
        }
    }
}

impl<S, St: LeaseStore> Flow<S, St> {
    /// Runs the handler, and ends the lease by how that went.
    ///
    /// Like what it is made of, not an `async fn`: that would have room for its arguments twice, and
    /// for all that comes one after the other.
    pub(crate) fn run<B: Send>(
        self,
        request: Buffered,
        call: Arc<Call>,
        lease: Option<Lease<St>>,
    ) -> impl Future<Output = InnerEnded<S, B>> + Send + use<S, St, B>
    where
        S: Inner<B>,
    {
        let (guard, key) = (self.guard.clone(), call.key.clone());
        let (hash, target) = (call.body_hash, call.target);
        let letter = guard.last_try(&request, lease.as_ref());
        self.drive(request, call).then(move |answer| {
            let (ended, record) = guard.judge(answer, hash, target);
            guard.end(key, lease, letter, record, ended)
        })
    }

    /// Has the handler answer within the run limit. While it runs, a sender that hangs up does not
    /// end the request.
    fn drive<B: Send>(
        self,
        request: Buffered,
        call: Arc<Call>,
    ) -> impl Future<Output = InnerAnswer<S, B>> + Send + use<S, St, B>
    where
        S: Inner<B>,
    {
        let Guard { dedup, rules } = &*self.guard;
        let limit = if rules.shadow {
            Duration::MAX
        } else {
            dedup.settings().run_limit
        };
        let request = request.into_request(Some(Delivery::new(call.clone())));
        let running = Running(call);
        timeout(limit, oneshot(self.inner, request)).map(move |answer| {
            drop(running);
            answer.ok()
        })
    }

    /// The request as a standby keeps it, and runs it.
    pub(crate) fn candidate<B: Send + 'static>(
        self,
        request: Buffered,
        identity: Identity,
    ) -> Candidate<St>
    where
        S: Inner<B>,
    {
        let (guard, inner) = (self.guard, Mutex::new(self.inner));
        Candidate {
            dedup: guard.dedup.clone(),
            request: request.to_request(),
            run: Box::new(move |lease| {
                let inner = inner.lock().clone();
                let flow = Self {
                    inner,
                    guard: guard.clone(),
                    context: None,
                };
                let (request, identity) = (request.clone(), identity.clone());
                let call = Call::new(&guard, &request, identity, Some(&lease), None);
                let (hash, call) = (call.body_hash, Arc::new(call));
                Box::pin(async move { flow.run(request, call, Some(lease)).await.end(hash) })
            }),
        }
    }
}

impl<St: LeaseStore> Guard<St> {
    /// What became of the run, and how it is recorded.
    fn judge<R: Body, E>(
        &self,
        answer: Option<Result<Response<R>, E>>,
        hash: BodyHash,
        target: Option<BodyHash>,
    ) -> (Ended<R, E>, Record) {
        let record = |status| Record::new(status, Some(hash));
        let response = match answer {
            None => return (Ended::OverLimit, record(None)),
            Some(Err(error)) => {
                let (answer, completed) = (Err(error), false);
                return (Ended::Answered { answer, completed }, record(None));
            }
            Some(Ok(response)) => response,
        };
        let (parts, body) = response.into_parts();
        let record = record(Some(parts.status.as_u16()));
        let completed = (self.rules.completed_when)(&parts);
        let (kept, body) = match (&self.rules.duplicate, target) {
            (Duplicate::Replay { max_body }, Some(target)) if completed => {
                replay::keep(target, *max_body, &parts, body)
            }
            _ => (None, ResponseBody::inner(body)),
        };
        let answer = Ok(Response::from_parts(parts, body));
        let ended = Ended::Answered { answer, completed };
        (ended, record.with_answer(kept))
    }

    /// What is to be reported if this run fails and is the last one.
    fn last_try(&self, request: &Buffered, lease: Option<&Lease<St>>) -> Option<DeadLetter> {
        // In the shadow the sender hears of the failure, and goes on trying.
        let runs = self.rules.give_up_after.filter(|_| !self.rules.shadow)?;
        let lease = lease?;
        lease.is_last(runs).then(|| DeadLetter {
            key: lease.key().clone(),
            attempts: lease.attempt(),
            status: None,
            request: request.to_request(),
        })
    }

    /// Ends the lease of a run.
    fn end<R, E>(
        self: Arc<Self>,
        key: Key,
        lease: Option<Lease<St>>,
        letter: Option<DeadLetter>,
        record: Record,
        ended: Ended<R, E>,
    ) -> impl Future<Output = Ended<R, E>> + Send
    where
        R: Body<Error: Send> + Send + 'static,
        E: Send + 'static,
    {
        match lease {
            Some(lease) if ended.is_final() => Either::Left(lease.complete(record).map(|_| ended)),
            lease => Either::Right(Box::pin(async move {
                self.end_failed(key, lease, letter, record, ended).await
            })),
        }
    }

    /// Ends the lease, if there is one, of a run that did not complete its event.
    async fn end_failed<R: Body, E>(
        &self,
        key: Key,
        lease: Option<Lease<St>>,
        letter: Option<DeadLetter>,
        record: Record,
        ended: Ended<R, E>,
    ) -> Ended<R, E> {
        let over_limit = matches!(ended, Ended::OverLimit);
        let Some(lease) = lease else {
            if over_limit {
                self.over_limit(key);
            }
            return ended;
        };
        match letter.filter(|letter| lease.is_last(letter.attempts)) {
            Some(letter) => {
                if over_limit {
                    self.over_limit(key);
                }
                return self.give_up(letter, lease, record, ended).await;
            }
            None if over_limit => lease.overran().await,
            None => {
                let status = record.status();
                lease.release(Release::Failed { status }).await;
            }
        }
        ended
    }

    /// Ends the event, although no run completed it. It is reported first: what follows may be
    /// cut off.
    async fn give_up<R: Body, E>(
        &self,
        mut letter: DeadLetter,
        lease: Lease<St>,
        record: Record,
        ended: Ended<R, E>,
    ) -> Ended<R, E> {
        let attempts = letter.attempts;
        letter.status = record.status();
        self.dedup.settings().emit(&DedupEvent::GaveUp(letter));
        let beat = lease.beat().clone();
        let written = lease.complete(record.given_up()).await;
        if !written && beat.is_lost() {
            // Another run has the event, and may yet fail: the sender must not hear of success.
            return ended;
        }
        Ended::GaveUp { attempts }
    }
}
