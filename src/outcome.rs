//! What became of a request, for whoever reads the answer.

use std::{fmt, time::Duration};

use http::StatusCode;

use crate::{Error, Key, NoId, Record};

/// What became of a request, in the extensions of its answer, and in short in its
/// `webhook-dedup` header.
///
/// ```
/// use http::Response;
/// use tower_webhook_dedup::Outcome;
///
/// /// For a middleware outside of the layer.
/// fn was_a_duplicate<B>(answer: &Response<B>) -> bool {
///     matches!(answer.extensions().get(), Some(Outcome::Duplicate { .. }))
/// }
/// # assert!(!was_a_duplicate(&Response::new(())));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// `run`: the handler ran, and this is its answer (or the 504 in place of it, past the run
    /// limit).
    Run {
        /// 1 for the first run, one more after each failed one.
        attempt: u32,
    },
    /// `duplicate`: the event was completed before.
    Duplicate {
        /// How it was completed.
        record: Record,
        /// Whether it was identified by its body, because it has no id
        /// ([`MissingId::UseBodyHash`]).
        ///
        /// [`MissingId::UseBodyHash`]: crate::MissingId::UseBodyHash
        by_body: bool,
        /// Whether its body is not the one that was handled: see
        /// [`BodyChanged`](crate::BodyChanged).
        body_changed: bool,
    },
    /// `gave-up`: the handler ran and failed, for the last time
    /// ([`give_up_after`](crate::WebhookDedupLayer::give_up_after)); the event is over.
    GaveUp {
        /// How many runs failed.
        attempts: u32,
    },
    /// `standby`: another attempt is running, and this process stands by.
    Standby,
    /// `in-flight`: another attempt is running, and the sender is told to come again.
    InFlight(Refusal),
    /// `unprotected`: the handler ran without a lease.
    Unprotected(Unprotected),
    /// `refused`: the request did not get as far as the handler.
    Refused(Refusal),
    /// `shadow-run`, `shadow-duplicate` and so on: the handler ran, and this is its answer; what
    /// would have been, but for [`shadow`](crate::WebhookDedupLayer::shadow).
    Shadow(Box<Self>),
}

impl Outcome {
    /// The outcome as the `webhook-dedup` header has it.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Run { .. } => "run",
            Self::Duplicate { .. } => "duplicate",
            Self::GaveUp { .. } => "gave-up",
            Self::Standby => "standby",
            Self::InFlight(_) => "in-flight",
            Self::Unprotected(_) => "unprotected",
            Self::Refused(_) => "refused",
            Self::Shadow(would) => match **would {
                Self::Run { .. } => "shadow-run",
                Self::Duplicate { .. } => "shadow-duplicate",
                Self::GaveUp { .. } => "shadow-gave-up",
                Self::Standby => "shadow-standby",
                Self::InFlight(_) => "shadow-in-flight",
                Self::Unprotected(_) => "shadow-unprotected",
                Self::Refused(_) => "shadow-refused",
                Self::Shadow(_) => "shadow",
            },
        }
    }
}

/// Why a handler ran without a lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Unprotected {
    /// The request has no readable event id ([`MissingId::Forward`](crate::MissingId::Forward)).
    NoEventId(NoId),
    /// The store failed ([`StoreFailure::Forward`](crate::StoreFailure::Forward)).
    StoreFailed(Error),
}

/// Why the layer refused a request: the input of
/// [`refuse_with`](crate::WebhookDedupLayer::refuse_with). Its `Display` is a sentence for the sender.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// 413: the body is longer than [`max_body`](crate::WebhookDedupLayer::max_body).
    BodyTooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// 408: the body did not arrive within [`body_timeout`](crate::WebhookDedupLayer::body_timeout).
    BodyTimedOut,
    /// 400: the body broke off.
    BodyBroken,
    /// 400: no readable event id.
    NoEventId(NoId),
    /// 422: the event was completed with another body
    /// ([`BodyChanged::Refuse`](crate::BodyChanged::Refuse)). The status is that of the
    /// [Idempotency-Key] header field for a key that comes again with another payload; a 409 is for
    /// one whose first request is still running.
    ///
    /// [Idempotency-Key]: https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07#section-2.7
    BodyChanged {
        /// The event.
        key: Key,
    },
    /// 503: another attempt is running.
    InFlight {
        /// When the sender may come again.
        retry_after: Duration,
    },
    /// 503: another attempt is running, and there is no room for another standby.
    NoRoom {
        /// When the sender may come again.
        retry_after: Duration,
    },
    /// 503: another attempt is running, and this process is about to end.
    Draining {
        /// When the sender may come again.
        retry_after: Duration,
    },
    /// 503: the store failed.
    StoreFailed {
        /// How.
        error: Error,
        /// When the sender may come again.
        retry_after: Duration,
    },
    /// 504: the handler ran longer than [`run_limit`](crate::WebhookDedupLayer::run_limit).
    RunLimit,
}

impl Refusal {
    /// The status it is answered with.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTimedOut => StatusCode::REQUEST_TIMEOUT,
            Self::BodyBroken | Self::NoEventId(_) => StatusCode::BAD_REQUEST,
            Self::BodyChanged { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            Self::InFlight { .. }
            | Self::NoRoom { .. }
            | Self::Draining { .. }
            | Self::StoreFailed { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::RunLimit => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// When the sender may come again; it is the `retry-after` of the answer, in whole seconds.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::InFlight { retry_after }
            | Self::NoRoom { retry_after }
            | Self::Draining { retry_after }
            | Self::StoreFailed { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BodyTooLarge { limit } => write!(f, "The body is longer than {limit} bytes."),
            Self::BodyTimedOut => f.write_str("The body did not arrive in time."),
            Self::BodyBroken => f.write_str("The body broke off."),
            Self::NoEventId(why) => write!(f, "No event id: {why}."),
            Self::BodyChanged { .. } => {
                f.write_str("This event was processed before, with another body.")
            }
            Self::InFlight { .. } => f.write_str("This event is being processed."),
            Self::NoRoom { .. } => {
                f.write_str("This event is being processed, and there is no room to stand by.")
            }
            Self::Draining { .. } => {
                f.write_str("This event is being processed, and this server is stopping.")
            }
            // Which store, and how it failed, is not the sender's business.
            Self::StoreFailed { .. } => {
                f.write_str("Deduplication is unavailable right now; try again later.")
            }
            Self::RunLimit => f.write_str("The event was not processed in time."),
        }
    }
}
