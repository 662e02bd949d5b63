//! Deciding without acting on it: the handler gets every request, and its answer goes out.

use std::time::Duration;

use http::Request;

use crate::{
    Begun, DedupEvent, Error, InFlight, Key, Lease, LeaseStore, Outcome, Refusal, RequestBody,
    buffered::Buffered,
    delivery::Identity,
    engine::Claim,
    guard::{Guard, Outside},
    inner::{Inner, Next},
    service::Flow,
};

impl<S, St: LeaseStore> Flow<S, St> {
    /// Runs the handler whoever runs the event; with the lease, if it was to be had.
    pub(crate) fn shadow<B: Send + 'static>(
        self,
        request: Buffered,
        identity: Identity,
        begun: Result<Begun<St>, (Error, Claim<'_, St>)>,
    ) -> Next<S, B>
    where
        S: Inner<B>,
    {
        let guard = &self.guard;
        let (lease, would) = match begun {
            Ok(Begun::Acquired(lease)) => {
                let attempt = lease.attempt();
                (Some(lease), Outcome::Run { attempt })
            }
            Ok(Begun::Done(record)) => (None, guard.rules.done(&identity, record)),
            Ok(Begun::InFlight { retry_after }) => {
                let would = match guard.rules.in_flight {
                    InFlight::Acknowledge => Outcome::Standby,
                    _ => Outcome::InFlight(Refusal::InFlight { retry_after }),
                };
                (None, would)
            }
            Err((error, claim)) => (claim.unconfirmed(), guard.rules.store_failed(error)),
        };
        self.run_in_shadow(request, identity, lease, would)
    }

    /// The same, where the event is held, be it by a layer outside.
    pub(crate) fn in_flight_in_shadow<B: Send + 'static>(
        self,
        request: Buffered,
        identity: Identity,
        outside: Result<Outside, Error>,
        retry_after: Duration,
    ) -> Next<S, B>
    where
        S: Inner<B>,
    {
        let would = match outside {
            Ok(Outside::Nothing) => {
                return self.shadow(request, identity, Ok(Begun::InFlight { retry_after }));
            }
            Ok(Outside::Holds { attempt } | Outside::Claims { attempt, .. }) => {
                let request = request.into_request(None);
                return self.forward_in_shadow(request, Outcome::Run { attempt });
            }
            Ok(Outside::Waits) => Outcome::InFlight(Refusal::InFlight { retry_after }),
            Err(error) => self.guard.rules.store_failed(error),
        };
        self.run_in_shadow(request, identity, None, would)
    }

    /// Runs the handler, whatever would have become of the request.
    fn run_in_shadow<B: Send + 'static>(
        self,
        request: Buffered,
        identity: Identity,
        lease: Option<Lease<St>>,
        would: Outcome,
    ) -> Next<S, B>
    where
        S: Inner<B>,
    {
        let key = identity.key.clone();
        self.guard.would(Some(&key), &would);
        self.call(request, identity, lease, move |guard: &Guard<St>, ended| {
            let would = match would {
                Outcome::Run { attempt } if !ended.is_final() && guard.gives_up(attempt) => {
                    let would = Outcome::GaveUp { attempts: attempt };
                    guard.would(Some(&key), &would);
                    would
                }
                would => would,
            };
            guard.ran(ended, Outcome::Shadow(Box::new(would)))
        })
    }

    /// Has the handler answer a request that is no event, whatever would have become of it.
    pub(crate) fn forward_in_shadow<B: Send + 'static>(
        self,
        request: Request<RequestBody<B>>,
        would: Outcome,
    ) -> Next<S, B>
    where
        S: Inner<B>,
    {
        self.guard.would(None, &would);
        self.forward(request, Outcome::Shadow(Box::new(would)))
    }
}

impl<St: LeaseStore> Guard<St> {
    /// Tells of what would have been.
    fn would(&self, key: Option<&Key>, outcome: &Outcome) {
        if !matches!(outcome, Outcome::Run { .. }) {
            self.dedup.settings().emit(&DedupEvent::Shadow {
                key: key.cloned(),
                outcome: outcome.clone(),
            });
        }
    }

    fn gives_up(&self, attempt: u32) -> bool {
        self.rules.give_up_after.is_some_and(|runs| attempt >= runs)
    }
}
