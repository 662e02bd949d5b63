//! What all requests through one layer share, and the answers that they get from it.

use http::Response;

use crate::{
    Dedup, DedupEvent, Key, LeaseStore, Outcome, Record, Refusal, ResponseBody, buffered::Buffered,
    delivery::Identity, reply, rules::Rules,
};

/// The engine, and the rules of the HTTP side.
#[derive(Debug)]
pub(crate) struct Guard<St: LeaseStore> {
    pub(crate) dedup: Dedup<St>,
    pub(crate) rules: Rules,
}

impl<St: LeaseStore> Guard<St> {
    pub(crate) fn inner<R>(
        &self,
        answer: Option<Response<R>>,
        outcome: Outcome,
    ) -> Response<ResponseBody<R>> {
        let response = match answer {
            Some(response) => response.map(ResponseBody::inner),
            None => reply::own((self.rules.refuse_with)(&Refusal::RunLimit)),
        };
        self.rules.mark(response, outcome)
    }

    pub(crate) fn duplicate<R>(
        &self,
        request: Buffered,
        identity: &Identity,
        record: Record,
    ) -> Response<ResponseBody<R>> {
        self.dedup.settings().emit(&DedupEvent::Duplicate {
            key: identity.key.clone(),
        });
        let outcome = Outcome::Duplicate {
            record,
            by_body: identity.by_body,
        };
        self.success(request.into_blank(), outcome)
    }

    pub(crate) fn stood_by<R>(&self, key: Key) -> Response<ResponseBody<R>> {
        self.dedup.settings().emit(&DedupEvent::StoodBy { key });
        self.success(Response::new(()), Outcome::Standby)
    }

    pub(crate) fn over_limit(&self, key: Key) {
        self.dedup.settings().emit(&DedupEvent::RunLimit { key });
    }

    fn success<R>(&self, blank: Response<()>, outcome: Outcome) -> Response<ResponseBody<R>> {
        let response = reply::own(reply::success(blank, &self.rules.duplicate, &outcome));
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
