//! What the layer did: for metrics, for logs.

use std::{fmt, future::Future, sync::Arc};

use bytes::Bytes;
use http::Request;

use crate::{Error, Key, NoId, Outcome, Refusal};

/// An acknowledged event that this process cannot bring to an end any more.
#[derive(Clone)]
#[non_exhaustive]
pub struct Lost {
    /// The event.
    pub key: Key,
    /// Why.
    pub reason: LostReason,
    /// The request that was acknowledged, whole; the newest one where several were.
    pub request: Arc<Request<Bytes>>,
    /// The others, newest first: as many as four different requests of an event are kept.
    pub others: Vec<Arc<Request<Bytes>>>,
}

/// Why an event was [`Lost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The standby reached its [age](crate::Limits::standby_age).
    TooOld,
    /// The process drained, and the limit of that was over first.
    Drained,
    /// The runtime ended under the standby.
    Dropped,
    /// Its event was [given up](crate::WebhookDedupLayer::give_up_after), and is reported with
    /// another body: so this one was never handled, nor reported.
    GivenUp,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooOld => "too old",
            Self::Drained => "drained",
            Self::Dropped => "dropped",
            Self::GivenUp => "given up",
        })
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lost")
            .field("key", &self.key)
            .field("reason", &self.reason)
            .field("bytes", &self.request.body().len())
            .field("others", &self.others.len())
            .finish_non_exhaustive()
    }
}

/// An event that failed too often, and will not run again by itself.
#[derive(Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The event. [`Dedup::forget`](crate::Dedup::forget) lets it run again, should it come again.
    pub key: Key,
    /// How many runs failed.
    pub attempts: u32,
    /// What the handler answered in the last one, where it did.
    pub status: Option<u16>,
    /// The request of the last run, whole.
    pub request: Arc<Request<Bytes>>,
}

impl fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetter")
            .field("key", &self.key)
            .field("attempts", &self.attempts)
            .field("status", &self.status)
            .field("bytes", &self.request.body().len())
            .finish_non_exhaustive()
    }
}

