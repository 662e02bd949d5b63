//! The setters that say what senders are answered.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, Response, response};

use super::WebhookDedupLayer;
use crate::{Duplicate, InFlight, LeaseStore, Refusal, StoreFailure, engine::checked};

impl<St: LeaseStore> WebhookDedupLayer<St> {
    /// What a duplicate is answered while the first attempt is still running.
    ///
    /// Defaults to [`InFlight::Acknowledge`]: 200, and this process stands by.
    ///
    /// # Panics
    ///
    /// If the longest wait is below a millisecond or above ten years.
    #[track_caller]
    pub fn in_flight(mut self, in_flight: InFlight) -> Self {
        if let InFlight::Wait { max, .. } = in_flight {
            checked("longest wait", max);
        }
        self.rules.in_flight = in_flight;
        self
    }

    /// What a duplicate of a completed event is answered.
    ///
    /// Defaults to [`Duplicate::Acknowledge`]: 200 with a line of JSON.
    pub fn duplicate(mut self, duplicate: Duplicate) -> Self {
        self.rules.duplicate = duplicate;
        self
    }

    /// Which answers of the handler complete an event. It should be those that the sender takes
    /// for success. Only the head of the answer is there.
    ///
    /// gRPC answers 200 whatever happened. A call that fails before its first message has its
    /// status in the header, which can be asked:
    ///
    /// ```
    /// # use tower_webhook_dedup::{EventId, MemoryStore, WebhookDedupLayer};
    /// let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::header("x-event-id"))
    ///     .completed_when(|head| {
    ///         let status = head.headers.get("grpc-status");
    ///         head.status.is_success() && status.is_none_or(|status| status == "0")
    ///     });
    /// ```
    ///
    /// One in the trailers comes too late: the event is recorded as completed before they are
    /// there. A handler that streams has to fail before it answers, or not at all.
    ///
    /// A proxy passes on the 200 of a service that has this layer, too, and only stands by: there,
    /// an answer whose `webhook-dedup` header says `standby` should complete nothing.
    ///
    /// Defaults to any 2xx status.
    pub fn completed_when<F>(mut self, completed: F) -> Self
    where
        F: Fn(&response::Parts) -> bool + Send + Sync + 'static,
    {
        self.rules.completed_when = Arc::new(completed);
        self
    }

    /// Ends an event whose runs fail again and again: the run that fails as the `runs`th answers
    /// 200 in place of the failure, the event is [recorded](crate::Record::is_given_up) as done, and
    /// [`DedupEvent::GaveUp`](crate::DedupEvent::GaveUp) reports it with the whole request. So one
    /// poisoned event neither comes for days nor has the sender disable the endpoint. The runs of a
    /// standby count as well.
    ///
    /// A run counts if it answers with what does not [complete](Self::completed_when) the event,
    /// or with an error, or is over the [run limit](Self::run_limit). One that is cut off does not:
    /// by a panic (put a layer that catches it inside, to have it count), by a hang-up, by the end
    /// of the process. The store counts, for all processes, at no cost to runs that succeed; it
    /// remembers for a day after each failure, and a [`MemoryStore`](crate::MemoryStore) at its
    /// capacity forgets failures first. A lease that runs out, since its process was killed, takes
    /// the count with it.
    ///
    /// The event is reported before it is recorded. Should that find the event held by another run,
    /// [`DedupEvent::LeaseLost`](crate::DedupEvent::LeaseLost) follows, nothing ends, and the sender
    /// hears of the failure. What stood by with another body is [`Lost`](crate::DedupEvent::Lost).
    ///
    /// Verify signatures outside of this layer. Where the handler refuses forged requests, and the id
    /// [alone](crate::KeyBy::Id) makes the key, a few of them with the id of an event end it.
    ///
    /// Defaults to never.
    ///
    /// # Panics
    ///
    /// If it is zero.
    #[track_caller]
    pub fn give_up_after(mut self, runs: u32) -> Self {
        assert!(runs > 0, "an event needs at least one run");
        self.rules.give_up_after = Some(runs);
        self
    }

    /// What becomes of a request that the store failed on.
    ///
    /// Defaults to [`StoreFailure::Refuse`]: 503 with `retry-after`.
    pub fn store_failure(mut self, store_failure: StoreFailure) -> Self {
        self.rules.store_failure = store_failure;
        self
    }

    /// Makes the answers to refused requests. The layer adds its header to them, and nothing else:
    /// [`Refusal::status`] and [`Refusal::retry_after`] are what the default uses.
    ///
    /// ```
    /// # use bytes::Bytes;
    /// # use http::Response;
    /// # use tower_webhook_dedup::{EventId, MemoryStore, WebhookDedupLayer};
    /// let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"))
    ///     .refuse_with(|refusal| {
    ///         let mut response = Response::new(Bytes::from(refusal.to_string()));
    ///         *response.status_mut() = refusal.status();
    ///         response
    ///     });
    /// ```
    ///
    /// Defaults to `application/problem+json` ([RFC 9457]).
    ///
    /// [RFC 9457]: https://www.rfc-editor.org/rfc/rfc9457
    pub fn refuse_with<F>(mut self, refuse: F) -> Self
    where
        F: Fn(&Refusal) -> Response<Bytes> + Send + Sync + 'static,
    {
        self.rules.refuse_with = Arc::new(refuse);
        self
    }

    /// The header that tells in each answer what became of the request, or none. An
    /// [`Outcome`](crate::Outcome) is in the answer's extensions in any case.
    ///
    /// Defaults to `webhook-dedup`.
    pub fn outcome_header(mut self, name: Option<HeaderName>) -> Self {
        self.rules.outcome_header = name;
        self
    }

    /// Decides and counts, but lets every request through: for a look at live traffic before the
    /// layer answers any of it.
    ///
    /// Every request that the layer [applies to](Self::applies_to) reaches the handler, and the
    /// handler's answer goes out. What would have been is in the header (`shadow-duplicate`, say), in
    /// the extensions ([`Outcome::Shadow`](crate::Outcome::Shadow)), and, where it is not a run, a
    /// [`DedupEvent::Shadow`](crate::DedupEvent::Shadow).
    ///
    /// - Leases are taken, renewed, completed and released, since a duplicate is told by what was
    ///   recorded. Store calls are made as without it, and waited for as long as the
    ///   [`store_timeout`](Self::store_timeout); that they fail changes nothing else. The run of what
    ///   would have been a duplicate has no lease and is not recorded.
    /// - Handlers run as without the layer: no [run limit](Self::run_limit), and a sender that hangs
    ///   up ends its handler. Nobody waits or stands by, and no event is
    ///   [given up](Self::give_up_after).
    /// - Bodies are buffered up to [`max_body`](Self::max_body) and
    ///   [`body_timeout`](Self::body_timeout), and one that is longer or slower goes on from there as
    ///   a stream. One that breaks off is refused with 400: there is no request to forward.
    /// - An event that was completed by then is a duplicate when the shadow is taken away.
    ///
    /// Defaults to off.
    pub fn shadow(mut self) -> Self {
        self.rules.shadow = true;
        self
    }
}
