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

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often a driver is polled, and wakes itself, when it is woken so often.
    fn polls_and_wakes(times: usize, load: Load) -> (usize, usize) {
        let mut polls = 0;
        let driver = std::future::poll_fn(|_| {
            polls += 1;
            Poll::Pending
        });
        let woken = Arc::new(Woken::default());
        let waker = Arc::clone(&woken).into();
        let mut context = Context::from_waker(&waker);
        let mut coalesce = Box::pin(Coalesce::new(driver, Arc::new(load)));
        for _ in 0..times {
            assert!(coalesce.as_mut().poll(&mut context).is_pending());
        }
        drop(coalesce);
        (polls, woken.0.load(Ordering::Relaxed))
    }

    #[test]
    fn a_command_that_is_alone_does_not_wait() {
        assert_eq!(polls_and_wakes(4, Load(1.into())), (4, 0));
        assert_eq!(polls_and_wakes(4, Load(0.into())), (4, 0));
    }

    #[test]
    fn a_driver_with_more_than_one_command_steps_back_once_each_time() {
        assert_eq!(polls_and_wakes(4, Load(2.into())), (2, 2));
    }

    #[test]
    fn a_command_is_on_its_way_until_nobody_waits_for_it() {
        let load = Load::default();
        let (first, second) = (load.one_more(), load.one_more());
        assert!(load.is_shared());
        drop(first);
        assert!(!load.is_shared());
        drop(second);
    }
}