/// Something that the layer did or met. Metrics and logs hang here, and only here.
///
/// Given to [`on_event`](crate::WebhookDedupLayer::on_event); with the feature `tracing` each is
/// also one `tracing` event, at the level named, with the target `tower_webhook_dedup::event`. What
/// is told while a request is answered is in the span that it came in; so is that its sender hung up, and
/// what its run tells after that.
///
/// ```
/// # use tower_webhook_dedup::{DedupEvent, EventId, MemoryStore, WebhookDedupLayer};
/// # fn count(_: &str) {}
/// let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"))
///     .on_event(|event| {
///         count(event.as_str());
///         // To be kept where somebody looks after them: nobody else has the request any more.
///         if let DedupEvent::Lost(lost) = event {
///             eprintln!("{} {:?}", lost.key, lost.request.body());
///         }
///     });
/// ```
///
/// # What is logged
///
/// Keys, and with them namespaces and event ids; but no headers, and bodies only in two cases:
/// **[`Lost`](Self::Lost) and [`GaveUp`](Self::GaveUp) log the method, the URI with its query, and the
/// whole body**, since the log may be all that is left of them. Where bodies or query strings must not
/// get into a log, keep these two with `on_event` and switch the target to `off`, as by
/// `RUST_LOG=info,tower_webhook_dedup::event=off`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DedupEvent {
    /// DEBUG: a layer was put around a service; told once for each namespace of a layer and its
    /// clones. Two layers of the same namespace on one store swallow each other's events: look for
    /// that here.
    Configured {
        /// The namespace; `None` where it is the path, or a closure makes it.
        namespace: Option<Arc<str>>,
    },
    /// DEBUG: a lease was acquired, and the run begins.
    Acquired {
        /// The event.
        key: Key,
        /// 1 for the first run, one more after each failed one.
        attempt: u32,
    },
    /// DEBUG: a run completed its event, and the record is written.
    Completed {
        /// The event.
        key: Key,
        /// What the handler answered, in HTTP.
        status: Option<u16>,
    },
    /// INFO: a run answered with failure; the event stays runnable.
    Failed {
        /// The event.
        key: Key,
        /// Which attempt it was.
        attempt: u32,
        /// What the handler answered, where it did.
        status: Option<u16>,
    },
    /// WARN: a run was cut off, by a panic or because it was dropped; the event stays runnable.
    Abandoned {
        /// The event.
        key: Key,
    },
    /// WARN: a run took longer than the run limit and was dropped; the event stays runnable.
    RunLimit {
        /// The event.
        key: Key,
    },
    /// DEBUG: a duplicate of a completed event.
    Duplicate {
        /// The event.
        key: Key,
        /// Whether its body is not the one that was handled.
        body_changed: bool,
    },
    /// DEBUG: a duplicate of a running event was acknowledged, and this process stands by.
    StoodBy {
        /// The event.
        key: Key,
    },
    /// INFO: a request without a readable event id. Where all are, the
    /// [`EventId`](crate::EventId) looks in the wrong place.
    NoEventId {
        /// Why it has none.
        reason: NoId,
    },
    /// DEBUG: a request passed by, as [`bypass`](crate::WebhookDedupLayer::bypass) has it.
    Bypassed,
    /// DEBUG: a request was refused. WARN where that was because its
    /// [body has changed](Refusal::BodyChanged).
    Refused {
        /// Why.
        refusal: Refusal,
    },
    /// INFO: the handler got a request, and its answer goes out, where something else would have
    /// happened but for [`shadow`](crate::WebhookDedupLayer::shadow).
    Shadow {
        /// The event, where the request has one.
        key: Option<Key>,
        /// What would have become of it; never a [`Run`](Outcome::Run).
        outcome: Outcome,
    },
    /// INFO: the sender hung up, and the run goes on.
    Detached {
        /// The event.
        key: Key,
    },
    /// WARN: the sender hung up, and the run was cancelled, since too many go on already.
    DetachRefused {
        /// The event.
        key: Key,
    },
    /// WARN: a store call failed.
    StoreFailed {
        /// The event.
        key: Key,
        /// Which call, and how.
        error: Error,
    },
    /// WARN: a run's lease is gone, so that another one may run beside it; or it turned out at
    /// the end of the run that another one did.
    LeaseLost {
        /// The event.
        key: Key,
    },
    /// WARN: an event was completed, but that could not be written yet; it is tried again.
    CompletionPending {
        /// The event.
        key: Key,
    },
    /// ERROR: an event was completed, but that could never be written; it may run again.
    CompletionDropped {
        /// The event.
        key: Key,
    },
    /// ERROR: an acknowledged event will not be brought to an end by this process.
    Lost(Lost),
    /// ERROR: an event failed too often, and is over
    /// ([`give_up_after`](crate::WebhookDedupLayer::give_up_after)).
    GaveUp(DeadLetter),
}

impl DedupEvent {
    /// The kind of event, as a label for a counter: `acquired`, `lease-lost` and so on.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Configured { .. } => "configured",
            Self::Acquired { .. } => "acquired",
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::Abandoned { .. } => "abandoned",
            Self::RunLimit { .. } => "run-limit",
            Self::Duplicate { .. } => "duplicate",
            Self::StoodBy { .. } => "stood-by",
            Self::NoEventId { .. } => "no-event-id",
            Self::Bypassed => "bypassed",
            Self::Refused { .. } => "refused",
            Self::Shadow { .. } => "shadow",
            Self::Detached { .. } => "detached",
            Self::DetachRefused { .. } => "detach-refused",
            Self::StoreFailed { .. } => "store-failed",
            Self::LeaseLost { .. } => "lease-lost",
            Self::CompletionPending { .. } => "completion-pending",
            Self::CompletionDropped { .. } => "completion-dropped",
            Self::Lost(_) => "lost",
            Self::GaveUp(_) => "gave-up",
        }
    }
}

