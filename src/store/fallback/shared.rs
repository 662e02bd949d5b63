//! Which store is asked, and the switch between them.
//!
//! The circuit breaker is a state of its own. Those of `failsafe` (1.3), `recloser` (1.4) and
//! `tower-resilience-circuitbreaker` (0.14) go half open by themselves after a time, on the system's
//! clock, then let calls through to try, and close when enough of these succeed. Here no call may
//! reach the primary before it knows what it missed.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, MutexGuard},
};

use futures_util::FutureExt;
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore},
    time::{Instant, timeout_at},
};

use super::{Settings, Switch, back::Watch, book::Book};
use crate::{
    Key, LeaseStore, StoreError, StoreErrorKind, Token, mutex::Mutex, store::FallbackError,
};

/// How many calls that mirror something wait for a slow secondary at once. At the cap it misses
/// some.
const MOST_MIRRORS: usize = 1024;

/// What all clones of one [`Fallback`](super::Fallback) share.
pub(super) struct Shared<P, S> {
    pub(super) primary: P,
    pub(super) secondary: S,
    state: Mutex<State>,
    /// Wakes the background task: there is something to carry although the primary is trusted.
    pub(super) owing: Arc<Notify>,
    mirrors: Arc<Semaphore>,
}

#[derive(Default)]
pub(super) struct State {
    /// Since when the secondary is asked.
    pub(super) down: Option<Instant>,
    /// Counts the switches.
    pub(super) epoch: u64,
    /// Whether there is a background task.
    pub(super) watched: bool,
    pub(super) book: Book,
}

pub(super) type Error<P, S> = FallbackError<<P as LeaseStore>::Error, <S as LeaseStore>::Error>;

/// Who has the word in a call.
pub(super) enum Turn<'a, T, P, S> {
    /// The primary has answered, asked in this epoch.
    Primary(T, u64),
    /// The secondary has; and where it is `sent`, the primary may have done its part, or may yet.
    Secondary { here: Here<'a, P, S>, sent: bool },
}

/// While this lives, the secondary decides about the event, whatever becomes of the primary.
pub(super) struct Here<'a, P, S> {
    shared: &'a Shared<P, S>,
    key: Key,
}

impl<P, S> Drop for Here<'_, P, S> {
    fn drop(&mut self) {
        self.shared.lock().book.leave(&self.key);
    }
}

/// While this lives, the secondary may forget what it is told of the event.
pub(super) struct Overruled<'a, P, S> {
    shared: &'a Shared<P, S>,
    key: Key,
}

impl<P, S> Drop for Overruled<'_, P, S> {
    fn drop(&mut self) {
        self.shared.lock().book.overruled(&self.key);
    }
}

impl State {
    /// Whether the secondary decides about the event.
    pub(super) fn is_local(&self, key: &Key) -> bool {
        self.down.is_some() || self.book.is_local(key)
    }

    /// Whether that has become so, or may have been so, since the primary was asked.
    pub(super) fn moved(&self, epoch: u64, key: &Key) -> bool {
        self.epoch != epoch || self.is_local(key)
    }
}

impl<P, S> Shared<P, S> {
    pub(super) fn new(primary: P, secondary: S) -> Self {
        Self {
            primary,
            secondary,
            state: Mutex::default(),
            owing: Arc::default(),
            mirrors: Arc::new(Semaphore::new(MOST_MIRRORS)),
        }
    }

    /// No code of others runs under the lock.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The secondary decides about the event from now on.
    pub(super) fn enter(&self, key: &Key) -> Here<'_, P, S> {
        self.lock().book.enter(key);
        self.here(key)
    }

    /// `None`, where the primary does not decide about the event any more.
    pub(super) fn overrule(
        &self,
        key: &Key,
        token: Token,
        lease: bool,
        epoch: u64,
    ) -> Option<Overruled<'_, P, S>> {
        let mut state = self.lock();
        if state.moved(epoch, key) || !state.book.overrule(key, token, lease) {
            return None;
        }
        drop(state);
        let key = key.clone();
        Some(Overruled { shared: self, key })
    }

    /// For an event that was entered.
    pub(super) fn here(&self, key: &Key) -> Here<'_, P, S> {
        Here {
            shared: self,
            key: key.clone(),
        }
    }
}

impl<P, S> Drop for Shared<P, S> {
    /// The task finds its store gone, and ends.
    fn drop(&mut self) {
        self.owing.notify_one();
    }
}

