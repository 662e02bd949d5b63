//! What the handler is told.

use std::{
    fmt, iter,
    sync::{Arc, Weak},
};

use crate::{BodyHash, Key, Record, call::Call, engine::Beat, identity::IdText};

/// The delivery that a handler is running, in the extensions of its request.
///
/// Side effects outside the store happen exactly once only if the handler makes them so: a
/// `UNIQUE` column for [`key`](Self::key) in its own database is the usual way.
///
/// Handlers of axum take an `Extension<Delivery>`, or an `Option` of it where some requests
/// [pass by](crate::WebhookDedupLayer::bypass) or are [forwarded](crate::MissingId::Forward).
///
/// ```
/// # use http::Request;
/// use tower_webhook_dedup::Delivery;
///
/// async fn handle<B>(request: Request<B>) {
///     let Some(delivery) = request.extensions().get::<Delivery>() else {
///         return; // a request that the layer let pass
///     };
///     println!("{}, attempt {}", delivery.event_id(), delivery.attempt());
/// }
/// ```
#[derive(Clone)]
pub struct Delivery(Arc<Call>);

impl Delivery {
    pub(crate) const fn new(call: Arc<Call>) -> Self {
        Self(call)
    }

    /// The runs that a request with this is part of: its own, and those outside of that; as long as
    /// they go on.
    fn runs(&self) -> impl Iterator<Item = Arc<Call>> {
        let outside = self.0.outside.iter().filter_map(Weak::upgrade);
        let runs = iter::once(self.0.clone()).chain(outside);
        runs.filter(|run| run.is_running())
    }

    /// The same, for those inside to know. It keeps none of them: whoever sends one request out of
    /// another without end would keep all.
    pub(crate) fn to_runs(&self) -> Vec<Weak<Call>> {
        self.runs().map(|run| Arc::downgrade(&run)).collect()
    }

    /// Whether an event is safe with any of these runs.
    pub(crate) fn keeps_event(&self) -> bool {
        self.runs().any(|run| run.keeps_event())
    }

    /// Those of these runs whose end will be recorded.
    pub(crate) fn recorded(&self) -> impl Iterator<Item = Arc<Call>> {
        let has_say = |beat: &Arc<Beat>| !beat.is_handed_over();
        self.runs()
            .filter(move |run| run.beat.as_ref().is_some_and(has_say))
    }

    /// The id of the event, as the request has it; the body's hash where
    /// [it has none](Self::is_by_body).
    #[must_use]
    pub fn event_id(&self) -> &str {
        &self.0.event_id
    }

    /// Whether the request has no id, and its body stood for it
    /// ([`MissingId::UseBodyHash`](crate::MissingId::UseBodyHash)).
    #[must_use]
    pub fn is_by_body(&self) -> bool {
        self.0.by_body
    }

    /// The key of the event in the store: unique for each event, however often it is delivered.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// SHA-256 of the raw body.
    #[must_use]
    pub fn body_hash(&self) -> BodyHash {
        self.0.body_hash
    }

    /// 1 for the first run, one more after each that answered with failure. Runs that were cut off,
    /// by a panic, a hang-up or a killed process, do not count, and failures are remembered for a day
    /// at most: see [`give_up_after`](crate::WebhookDedupLayer::give_up_after).
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// Whether a lease protects this run from others beside it. Without one, the store had failed
    /// ([`StoreFailure::Forward`](crate::StoreFailure::Forward)), or the layer is in the
    /// [shadow](crate::WebhookDedupLayer::shadow).
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.0.protected
    }

    /// Resolves when the lease is lost: another run may begin beside this one. A handler that can
    /// stop safely should. Never resolves for a run that is fine, or that has no lease.
    pub async fn lease_lost(&self) {
        match &self.0.beat {
            Some(beat) if self.0.protected => beat.lost().await,
            _ => std::future::pending().await,
        }
    }

    /// Whether nobody waits for the answer: the sender hung up, or this process stood by for the
    /// event.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.0.is_detached()
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("event_id", &self.event_id())
            .field("key", &self.key())
            .field("attempt", &self.attempt())
            .field("is_protected", &self.is_protected())
            .field("is_detached", &self.is_detached())
            .finish_non_exhaustive()
    }
}

/// Which event a request carries.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) event_id: IdText,
    pub(crate) by_body: bool,
    pub(crate) key: Key,
    pub(crate) body_hash: BodyHash,
    /// The hash of method, path and query, where an answer may be kept for them.
    pub(crate) target: Option<BodyHash>,
}

impl Identity {
    /// Whether the event was handled with another body.
    pub(crate) fn is_changed(&self, record: &Record) -> bool {
        let handled = record.body_hash();
        handled.is_some_and(|handled| handled != self.body_hash)
    }
}
