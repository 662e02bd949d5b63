//! The future of one request, and what becomes of it when the sender hangs up.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{call::Call, engine::Tracker};

/// Response future of [`WebhookDedup`](crate::WebhookDedup).
///
/// Dropped while the handler runs, it moves what is left into a background task, so that the run
/// goes to its end and is recorded ([`OnDisconnect::Finish`](crate::OnDisconnect::Finish)). Nothing
/// is spawned otherwise.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<T: Send + 'static> {
    /// `None` once it is done, or has panicked.
    rest: Option<Rest<T>>,
    /// Draining waits for it. A server may report itself stopped just before it drops its last
    /// requests, and what moves into tasks then must not be missed.
    open: Option<TaskTrackerToken>,
}

/// In two boxes, so that a duplicate does not pay for the room that a run needs.
enum Rest<T> {
    /// Reads the request and finds out what becomes of it.
    Decide(Boxed<Step<T>>),
    /// Has the inner service answer.
    Inner(Boxed<T>, Option<Arc<Call>>),
}

/// What follows once it is known what becomes of a request.
pub(crate) enum Step<T> {
    Answer(T),
    /// The inner service answers; where there is a call, whether or not the sender hangs up.
    Inner(Boxed<T>, Option<Arc<Call>>),
}

pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<T> Step<T> {
    pub(crate) fn inner(answer: impl Future<Output = T> + Send + 'static) -> Self {
        Self::Inner(Box::pin(answer), None)
    }
}

impl<T: Send + 'static> ResponseFuture<T> {
    pub(crate) fn new(
        tracker: &Tracker,
        decide: impl Future<Output = Step<T>> + Send + 'static,
    ) -> Self {
        Self {
            rest: Some(Rest::Decide(Box::pin(decide))),
            open: Some(tracker.open()),
        }
    }
}

impl<T: Send + 'static> fmt::Debug for ResponseFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> ResponseFuture<T> {
    /// What is polled has been taken out of `rest`: should the poll panic, it is dropped with the
    /// panic and never polled again by a task.
    fn poll_decide(&mut self, mut decide: Boxed<Step<T>>, cx: &mut Context<'_>) -> Poll<T> {
        let Poll::Ready(step) = decide.as_mut().poll(cx) else {
            self.rest = Some(Rest::Decide(decide));
            return Poll::Pending;
        };
        drop(decide);
        match step {
            Step::Answer(answer) => Poll::Ready(answer),
            Step::Inner(answer, call) => self.poll_inner(answer, call, cx),
        }
    }

    fn poll_inner(
        &mut self,
        mut answer: Boxed<T>,
        call: Option<Arc<Call>>,
        cx: &mut Context<'_>,
    ) -> Poll<T> {
        let polled = answer.as_mut().poll(cx);
        if polled.is_pending() {
            self.rest = Some(Rest::Inner(answer, call));
        }
        polled
    }
}

impl<T: Send + 'static> Future for ResponseFuture<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let polled = match self.rest.take() {
            Some(Rest::Decide(decide)) => self.poll_decide(decide, cx),
            Some(Rest::Inner(answer, call)) => self.poll_inner(answer, call, cx),
            None => Poll::Pending,
        };
        if polled.is_ready() {
            self.open = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for ResponseFuture<T> {
    fn drop(&mut self) {
        // Before the handler runs, everything is dropped.
        if let Some(Rest::Inner(answer, Some(call))) = self.rest.take() {
            call.hung_up(answer);
        }
    }
}