#[cfg(feature = "tracing")]
impl DedupEvent {
    /// The one place where the crate logs.
    pub(crate) fn trace(&self) {
        use tracing::{debug, error, field::display, info, warn};

        match self {
            Self::Configured { namespace } => {
                let namespace = namespace.as_deref().unwrap_or("<by request>");
                debug!(namespace, "webhooks are deduplicated");
            }
            Self::Acquired { key, attempt } => debug!(%key, attempt, "event acquired"),
            Self::Completed { key, status } => debug!(%key, status, "event completed"),
            Self::Failed {
                key,
                attempt,
                status,
            } => {
                info!(%key, attempt, status, "event failed; it stays runnable");
            }
            Self::Abandoned { key } => warn!(%key, "run cut off; the event stays runnable"),
            Self::RunLimit { key } => warn!(%key, "run over its limit; the event stays runnable"),
            Self::Duplicate { key, body_changed } => debug!(%key, body_changed, "duplicate"),
            Self::StoodBy { key } => debug!(%key, "duplicate of a running event; standing by"),
            Self::NoEventId { reason } => info!(%reason, "no event id"),
            Self::Bypassed => debug!("request passed by"),
            Self::Refused {
                refusal: Refusal::BodyChanged { key },
            } => warn!(%key, "request refused: its event was completed with another body"),
            Self::Refused { refusal } => {
                debug!(status = refusal.status().as_u16(), %refusal, "request refused");
            }
            Self::Shadow { key, outcome } => {
                let refusal = match outcome {
                    Outcome::InFlight(why) | Outcome::Refused(why) => Some(display(why)),
                    _ => None,
                };
                let (key, outcome) = (key.as_ref().map(display), outcome.as_str());
                info!(key, outcome, refusal, "shadow: forwarded all the same");
            }
            Self::Detached { key } => info!(%key, "sender hung up; the run goes on"),
            Self::DetachRefused { key } => {
                warn!(%key, "sender hung up; run cancelled, since too many go on already");
            }
            Self::StoreFailed { key, error } => {
                let source = std::error::Error::source(error);
                warn!(%key, %error, source, "store call failed");
            }
            Self::LeaseLost { key } => warn!(%key, "lease lost; the event may run twice"),
            Self::CompletionPending { key } => {
                warn!(%key, "completion not written yet; it is tried again");
            }
            Self::CompletionDropped { key } => {
                error!(%key, "completion never written; the event may run again");
            }
            Self::Lost(Lost {
                key,
                reason,
                request,
                others,
            }) => {
                for request in std::iter::once(request).chain(others) {
                    error!(
                        %key, %reason, method = %request.method(), uri = %request.uri(),
                        // Whole, for once: nobody else has it any more. Not the headers: they
                        // hold secrets.
                        body = %String::from_utf8_lossy(request.body()),
                        "acknowledged event lost"
                    );
                }
            }
            Self::GaveUp(DeadLetter {
                key,
                attempts,
                status,
                request,
            }) => {
                error!(
                    %key, attempts, status, method = %request.method(), uri = %request.uri(),
                    // As for what is lost.
                    body = %String::from_utf8_lossy(request.body()),
                    "event failed too often; given up"
                );
            }
        }
    }
}

/// The `tracing` span that a request came in, for the part that continues after the sender
/// disconnected.
#[derive(Clone)]
pub(crate) struct Context {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl Context {
    pub(crate) fn current() -> Self {
        Self {
            #[cfg(feature = "tracing")]
            span: tracing::Span::current(),
        }
    }

    /// Does something in this span, from wherever the future is dropped.
    pub(crate) fn within<T>(&self, act: impl FnOnce() -> T) -> T {
        #[cfg(feature = "tracing")]
        return self.span.in_scope(act);
        #[cfg(not(feature = "tracing"))]
        act()
    }

    /// The future as it goes on in this span.
    pub(crate) fn wrap<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        #[cfg(feature = "tracing")]
        let future = tracing::Instrument::instrument(future, self.span);
        future
    }
}
