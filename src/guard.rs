//! What all requests through one layer share, and the answers that they get from it.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body;

use crate::{
    BodyHash, Dedup, DedupEvent, Delivery, Entry, Error, Key, LeaseStore, Outcome, Record, Refusal,
    RequestBody, ResponseBody, buffered::Buffered, delivery::Identity, engine::Beat,
    replay::replay, reply, rules::Rules, run::Ended,
};

/// The engine, and the rules of the HTTP side.
#[derive(Debug)]
pub(crate) struct Guard<St: LeaseStore> {
    pub(crate) dedup: Dedup<St>,
    pub(crate) rules: Rules,
}

/// What runs outside of a request whose event is held.
pub(crate) enum Outside {
    /// No run that would be recorded.
    Nothing,
    /// The run that holds it.
    Holds { attempt: u32 },
    /// The run that holds it for now, and does not keep it.
    Claims { attempt: u32, claim: Arc<Beat> },
    /// A run that takes the answer for its own: it is of another key, or has lost the event, or has
    /// it in another store.
    Waits,
}

impl<St: LeaseStore> Guard<St> {
    /// Reads the whole body. In the shadow, one of which that is not possible comes back.
    pub(crate) async fn read<B: Body>(
        &self,
        request: &mut Buffered,
        body: B,
    ) -> Result<Option<BodyHash>, (Refusal, Option<RequestBody<B>>)> {
        let (limit, time) = (self.rules.max_body, self.rules.body_timeout);
        if self.rules.shadow {
            return Box::pin(request.read_or_resume(body, limit, time)).await;
        }
        let read = request.read(body, limit, time).await;
        read.map_err(|refusal| (refusal, None))
    }

    /// What the runs of layers outside, which this request is part of, have to do with what holds
    /// its event.
    pub(crate) async fn outside(&self, request: &Buffered, key: &Key) -> Result<Outside, Error> {
        let delivery = request.parts.extensions.get::<Delivery>();
        let mut runs: Vec<_> = delivery.into_iter().flat_map(Delivery::recorded).collect();
        if runs.is_empty() {
            return Ok(Outside::Nothing);
        }
        runs.retain(|run| run.key == *key);
        if runs.is_empty() {
            return Ok(Outside::Waits);
        }
        let Some(Entry::Running { token, attempt, .. }) = self.dedup.inspect(key).await? else {
            return Ok(Outside::Waits);
        };
        let claims = runs.iter().find_map(|run| {
            let claim = run.beat.as_ref().filter(|beat| beat.token() == token)?;
            Some((run, claim.clone()))
        });
        Ok(match claims {
            Some((run, _)) if run.keeps_event() => Outside::Holds { attempt },
            Some((_, claim)) => Outside::Claims { attempt, claim },
            None => Outside::Waits,
        })
    }

    /// The answer to a request whose handler ran.
    pub(crate) fn ran<R: Body, E>(
        &self,
        ended: Ended<R, E>,
        outcome: Outcome,
    ) -> Result<Response<ResponseBody<R>>, E> {
        let response = match ended {
            Ended::Answered { answer, .. } => answer?,
            Ended::OverLimit => reply::own((self.rules.refuse_with)(&Refusal::RunLimit)),
            Ended::GaveUp { attempts } => {
                return Ok(self.success(Response::new(()), Outcome::GaveUp { attempts }));
            }
        };
        Ok(self.rules.mark(response, outcome))
    }

    pub(crate) fn duplicate<R: Body>(
        &self,
        request: Buffered,
        identity: &Identity,
        record: Record,
    ) -> Response<ResponseBody<R>> {
        let replay = self.replay(identity, &record);
        let body_changed = identity.is_changed(&record);
        let outcome = self.rules.done(identity, record);
        if let Outcome::Refused(refusal) = outcome {
            return self.refuse(refusal);
        }
        self.dedup.settings().emit(&DedupEvent::Duplicate {
            key: identity.key.clone(),
            body_changed,
        });
        match replay {
            Some(replay) => self.rules.mark(reply::own(replay), outcome),
            None => self.success(request.into_blank(), outcome),
        }
    }

    /// The answer of the handler to the same request, where it was kept.
    fn replay(&self, identity: &Identity, record: &Record) -> Option<Response<Bytes>> {
        let answer = record.answer()?;
        let is_same =
            answer.is_for(identity.target?) && record.body_hash() == Some(identity.body_hash);
        let status = StatusCode::from_u16(record.status()?).ok()?;
        is_same.then(|| replay(answer, status))
    }

    pub(crate) fn stood_by<R: Body>(&self, key: Key) -> Response<ResponseBody<R>> {
        self.dedup.settings().emit(&DedupEvent::StoodBy { key });
        self.success(Response::new(()), Outcome::Standby)
    }

    pub(crate) fn over_limit(&self, key: Key) {
        self.dedup.settings().emit(&DedupEvent::RunLimit { key });
    }

    fn success<R: Body>(&self, blank: Response<()>, outcome: Outcome) -> Response<ResponseBody<R>> {
        let response = reply::own(reply::success(blank, &self.rules.duplicate, &outcome));
        self.rules.mark(response, outcome)
    }

    pub(crate) fn in_flight<R: Body>(&self, refusal: Refusal) -> Response<ResponseBody<R>> {
        self.refused(refusal, Outcome::InFlight)
    }

    pub(crate) fn refuse<R: Body>(&self, refusal: Refusal) -> Response<ResponseBody<R>> {
        self.refused(refusal, Outcome::Refused)
    }

    fn refused<R: Body>(
        &self,
        refusal: Refusal,
        outcome: fn(Refusal) -> Outcome,
    ) -> Response<ResponseBody<R>> {
        self.dedup.settings().emit(&DedupEvent::Refused {
            refusal: refusal.clone(),
        });
        let response = reply::own((self.rules.refuse_with)(&refusal));
        self.rules.mark(response, outcome(refusal))
    }
}
