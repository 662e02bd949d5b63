//! Renews the leases of runs that take long.

use std::{
    array,
    cmp::Reverse,
    sync::{Arc, MutexGuard, Weak, atomic::Ordering},
    time::Duration,
};

use futures_util::stream::FuturesUnordered;
use tokio::{sync::Notify, time::Instant};

use super::{
    Beat, Dedup, Shared,
    beat::{Renewing, Times},
    pace::sleep,
};
use crate::{
    Key, LeaseStore,
    identity::{KeyMap, shard_of},
    mutex::Mutex,
};

/// How many leases are renewed at once.
const AT_ONCE: usize = 64;

const SHARDS: usize = 16;

/// How long the task sleeps, when there is nothing to renew, before it waits to be woken.
const IDLE: Duration = Duration::from_secs(1);

/// The leases that this layer holds: of each event the newest. Any older one is lost.
pub(super) struct Heartbeat {
    shards: [Mutex<Shard>; SHARDS],
    task: Arc<Task>,
}

/// A lease that was acquired later holds the event, in this process, or may elsewhere.
pub(super) struct Superseded;

type Shard = KeyMap<Arc<Beat>>;

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
    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        self.shards[shard_of(key, SHARDS)].lock()
    }

    /// The lease of this event, where this process has one that is not lost.
    pub(super) fn find(&self, key: &Key) -> Option<Arc<Beat>> {
        let beat = self.shard(key).get(key).cloned();
        beat.filter(|beat| !beat.is_lost())
    }

    /// Those that are due, the first of them last, and when the first of the others is.
    fn look(&self, now: Instant) -> (Vec<Arc<Beat>>, Option<Instant>) {
        let (mut due, mut next) = (Vec::new(), None);
        for shard in &self.shards {
            let shard = shard.lock();
            let renewing = |beat: &Beat| beat.renewing.load(Ordering::SeqCst);
            for beat in shard.values().filter(|it| it.is_live() && !renewing(it)) {
                let at = beat.times().due;
                if at <= now {
                    due.push((at, beat.clone()));
                } else {
                    next = Some(next.map_or(at, |next: Instant| next.min(at)));
                }
            }
        }
        due.sort_by_key(|(at, _)| Reverse(*at));
        (due.into_iter().map(|(_, beat)| beat).collect(), next)
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
    pub(super) fn register(&self, beat: Arc<Beat>) -> Result<bool, Superseded> {
        let heartbeat = &self.shared.heartbeat;
        let due = beat.times().due;
        let before = {
            let mut shard = heartbeat.shard(&beat.key);
            // The reply was heard after that of a later acquire: the store lost its memory in
            // between.
            let held = shard.get(&beat.key);
            if held.is_some_and(|held| held.sent > beat.sent) {
                return Err(Superseded);
            }
            shard.insert(beat.key.clone(), beat)
        };
        // The store gave the event to another token, so this one does not hold it any more.
        if let Some(before) = before.filter(|before| before.is_live()) {
            before.lose();
        }

        let task = &heartbeat.task;
        let running = {
            let mut state = task.state.lock();
            // A task that is asleep until an earlier moment finds the lease by then.
            if state.running && state.next.is_some_and(|next| next <= due) {
                return Ok(false);
            }
            std::mem::replace(&mut state.running, true)
        };
        if running {
            task.wake.notify_one();
            return Ok(true);
        }
        let beating = beat_on(Arc::downgrade(&self.shared), Running(task.clone()));
        Ok(self.tracker().spawn_daemon(beating))
    }

    /// No renewals from now on. `true`: one may still land.
    pub(super) fn deregister(&self, beat: &Beat) -> bool {
        beat.end();
        let mut shard = self.shared.heartbeat.shard(&beat.key);
        if shard
            .get(&beat.key)
            .is_some_and(|it| it.token == beat.token)
        {
            shard.remove(&beat.key);
        }
        beat.open.load(Ordering::SeqCst) > 0
    }

    /// Renews a lease that is due.
    async fn renew(&self, beat: &Beat) {
        // Its run may have ended since it was found due.
        if !beat.is_live() {
            return;
        }
        let sent = Instant::now();
        let Times {
            deadline, until, ..
        } = *beat.times();
        if sent >= deadline {
            beat.lose();
            return;
        }
        if sent >= until {
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
                let mut times = beat.times();
                (times.deadline, times.due) = (sent + lease, sent + lease / 3);
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

/// The task. It lasts until its layer is gone, or its runtime.
async fn beat_on<St: LeaseStore>(shared: Weak<Shared<St>>, running: Running) {
    let task = &*running.0;
    // As many as are being renewed. One that hangs holds up none of the others.
    let mut renewals = FuturesUnordered::new();
    let mut due = Vec::new();
    let mut woken = true;
    while let Some(shared) = shared.upgrade() {
        // Whoever registers between here and the end of the look wakes the task once more.
        task.state.lock().next = None;
        let (room, mut next) = (AT_ONCE - renewals.len(), None);
        // There may be very many, so not each time while there is no room for all that are due.
        if woken || due.len() <= room {
            let now = Instant::now();
            (due, next) = shared.heartbeat.look(now);
            // Where all leases are over again, the next ones need not wake the task.
            next = next.or(woken.then(|| now + IDLE));
        }
        for beat in due.drain(due.len().saturating_sub(room)..).rev() {
            let dedup = Dedup {
                shared: shared.clone(),
                settings: beat.settings.clone(),
            };
            let renewing = Renewing::begin(beat);
            renewals.push(async move { dedup.renew(&renewing.0).await });
        }
        drop(shared);

        // With no room left, the end of one is what there is to wait for.
        next = next.filter(|_| renewals.len() < AT_ONCE);
        task.state.lock().next = next;
        woken = sleep(next, &task.wake, &mut renewals).await;
    }
}

/// Tells, when dropped, that the task has ended.
struct Running(Arc<Task>);

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.state.lock() = TaskState::default();
    }
}
