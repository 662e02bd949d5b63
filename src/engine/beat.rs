//! One lease, as the heartbeat, its run, and those who wait for its end see it.

use std::{
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::Settings;
use crate::{DedupEvent, Key, Token, mutex::Mutex};

/// One lease that is renewed until its run is over.
pub(crate) struct Beat {
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) settings: Arc<Settings>,
    /// When the acquire was sent.
    pub(super) sent: Instant,
    times: Mutex<Times>,
    /// A renewal is on its way.
    pub(super) renewing: AtomicBool,
    /// How many renewals were sent, or are about to be, whose outcomes are not known: each may
    /// still land, after others that were sent later, too.
    pub(super) open: AtomicUsize,
    /// The run is over.
    over: AtomicBool,
    /// The store was told so, or that is left to the background.
    told: AtomicBool,
    lost: AtomicBool,
    /// An operator took it away; only the store knows who holds the event now.
    taken: AtomicBool,
    /// Another run has the event in the place of this one, and says what becomes of it.
    handed_over: AtomicBool,
    /// It is lost, or its end was told.
    changed: Notify,
}

#[derive(Clone, Copy)]
pub(super) struct Times {
    /// The lease runs out unless it is renewed.
    pub(super) deadline: Instant,
    /// The next renewal.
    pub(super) due: Instant,
    /// No renewal after this.
    pub(super) until: Instant,
}

impl Beat {
    /// A lease whose acquire was sent at this moment.
    pub(super) fn new(key: Key, token: Token, settings: Arc<Settings>, sent: Instant) -> Self {
        let times = Times {
            deadline: sent + settings.lease,
            due: sent + settings.lease / 3,
            // From now, as the run itself: a reply that was heard late must not cost it renewals.
            until: Instant::now() + settings.run_limit,
        };
        Self {
            key,
            token,
            settings,
            sent,
            times: Mutex::new(times),
            renewing: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            told: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            handed_over: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    /// The run begins only now, and its limit counts from here.
    pub(super) fn begin(&self) {
        self.times().until = Instant::now() + self.settings.run_limit;
    }

    pub(crate) const fn token(&self) -> Token {
        self.token
    }

    /// Whether the lease is lost; it is, too, when its time has passed and the task that should
    /// have noticed had no chance to.
    pub(crate) fn is_lost(&self) -> bool {
        if self.is_live() && Instant::now() >= self.times().deadline {
            self.lose();
        }
        self.lost.load(Ordering::SeqCst)
    }

    /// Resolves when the lease is lost; never for one that is not.
    pub(crate) async fn lost(&self) {
        loop {
            let changed = self.changed.notified();
            if self.is_lost() {
                return;
            }
            if !self.is_live() {
                return std::future::pending().await;
            }
            let deadline = self.times().deadline;
            _ = timeout_at(deadline, changed).await;
        }
    }

    /// Resolves when the lease is lost, or the store was told the end of its run, or that is left
    /// to the background.
    pub(super) async fn ended(&self) {
        loop {
            let changed = self.changed.notified();
            if self.is_lost() || self.told.load(Ordering::SeqCst) {
                return;
            }
            if !self.is_live() {
                changed.await;
                continue;
            }
            let deadline = self.times().deadline;
            _ = timeout_at(deadline, changed).await;
        }
    }

    /// For how long the event is held by this lease, unless it is renewed; as the store would tell
    /// others. `None` where the store has to be asked: the run is over, or the lease may be gone.
    pub(super) fn held(&self) -> Option<Duration> {
        let held = !self.is_lost() && self.is_live() && !self.taken.load(Ordering::SeqCst);
        held.then_some(self.settings.lease)
    }

    /// Marks the lease as lost, and reports it the first time.
    pub(super) fn lose(&self) {
        if self.lost.swap(true, Ordering::SeqCst) {
            return;
        }
        self.changed.notify_waiters();
        let key = self.key.clone();
        self.settings.emit(&DedupEvent::LeaseLost { key });
    }

    /// An operator is about to take the lease away.
    pub(super) fn take(&self) {
        self.taken.store(true, Ordering::SeqCst);
    }

    /// Leaves the event to another run: no renewals from now on, and no completion.
    pub(crate) fn hand_over(&self) {
        self.handed_over.store(true, Ordering::SeqCst);
        self.end();
    }

    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::SeqCst)
    }

    /// The run is over. Called before its end is sent to the store: what a renewal finds after
    /// that is the end itself, and no loss.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// Wakes those who wait for the event to be free, or done.
    pub(super) fn tell_end(&self) {
        self.told.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    pub(super) fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock()
    }

    /// Whether anybody still cares for it to be renewed.
    pub(super) fn is_live(&self) -> bool {
        !self.over.load(Ordering::SeqCst) && !self.lost.load(Ordering::SeqCst)
    }
}

/// A renewal on its way, until this is dropped: by the end of the runtime, too.
pub(super) struct Renewing(pub(super) Arc<Beat>);

impl Renewing {
    pub(super) fn begin(beat: Arc<Beat>) -> Self {
        beat.renewing.store(true, Ordering::SeqCst);
        Self(beat)
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.renewing.store(false, Ordering::SeqCst);
    }
}
