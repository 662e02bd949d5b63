//! What all requests through one layer share, and the answers that they get from it.

use http::Response;

use crate::{
    Dedup, DedupEvent, Key, LeaseStore, Outcome, Record, Refusal, ResponseBody, delivery::Identity,
    reply, rules::Rules, run::Ran,
};

/// The engine, and the rules of the HTTP side.
#[derive(Debug)]
pub(crate) struct Guard<St: LeaseStore> {
    pub(crate) dedup: Dedup<St>,
    pub(crate) rules: Rules,
}

impl<St: LeaseStore> Guard<St> {
    /// The answer to a request whose handler ran.
    pub(crate) fn ran<R, E>(
        &self,
        ran: Ran<R, E>,
        outcome: Outcome,
    ) -> Result<Response<ResponseBody<R>>, E> {
        let response = match ran {
            Ran::Answered { answer, .. } => answer?.map(ResponseBody::inner),
            Ran::OverLimit => reply::own((self.rules.refuse_with)(&Refusal::RunLimit)),
            Ran::GaveUp { attempts } => return Ok(self.success(Outcome::GaveUp { attempts })),
        };
        Ok(self.rules.mark(response, outcome))
    }

    pub(crate) fn duplicate<R>(
        &self,
        identity: &Identity,
        record: Record,
    ) -> Response<ResponseBody<R>> {
        let key = identity.key.clone();
        let body_changed = record
            .body_hash()
            .is_some_and(|handled| handled != identity.body_hash);
        if body_changed && self.rules.refuses_changed() {
            return self.refuse(Refusal::BodyChanged { key });
        }
        self.dedup
            .settings()
            .emit(&DedupEvent::Duplicate { key, body_changed });
        self.success(Outcome::Duplicate {
            record,
            by_body: identity.by_body,
            body_changed,
        })
    }

    pub(crate) fn stood_by<R>(&self, key: Key) -> Response<ResponseBody<R>> {
        self.dedup.settings().emit(&DedupEvent::StoodBy { key });
        self.success(Outcome::Standby)
    }

    pub(crate) fn over_limit(&self, key: Key) {
        self.dedup.settings().emit(&DedupEvent::RunLimit { key });
    }

    fn success<R>(&self, outcome: Outcome) -> Response<ResponseBody<R>> {
        let response = reply::own(reply::success(&self.rules.duplicate, &outcome));
        self.rules.mark(response, outcome)
    }

    pub(crate) fn in_flight<R>(&self, refusal: Refusal) -> Response<ResponseBody<R>> {
        self.refused(refusal, Outcome::InFlight)
    }

    pub(crate) fn refuse<R>(&self, refusal: Refusal) -> Response<ResponseBody<R>> {
        self.refused(refusal, Outcome::Refused)
    }

    fn refused<R>(
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
