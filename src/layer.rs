//! The layer and its setters.

mod answers;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::request;
use tower_layer::Layer;

use crate::{
    BodyChanged, Dedup, DedupEvent, DrainHandle, KeyBy, LeaseStore, Limits, MissingId,
    OnDisconnect, Preset, WebhookDedup,
    engine::checked,
    guard::Guard,
    recent::RecentBodies,
    rules::{Namespace, Rules},
};

/// Layer that runs each webhook event once.
///
/// See the [crate docs](crate) for what it does. All clones of a layer, and all services made by it,
/// share what goes on in the background.
///
/// # Example
///
/// With axum:
///
/// ```
/// use std::time::Duration;
///
/// use axum::{Router, body::Body, http::Request, routing::post};
/// use tower::ServiceExt;
/// use tower_webhook_dedup::{EventId, MemoryStore, WebhookDedupLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let dedup = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"))
///     .namespace("billing")
///     .run_limit(Duration::from_secs(10));
/// let app = Router::new()
///     .route("/webhooks/billing", post(|| async { "charged" }))
///     .layer(dedup);
///
/// for outcome in ["run", "duplicate"] {
///     let event = Request::post("/webhooks/billing").body(Body::from(r#"{"id":"evt_1"}"#));
///     let answer = app.clone().oneshot(event.unwrap()).await.unwrap();
///     assert_eq!(answer.headers()["webhook-dedup"], outcome);
/// }
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct WebhookDedupLayer<St: LeaseStore> {
    dedup: Dedup<St>,
    rules: Rules,
}

impl<St: LeaseStore> WebhookDedupLayer<St> {
    /// A layer over this store, for events told by an [`EventId`](crate::EventId), or as a
    /// [preset](crate::providers) knows them.
    pub fn new(store: St, preset: impl Into<Preset>) -> Self {
        let (rules, retention) = preset.into().into_parts();
        let dedup = Dedup::new(store);
        Self {
            dedup: match retention {
                Some(retention) => dedup.retention(retention),
                None => dedup,
            },
            rules,
        }
    }

    /// Keeps the events of this endpoint, or tenant, apart from others on the same store. Two
    /// layers of one namespace swallow each other's events. One inside the other lets the run of that
    /// one through, or takes its place where that is unprotected or in the [shadow](Self::shadow); but
    /// not in another process: a proxy with a layer of its own, and the service behind it, need
    /// different namespaces.
    ///
    /// Defaults to the path of the request as the layer sees it, behind the name of the
    /// [preset](crate::providers) where there is one. Axum's `nest` strips its prefix: set a namespace
    /// there; and where the host or the query tells endpoints apart, which are not part of the path.
    pub fn namespace(mut self, namespace: impl Into<Arc<str>>) -> Self {
        self.rules.namespace = Namespace::Fixed(namespace.into());
        self
    }

    /// As [`namespace`](Self::namespace), made of each request. Use only parts that are verified:
    /// whoever chooses the namespace chooses which events are the same.
    pub fn namespace_with<F>(mut self, namespace: F) -> Self
    where
        F: Fn(&request::Parts) -> String + Send + Sync + 'static,
    {
        self.rules.namespace = Namespace::By(Arc::new(namespace));
        self
    }

    /// To which requests the layer applies. The others pass untouched, their bodies streaming, and
    /// cost no store call.
    ///
    /// Defaults to `POST`.
    pub fn applies_to<F>(mut self, applies: F) -> Self
    where
        F: Fn(&request::Parts) -> bool + Send + Sync + 'static,
    {
        self.rules.applies_to = Arc::new(applies);
        self
    }

    /// Which requests pass by, although the layer [applies](Self::applies_to): handshakes and
    /// probes, which the handler has to answer each time. They make no store call and leave no key,
    /// and their answers come out as the handler made them, without the
    /// [outcome header](Self::outcome_header).
    ///
    /// Asked when the whole body is here, before the event id is read. Look at what the signature
    /// covers, which is the body as a rule: whoever can make an event look like a probe can have it
    /// run twice.
    ///
    /// ```
    /// # use tower_webhook_dedup::{EventId, MemoryStore, WebhookDedupLayer};
    /// let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"))
    ///     .bypass(|parts, body| parts.headers.contains_key("x-probe") && body.is_empty());
    /// ```
    ///
    /// Defaults to none, or those of the [preset](crate::providers), which this replaces.
    pub fn bypass<F>(mut self, bypass: F) -> Self
    where
        F: Fn(&request::Parts, &Bytes) -> bool + Send + Sync + 'static,
    {
        self.rules.bypass = Some(Arc::new(bypass));
        self
    }

    /// What makes two requests the same event.
    ///
    /// Defaults to [`KeyBy::IdAndBody`].
    pub fn key_by(mut self, key_by: KeyBy) -> Self {
        self.rules.key_by = key_by;
        self
    }

    /// What becomes of a request with the id of a completed event and another body. Only of account
    /// where the id alone makes the event, [`KeyBy::Id`].
    ///
    /// Defaults to [`BodyChanged::Duplicate`]: a duplicate, and counted.
    pub fn body_changed(mut self, body_changed: BodyChanged) -> Self {
        self.rules.body_changed = body_changed;
        self
    }

    /// What becomes of a request without a readable event id.
    ///
    /// Defaults to [`MissingId::Refuse`]: 400.
    pub fn missing_id(mut self, missing_id: MissingId) -> Self {
        self.rules.missing_id = missing_id;
        self
    }

