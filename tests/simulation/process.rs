//! One process: what of it is polled, and what becomes of it when it freezes or dies.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, atomic::AtomicUsize},
    task::{Context, Poll, Waker},
};

use crate::log::Pid;

/// Shared by all that runs in the process.
pub(crate) struct Process {
    pub(crate) pid: Pid,
    /// How many handlers run in it.
    pub(crate) runs: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    life: Life,
    /// Of all its futures, by number, so that they go on in the same order in each run of a seed.
    futures: BTreeMap<u64, Option<Waker>>,
    count: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Life {
    #[default]
    Running,
    Frozen,
    Dead,
}

impl Process {
    pub(crate) fn new(pid: Pid) -> Arc<Self> {
        let (runs, state) = Default::default();
        Arc::new(Self { pid, runs, state })
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.state.lock().unwrap().life == Life::Dead
    }

    /// Nothing of it is polled until it thaws. `false`: it is not running.
    pub(crate) fn freeze(&self) -> bool {
        self.turn(Life::Running, Life::Frozen)
    }

    pub(crate) fn thaw(&self) -> bool {
        self.turn(Life::Frozen, Life::Running)
    }

    /// All of its futures are dropped, and what their `Drop`s try comes to nothing.
    pub(crate) fn kill(&self) -> bool {
        let mut life = self.state.lock().unwrap();
        if life.life == Life::Dead {
            return false;
        }
        life.life = Life::Dead;
        drop(life);
        self.wake();
        true
    }

    /// How many of its futures are not over.
    pub(crate) fn futures(&self) -> usize {
        self.state.lock().unwrap().futures.len()
    }

    fn turn(&self, from: Life, to: Life) -> bool {
        let mut state = self.state.lock().unwrap();
        if state.life != from {
            return false;
        }
        state.life = to;
        drop(state);
        self.wake();
        true
    }

    fn wake(&self) {
        let mut state = self.state.lock().unwrap();
        let wakers: Vec<_> = state
            .futures
            .values_mut()
            .filter_map(Option::take)
            .collect();
        drop(state);
        for waker in wakers {
            waker.wake();
        }
    }

    /// The future as it runs in this process. It resolves when it ends or the process dies.
    pub(crate) fn host<F>(self: &Arc<Self>, future: F) -> Hosted
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut state = self.state.lock().unwrap();
        state.count += 1;
        let n = state.count;
        state.futures.insert(n, None);
        drop(state);
        Hosted {
            process: self.clone(),
            n,
            future: Some(Box::pin(future)),
        }
    }
}

pub(crate) struct Hosted {
    process: Arc<Process>,
    n: u64,
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Future for Hosted {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let life = {
            let mut state = self.process.state.lock().unwrap();
            state.futures.insert(self.n, Some(cx.waker().clone()));
            state.life
        };
        match life {
            Life::Frozen => return Poll::Pending,
            Life::Dead => self.future = None,
            Life::Running => {
                let Some(future) = &mut self.future else {
                    return Poll::Ready(());
                };
                if future.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.future = None;
            }
        }
        self.process.state.lock().unwrap().futures.remove(&self.n);
        Poll::Ready(())
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        self.future = None;
        if let Ok(mut state) = self.process.state.lock() {
            state.futures.remove(&self.n);
        }
    }
}
