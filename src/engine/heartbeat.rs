//! Renews the leases of runs that take long.

use std::{
    array,
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::stream::FuturesUnordered;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{Dedup, Settings, Shared, pace::sleep};
use crate::{DedupEvent, Key, LeaseStore, Token};

/// How many leases are renewed at once.
const AT_ONCE: usize = 64;

const SHARDS: usize = 16;

/// How long the task sleeps, when there is nothing to renew, before it waits to be woken.
const IDLE: Duration = Duration::from_secs(1);

/// One lease as the heartbeat sees it.
pub(crate) struct Beat {
    key: Key,
    token: Token,
    settings: Arc<Settings>,
    /// No renewal after this.
    until: Instant,
    times: Mutex<Times>,
    /// A renewal is on its way.
    renewing: AtomicBool,
    /// How many renewals were sent, or are about to be, whose outcomes are not known: each may
    /// still land, after others that were sent later, too.
    open: AtomicUsize,
    /// The run is over.
    over: AtomicBool,
    lost: AtomicBool,
    lost_notify: Notify,
}

#[derive(Clone, Copy)]
struct Times {
    /// The lease runs out unless it is renewed.
    deadline: Instant,
    /// The next renewal.
    due: Instant,
}

impl Beat {
    /// A lease whose acquire was sent at this moment.
    pub(super) fn new(key: Key, token: Token, settings: Arc<Settings>, sent: Instant) -> Self {
        let times = Times {
            deadline: sent + settings.lease,
            due: sent + settings.lease / 3,
        };
        Self {
            key,
            token,
            until: sent + settings.run_limit,
            settings,
            times: Mutex::new(times),
            renewing: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            lost_notify: Notify::new(),
        }
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
            let lost = self.lost_notify.notified();
            if self.is_lost() {
                return;
            }
            if !self.is_live() {
                return std::future::pending().await;
            }
            let deadline = self.times().deadline;
            _ = timeout_at(deadline, lost).await;
        }
    }

    /// Marks the lease as lost, and reports it the first time.
    pub(super) fn lose(&self) {
        if self.lost.swap(true, Ordering::SeqCst) {
            return;
        }
        self.lost_notify.notify_waiters();
        let key = self.key.clone();
        self.settings.emit(&DedupEvent::LeaseLost { key });
    }

    /// The run is over. Called before its end is sent to the store: what a renewal finds after
    /// that is the end itself, and no loss.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody still cares for it to be renewed.
    fn is_live(&self) -> bool {
        !self.over.load(Ordering::SeqCst) && !self.lost.load(Ordering::SeqCst)
    }
}

/// All leases that this layer holds.
pub(super) struct Heartbeat {
    shards: [Mutex<HashMap<Token, Arc<Beat>>>; SHARDS],
    task: Arc<Task>,
}

/// What the task and its layer share. The task must not keep the layer alive.
#[derive(Default)]
struct Task {
    state: Mutex<TaskState>,
    wake: Notify,
}

#[derive(Default)]
struct TaskState {
    running: bool,
    /// When it wakes by itself; `None` while it looks around, or has nothing to wait for.
    next: Option<Instant>,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self {
            shards: array::from_fn(|_| Mutex::default()),
            task: Arc::default(),
        }
    }
}

impl Heartbeat {
    fn shard(&self, token: Token) -> MutexGuard<'_, HashMap<Token, Arc<Beat>>> {
        let n = usize::from(token.as_bytes()[0]) % SHARDS;
        self.shards[n]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> Vec<Arc<Beat>> {
        let mut live = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            live.extend(shard.values().filter(|beat| beat.is_live()).cloned());
        }
        live
    }
}

impl Drop for Heartbeat {
    /// The task finds its layer gone, and ends.
    fn drop(&mut self) {
        self.task.wake.notify_one();
    }
}

