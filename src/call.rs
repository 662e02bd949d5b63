//! What a run, the future of its request and its handler know of each other.

use std::{
    future::Future,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    BodyHash, DedupEvent, Delivery, Key, Lease, LeaseStore, OnDisconnect,
    buffered::Buffered,
    delivery::Identity,
    engine::{Beat, Settings, Tracker},
    event::Context,
    guard::Guard,
};

/// One call of the handler.
pub(crate) struct Call {
    pub(crate) event_id: Box<str>,
    pub(crate) by_body: bool,
    pub(crate) key: Key,
    pub(crate) body_hash: BodyHash,
    /// As in [`Identity`].
    pub(crate) target: Option<BodyHash>,
    pub(crate) attempt: u32,
    /// The runs of layers outside that this one is part of.
    pub(crate) outside: Vec<Weak<Self>>,
    /// What holds the event, or may.
    pub(crate) beat: Option<Arc<Beat>>,
    /// Whether it does.
    pub(crate) protected: bool,
    shadow: bool,
    tracker: Arc<Tracker>,
    settings: Arc<Settings>,
    on_disconnect: OnDisconnect,
    context: Context,
    /// How much of the request is kept while the handler runs.
    bytes: usize,
    running: AtomicBool,
    detached: AtomicBool,
}

impl Call {
    /// The call that this request leads to; without a `context` there is no sender.
    pub(crate) fn new<St: LeaseStore>(
        guard: &Guard<St>,
        request: &Buffered,
        identity: Identity,
        lease: Option<&Lease<St>>,
        context: Option<Context>,
    ) -> Self {
        let Guard { dedup, rules } = guard;
        let outside = request.parts.extensions.get::<Delivery>();
        let protected = lease.is_some_and(Lease::is_confirmed);
        // Others are kept off by the lease outside alone, so it has to end with that.
        let depends = !protected && outside.is_some_and(Delivery::keeps_event);
        Self {
            event_id: identity.event_id.of(&request.data).into(),
            by_body: identity.by_body,
            key: identity.key,
            body_hash: identity.body_hash,
            target: identity.target,
            attempt: lease.map_or(1, Lease::attempt),
            outside: outside.map(Delivery::to_runs).unwrap_or_default(),
            beat: lease.map(Lease::beat).cloned(),
            protected,
            shadow: rules.shadow,
            tracker: dedup.tracker().clone(),
            settings: dedup.settings().clone(),
            on_disconnect: if depends {
                OnDisconnect::Cancel
            } else {
                rules.on_disconnect()
            },
            bytes: request.size(),
            running: AtomicBool::new(true),
            detached: AtomicBool::new(context.is_none()),
            context: context.unwrap_or_else(Context::current),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Whether the event is safe with this run: it is held until the handler is done, or dropped. In
    /// the shadow a handler may take longer than leases are renewed.
    pub(crate) fn keeps_event(&self) -> bool {
        let has_lease = self.protected && !self.shadow;
        has_lease && self.beat.as_ref().is_some_and(|beat| !beat.is_lost())
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Acquire)
    }

    /// The sender hung up on what is left.
    pub(crate) fn hung_up<F>(&self, rest: F)
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.context.within(|| self.finish(rest));
    }

    /// Has what is left go on, or drops it.
    fn finish<F>(&self, rest: F)
    where
        F: Future<Output: Send> + Send + 'static,
    {
        // Outside a runtime it cannot go on, and its lease runs out.
        let running = self.is_running() && self.tracker.can_spawn();
        if !running || self.on_disconnect != OnDisconnect::Finish {
            return;
        }
        let (key, limits) = (self.key.clone(), &self.settings.limits);
        let Some(place) = self.tracker.detach(key.clone(), self.bytes, limits) else {
            self.settings.emit(&DedupEvent::DetachRefused { key });
            return;
        };
        self.detached.store(true, Ordering::Release);
        self.settings.emit(&DedupEvent::Detached { key });
        let rest = async move {
            let _place = place;
            rest.await;
        };
        self.tracker.spawn(self.context.clone().wrap(rest));
    }
}

/// The handler's part in a call. When this is dropped it is over, and the lease takes care of itself.
pub(crate) struct Running(pub(crate) Arc<Call>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}