    /// How long a lease lasts unless it is renewed, as it is at a third of that. When a process
    /// dies, its events run again one lease later.
    ///
    /// Defaults to 30 seconds.
    ///
    /// # Panics
    ///
    /// If it is below a millisecond or above ten years; and in [`Layer::layer`], if it is shorter
    /// than four times the [`store_timeout`](Self::store_timeout).
    #[track_caller]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.dedup = self.dedup.lease(lease);
        self
    }

    /// How long a run may take. Past it the handler is dropped, the lease released, and the sender
    /// gets 504.
    ///
    /// Defaults to 5 minutes.
    ///
    /// # Panics
    ///
    /// If it is below a millisecond or above ten years.
    #[track_caller]
    pub fn run_limit(mut self, limit: Duration) -> Self {
        self.dedup = self.dedup.run_limit(limit);
        self
    }

    /// How long a completed event is remembered: longer than its sender goes on retrying. What comes
    /// later runs again. The lease is used where it is longer; a [`MemoryStore`](crate::MemoryStore)
    /// at its capacity forgets earlier.
    ///
    /// Defaults to 4 days: [Stripe] retries for 3, the schedule of [Standard Webhooks] takes 76
    /// hours.
    ///
    /// # Panics
    ///
    /// If it is below a millisecond or above ten years.
    ///
    /// [Stripe]: https://docs.stripe.com/webhooks
    /// [Standard Webhooks]: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
    #[track_caller]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.dedup = self.dedup.retention(retention);
        self
    }

    /// Caps on what is kept in memory and in the background.
    ///
    /// Defaults to [`Limits::default`].
    pub fn limits(mut self, limits: Limits) -> Self {
        self.dedup = self.dedup.limits(limits);
        self
    }

    /// How long one call to the store may take in total: connecting, queueing, waiting, repeating.
    ///
    /// Defaults to 300 milliseconds.
    ///
    /// # Panics
    ///
    /// If it is below a millisecond or above ten years.
    #[track_caller]
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.dedup = self.dedup.store_timeout(timeout);
        self
    }

    /// What becomes of a run whose sender hung up.
    ///
    /// Defaults to [`OnDisconnect::Finish`]: it goes on in the background.
    pub fn on_disconnect(mut self, on_disconnect: OnDisconnect) -> Self {
        self.rules.on_disconnect = on_disconnect;
        self
    }

    /// Recognises up to this many bodies that came more than once lately, each of at most 16 KiB, and
    /// neither hashes nor parses them again: worth it where storms of one event come. Ids that stand
    /// elsewhere than in JSON are read all the same, and so are the parts of a body that
    /// [`KeyBy::IdAndFields`] and [`KeyBy::IdAndBodyExcept`] hash. Such a body is compared byte for
    /// byte, and nothing is decided by it. Each layer, with its clones, has its own, which take
    /// `count` times 16 KiB of memory at most.
    ///
    /// Defaults to 0.
    pub fn recent_bodies(mut self, count: usize) -> Self {
        self.rules.recent_bodies = (count > 0).then(|| Arc::new(RecentBodies::new(count)));
        self
    }

    /// How many bytes a body may have. Longer ones are refused with 413, unread where their length
    /// is declared. A framework's own limit on the handler counts separately: axum's is 2 MiB, and is
    /// lifted by `.layer(DefaultBodyLimit::disable())` on the routes, before this layer is added. One
    /// outside that cuts a streamed body off shows as a broken body here: 400.
    ///
    /// Defaults to 2 MiB.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.rules.max_body = bytes;
        self
    }

    /// How long a body may take to arrive. Slower ones are refused with 408; no lease is taken
    /// before all of it is here.
    ///
    /// Defaults to 30 seconds.
    ///
    /// # Panics
    ///
    /// If it is below a millisecond or above ten years.
    #[track_caller]
    pub fn body_timeout(mut self, timeout: Duration) -> Self {
        self.rules.body_timeout = checked("body timeout", timeout);
        self
    }

    /// Calls this with each [`DedupEvent`], for metrics and alarms. It must be quick: it is called
    /// where the events happen. A panic in it is caught.
    ///
    /// Defaults to none.
    pub fn on_event(mut self, on_event: impl Fn(&DedupEvent) + Send + Sync + 'static) -> Self {
        self.dedup = self.dedup.on_event(on_event);
        self
    }

    /// The handle that waits, at shutdown, for what goes on in the background.
    #[must_use]
    pub fn drain_handle(&self) -> DrainHandle {
        self.dedup.drain_handle()
    }

    /// The engine inside, to inspect events or let them run again, or to run others under the
    /// same settings.
    #[must_use]
    pub fn dedup(&self) -> Dedup<St> {
        self.dedup.clone()
    }
}

impl<S, St: LeaseStore> Layer<S> for WebhookDedupLayer<St> {
    type Service = WebhookDedup<S, St>;

    /// Puts the layer around a service.
    ///
    /// # Panics
    ///
    /// If the lease is shorter than four times the store timeout: no renewal could be relied on to
    /// be in time.
    #[track_caller]
    fn layer(&self, inner: S) -> Self::Service {
        let settings = self.dedup.settings();
        assert!(
            settings.lease / 4 >= settings.store_timeout,
            "WebhookDedupLayer: a lease of {:?} is shorter than four times the store timeout of \
             {:?}: raise `lease` or lower `store_timeout`",
            settings.lease,
            settings.store_timeout
        );
        let namespace = match &self.rules.namespace {
            Namespace::Fixed(namespace) => Some(namespace.clone()),
            _ => None,
        };
        if self.dedup.is_news(namespace.as_ref()) {
            settings.emit(&DedupEvent::Configured { namespace });
        }
        let guard = Guard {
            dedup: self.dedup.clone(),
            rules: self.rules.clone(),
        };
        WebhookDedup::new(inner, Arc::new(guard))
    }
}

impl<St: LeaseStore> fmt::Debug for WebhookDedupLayer<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookDedupLayer")
            .field("dedup", &self.dedup)
            .field("rules", &self.rules)
            .finish()
    }
}
