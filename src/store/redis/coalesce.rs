//! Lets commands that many requests have at the same time go out in one write.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

/// How many commands are on their way over a connection.
#[derive(Debug, Default)]
pub(super) struct Load(AtomicUsize);

/// One of them, until it is dropped.
pub(super) struct OnItsWay<'a>(&'a Load);

impl Load {
    pub(super) fn one_more(&self) -> OnItsWay<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        OnItsWay(self)
    }

    fn is_shared(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 1
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pin_project! {
    /// The client's driver of a connection, which steps back once each time it is woken, so that
    /// the tasks that are ready by then come first and have their commands sent along.
    ///
    /// A runtime with several threads runs a task that another one wakes next, before those that
    /// have been waiting: without this, the driver writes each command on its own. A command that
    /// is alone on its connection does not wait for others.
    ///
    /// Nothing else changes: each command stays one of its own, with its own reply, and one that
    /// nobody waits for any more is not sent.
    pub(super) struct Coalesce<D> {
        #[pin]
        driver: D,
        load: Arc<Load>,
        stepped_back: bool,
    }
}

impl<D> Coalesce<D> {
    pub(super) const fn new(driver: D, load: Arc<Load>) -> Self {
        Self {
            driver,
            load,
            stepped_back: false,
        }
    }
}

impl<D: Future<Output = ()>> Future for Coalesce<D> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        *this.stepped_back = !*this.stepped_back && this.load.is_shared();
        if *this.stepped_back {
            // To the end of the queue, which other threads help with. `yield_now` would wait for
            // this thread, and a handler may block it.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        this.driver.poll(cx)
    }
}
