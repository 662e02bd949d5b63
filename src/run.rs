//! One run of the handler, and how it ends its lease.

use std::sync::{Mutex, PoisonError};

use http::Response;
use tokio::time::timeout;

use crate::{
    DeadLetter, DedupEvent, Delivery, Lease, LeaseStore, Record, Release,
    buffered::Buffered,
    delivery::Identity,
    engine::Candidate,
    guard::Guard,
    inner::{Inner, InnerAnswer, InnerRan, oneshot},
    service::Flow,
};

/// What came of a run.
pub(crate) enum Ran<R, E> {
    /// The handler answered.
    Answered {
        answer: Result<Response<R>, E>,
        /// Whether that completes the event.
        completed: bool,
    },
    /// It took too long.
    OverLimit,
    /// It failed, once too often.
    GaveUp { attempts: u32 },
}

impl<R, E> Ran<R, E> {
    /// Whether the event need not run again.
    const fn is_final(&self) -> bool {
        match self {
            Self::Answered { completed, .. } => *completed,
            Self::OverLimit => false,
            Self::GaveUp { .. } => true,
        }
    }
}

impl<S, St: LeaseStore> Flow<S, St> {
    /// Runs the handler, and ends the lease by how that went.
    pub(crate) async fn run<B>(
        self,
        request: Buffered,
        identity: Identity,
        lease: Option<Lease<St>>,
    ) -> InnerRan<S, B>
    where
        S: Inner<B>,
    {
        let (guard, hash, key) = (self.guard.clone(), identity.body_hash, identity.key.clone());
        let letter = guard.last_try(&request, lease.as_ref());
        let answer = self.drive(request, identity, lease.as_ref()).await;
        let (ran, status) = guard.judge(answer);
        let record = Record::new(status, Some(hash));
        let over_limit = matches!(ran, Ran::OverLimit);
        let Some(lease) = lease else {
            if over_limit {
                guard.over_limit(key);
            }
            return ran;
        };
        match letter.filter(|letter| lease.is_last(letter.attempts)) {
            _ if ran.is_final() => _ = lease.complete(record).await,
            Some(letter) => {
                if over_limit {
                    guard.over_limit(key);
                }
                return guard.give_up(letter, lease, record).await;
            }
            None if over_limit => lease.overran().await,
            None => lease.release(Release::Failed { status }).await,
        }
        ran
    }

    /// Has the handler answer within the run limit. While it runs, a sender that hangs up does not
    /// end the request.
    async fn drive<B>(
        self,
        request: Buffered,
        identity: Identity,
        lease: Option<&Lease<St>>,
    ) -> InnerAnswer<S, B>
    where
        S: Inner<B>,
    {
        let Self { inner, guard, call } = self;
        let (key, size) = (identity.key.clone(), request.size());
        let delivery = Delivery::new(identity, lease, call.clone());
        let request = request.into_request(Some(delivery));
        if let Some(call) = &call {
            call.run_begins(key, size);
        }
        let answer = timeout(guard.dedup.settings().run_limit, oneshot(inner, request)).await;
        if let Some(call) = &call {
            call.run_ends();
        }
        answer.ok()
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
                let inner = inner.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let flow = Self {
                    inner,
                    guard: guard.clone(),
                    call: None,
                };
                let (request, identity) = (request.clone(), identity.clone());
                Box::pin(async move { flow.run(request, identity, Some(lease)).await.is_final() })
            }),
        }
    }
}

impl<St: LeaseStore> Guard<St> {
    /// What became of the run, and its status.
    fn judge<R, E>(&self, answer: Option<Result<Response<R>, E>>) -> (Ran<R, E>, Option<u16>) {
        let (answer, status, completed) = match answer {
            None => return (Ran::OverLimit, None),
            Some(Err(error)) => (Err(error), None, false),
            Some(Ok(response)) => {
                let (parts, body) = response.into_parts();
                let (status, completed) = (parts.status, (self.rules.completed_when)(&parts));
                let response = Response::from_parts(parts, body);
                (Ok(response), Some(status.as_u16()), completed)
            }
        };
        (Ran::Answered { answer, completed }, status)
    }

    /// What is to be reported if this run fails and is the last one.
    fn last_try(&self, request: &Buffered, lease: Option<&Lease<St>>) -> Option<DeadLetter> {
        let (runs, lease) = (self.rules.give_up_after?, lease?);
        lease.is_last(runs).then(|| DeadLetter {
            key: lease.key().clone(),
            attempts: lease.attempt(),
            status: None,
            request: request.to_request(),
        })
    }

    /// Ends the event, although no run completed it. It is reported first: what follows may be
    /// cut off.
    async fn give_up<R, E>(
        &self,
        mut letter: DeadLetter,
        lease: Lease<St>,
        record: Record,
    ) -> Ran<R, E> {
        let attempts = letter.attempts;
        letter.status = record.status();
        self.dedup.settings().emit(&DedupEvent::GaveUp(letter));
        lease.complete(record.given_up()).await;
        Ran::GaveUp { attempts }
    }
}