impl<St: LeaseStore> Dedup<St> {
    /// Has the lease renewed from now on. `true`: the task was woken for it.
    pub(super) fn register(&self, beat: Arc<Beat>) -> bool {
        let heartbeat = &self.shared.heartbeat;
        let due = beat.times().due;
        heartbeat.shard(beat.token).insert(beat.token, beat);

        let task = &heartbeat.task;
        let running = {
            let mut state = task.state();
            // A task that is asleep until an earlier moment finds the lease by then.
            if state.running && state.next.is_some_and(|next| next <= due) {
                return false;
            }
            std::mem::replace(&mut state.running, true)
        };
        if running {
            task.wake.notify_one();
            return true;
        }
        let beating = beat_on(Arc::downgrade(&self.shared), Running(task.clone()));
        self.tracker().spawn_daemon(beating)
    }

    /// No renewals from now on. `true`: one may still land.
    pub(super) fn deregister(&self, beat: &Beat) -> bool {
        beat.end();
        self.shared.heartbeat.shard(beat.token).remove(&beat.token);
        beat.open.load(Ordering::SeqCst) > 0
    }

    /// Renews a lease that is due.
    async fn renew(&self, beat: &Beat) {
        let sent = Instant::now();
        let deadline = beat.times().deadline;
        if sent >= deadline {
            beat.lose();
            return;
        }
        if sent >= beat.until {
            beat.times().due = deadline;
            return;
        }
        // In this order: a run that ends in between either keeps the renewal from being sent, or
        // learns that one may still land.
        beat.open.fetch_add(1, Ordering::SeqCst);
        if !beat.is_live() {
            return;
        }
        let renewed = self.call_renew(&beat.key, beat.token).await;
        let lease = beat.settings.lease;
        let landed = renewed
            .as_ref()
            .map_or_else(|it| !it.may_have_landed(), |_| true);
        if landed && beat.is_live() {
            beat.open.fetch_sub(1, Ordering::SeqCst);
        }
        match renewed {
            // It came too late to tell whether the lease was held all the time: another run may
            // have come and gone.
            Ok(true) if beat.is_lost() => {}
            Ok(true) => {
                let (deadline, due) = (sent + lease, sent + lease / 3);
                *beat.times() = Times { deadline, due };
            }
            Ok(false) if beat.is_live() => beat.lose(),
            Ok(false) => {}
            // Not fatal before the deadline, and tried again well before it.
            Err(_) => {
                let retry = (lease / 12).min(Duration::from_secs(1));
                beat.times().due = (Instant::now() + retry).min(deadline);
            }
        }
    }
}

impl Task {
    fn state(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task. It lasts until its layer is gone, or its runtime.
async fn beat_on<St: LeaseStore>(shared: Weak<Shared<St>>, running: Running) {
    let task = &*running.0;
    // As many as are being renewed. One that hangs holds up none of the others.
    let mut renewals = FuturesUnordered::new();
    let mut woken = true;
    while let Some(shared) = shared.upgrade() {
        // Whoever registers between here and the end of the look wakes the task once more.
        task.state().next = None;
        let mut waiting = shared.heartbeat.live();
        waiting.retain(|beat| !beat.renewing.load(Ordering::SeqCst));
        waiting.sort_by_key(|beat| beat.times().due);
        let now = Instant::now();
        let due = waiting.partition_point(|beat| beat.times().due <= now);
        for beat in waiting.drain(..due.min(AT_ONCE - renewals.len())) {
            let dedup = Dedup {
                shared: shared.clone(),
                settings: beat.settings.clone(),
            };
            let renewing = Renewing::begin(beat);
            renewals.push(async move { dedup.renew(&renewing.0).await });
        }
        drop(shared);

        let next = if renewals.len() < AT_ONCE {
            // Where all leases are over again, the next ones need not wake the task.
            let idle = woken.then(|| now + IDLE);
            waiting.first().map(|beat| beat.times().due).or(idle)
        } else {
            None
        };
        drop(waiting);
        task.state().next = next;
        woken = sleep(next, &task.wake, &mut renewals).await;
    }
}

/// A renewal on its way, until this is dropped: by the end of the runtime, too.
struct Renewing(Arc<Beat>);

impl Renewing {
    fn begin(beat: Arc<Beat>) -> Self {
        beat.renewing.store(true, Ordering::SeqCst);
        Self(beat)
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.renewing.store(false, Ordering::SeqCst);
    }
}

/// Tells, when dropped, that the task has ended.
struct Running(Arc<Task>);

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.state() = TaskState::default();
    }
}