impl<P: LeaseStore, S: LeaseStore> Shared<P, S> {
    /// Asks the primary, where it is trusted with this event. It gets half of the time; where it
    /// fails, it is not asked again until it is well.
    pub(super) async fn turn<'a, T, F>(
        self: &'a Arc<Self>,
        key: &Key,
        by: Instant,
        settings: &Settings,
        call: impl FnOnce(&'a P, Instant) -> F,
    ) -> Result<Turn<'a, T, P, S>, Error<P, S>>
    where
        F: Future<Output = Result<T, P::Error>>,
    {
        let Some(epoch) = self.trusted(key) else {
            self.watch(settings);
            let here = self.here(key);
            return Ok(Turn::Secondary { here, sent: false });
        };
        let now = Instant::now();
        let share = by.saturating_duration_since(now) / 2;
        let half = now + share;
        let (kind, sent) = match timeout_at(half, call(&self.primary, half)).await {
            Ok(Ok(answer)) => return Ok(Turn::Primary(answer, epoch)),
            Ok(Err(error)) if !is_outage(error.kind()) => {
                return Err(FallbackError::primary(error));
            }
            Ok(Err(error)) => (error.kind(), error.may_have_landed()),
            Err(_) => (StoreErrorKind::TimedOut, true),
        };
        // The caller's time was over, which says nothing about the store.
        if share.is_zero() && kind == StoreErrorKind::TimedOut {
            return Err(FallbackError::late());
        }
        let here = self.enter(key);
        self.trip(epoch, kind, settings);
        Ok(Turn::Secondary { here, sent })
    }

    /// The epoch, where the primary decides about the event; else the secondary does from here on.
    fn trusted(&self, key: &Key) -> Option<u64> {
        let mut state = self.lock();
        if !state.is_local(key) {
            return Some(state.epoch);
        }
        state.book.enter(key);
        None
    }

    /// Switches to the secondary, unless somebody has since the primary was asked.
    pub(super) fn trip(self: &Arc<Self>, epoch: u64, kind: StoreErrorKind, settings: &Settings) {
        {
            let mut state = self.lock();
            if state.down.is_some() || state.epoch != epoch {
                return;
            }
            state.down = Some(Instant::now());
            state.epoch += 1;
            state.book.owe_all();
            state.book.dropped = 0;
        }
        settings.tell(&Switch::Out { kind });
        self.watch(settings);
    }

    /// Has a task watch the primary and tell it what it missed. Outside a runtime, or where its
    /// runtime has ended, a later call does.
    pub(super) fn watch(self: &Arc<Self>, settings: &Settings) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if std::mem::replace(&mut self.lock().watched, true) {
            return;
        }
        // Not under the lock: a runtime that is ending drops the task at once.
        let watch = Watch::new(self, settings.clone());
        drop(runtime.spawn(watch.run()));
    }

    /// Something is owed to the primary. While it is trusted, it is told at once.
    pub(super) fn owe(self: &Arc<Self>, settings: &Settings, write: impl FnOnce(&mut Book)) {
        {
            let mut state = self.lock();
            write(&mut state.book);
            if state.down.is_none() {
                self.owing.notify_one();
            }
        }
        self.watch(settings);
    }

    /// The primary has done something, asked in this epoch. Where it is not trusted any more, it is
    /// `owed` all the same.
    pub(super) fn note(
        self: &Arc<Self>,
        key: &Key,
        epoch: u64,
        settings: &Settings,
        write: impl FnOnce(&mut Book, bool),
    ) {
        let moved = {
            let mut state = self.lock();
            let moved = state.moved(epoch, key);
            write(&mut state.book, moved);
            moved
        };
        if moved {
            self.owe(settings, |_| {});
        }
    }

    /// Lets the secondary know of something that the primary has done. One that does not answer at
    /// once does so in the background, and holds up nobody.
    pub(super) fn mirror(&self, by: Instant, call: impl Future<Output = ()> + Send + 'static) {
        let mut call: Pin<Box<_>> = Box::pin(call);
        if (&mut call).now_or_never().is_none() {
            self.go_on(by, call);
        }
    }

    /// Goes on with such a call in the background.
    pub(super) fn go_on<F>(&self, by: Instant, call: F)
    where
        F: Future<Output: Send> + Send + 'static,
    {
        if let (Ok(runtime), Ok(place)) = (
            Handle::try_current(),
            self.mirrors.clone().try_acquire_owned(),
        ) {
            drop(runtime.spawn(async move {
                _ = timeout_at(by, call).await;
                drop(place);
            }));
        }
    }
}

/// Whether a store that fails so is to be left alone for a while.
pub(super) const fn is_outage(kind: StoreErrorKind) -> bool {
    match kind {
        StoreErrorKind::Unreachable
        | StoreErrorKind::TimedOut
        | StoreErrorKind::ReadOnly
        | StoreErrorKind::OutOfMemory => true,
        StoreErrorKind::Denied | StoreErrorKind::BadReply | StoreErrorKind::Misconfigured => false,
    }
}
