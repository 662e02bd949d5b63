//! The future of one request, and what becomes of it when the sender hangs up.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{
    DedupEvent, Key, OnDisconnect,
    engine::{Settings, Tracker},
    event,
};

/// Response future of [`WebhookDedup`](crate::WebhookDedup).
///
/// Dropped while the handler runs, it moves what is left into a background task, so that the run
/// goes to its end and is recorded ([`OnDisconnect::Finish`](crate::OnDisconnect::Finish)). Nothing
/// is spawned otherwise.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<T: Send + 'static> {
    /// `None` once it is done, or has panicked.
    rest: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    call: Arc<Call>,
    /// Draining waits for it. A server may report itself stopped just before it drops its last
    /// requests, and what moves into tasks then must not be missed.
    open: Option<TaskTrackerToken>,
}

impl<T: Send + 'static> ResponseFuture<T> {
    pub(crate) fn new(call: Arc<Call>, flow: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            rest: Some(Box::pin(flow)),
            open: Some(call.tracker.open()),
            call,
        }
    }
}

impl<T: Send + 'static> fmt::Debug for ResponseFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Future for ResponseFuture<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Taken out for the poll: should that panic, what is left is dropped with the panic and
        // never polled again by a task.
        let Some(mut rest) = self.rest.take() else {
            return Poll::Pending;
        };
        let polled = rest.as_mut().poll(cx);
        if polled.is_pending() {
            self.rest = Some(rest);
        } else {
            self.open = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for ResponseFuture<T> {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take() {
            self.call.hung_up(rest);
        }
    }
}

/// What a request, its future and its handler know of each other.
pub(crate) struct Call {
    tracker: Arc<Tracker>,
    settings: Arc<Settings>,
    on_disconnect: OnDisconnect,
    context: event::Context,
    /// The event and the bytes of its body, from when the handler runs.
    run: OnceLock<(Key, usize)>,
    running: AtomicBool,
    detached: AtomicBool,
}

impl Call {
    pub(crate) fn new(
        tracker: Arc<Tracker>,
        settings: Arc<Settings>,
        on_disconnect: OnDisconnect,
    ) -> Self {
        Self {
            tracker,
            settings,
            on_disconnect,
            context: event::Context::current(),
            run: OnceLock::new(),
            running: AtomicBool::new(false),
            detached: AtomicBool::new(false),
        }
    }

    /// From now on a hung-up sender does not end the request.
    pub(crate) fn run_begins(&self, key: Key, bytes: usize) {
        self.run.get_or_init(|| (key, bytes));
        self.running.store(true, Ordering::Release);
    }

    /// From now on the lease takes care of itself.
    pub(crate) fn run_ends(&self) {
        self.running.store(false, Ordering::Release);
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Acquire)
    }

    /// The sender hung up on what is left.
    fn hung_up<T: Send + 'static>(&self, rest: Pin<Box<dyn Future<Output = T> + Send>>) {
        // Outside a runtime it cannot go on, and its lease runs out.
        let running = self.running.load(Ordering::Acquire) && self.tracker.can_spawn();
        let (true, OnDisconnect::Finish, Some((key, bytes))) =
            (running, self.on_disconnect, self.run.get())
        else {
            return;
        };
        let (key, limits) = (key.clone(), &self.settings.limits);
        let Some(place) = self.tracker.detach(key.clone(), *bytes, limits) else {
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
