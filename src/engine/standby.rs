//! Standing by: the promise behind a 200 that was given while another attempt was running.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::select};
use http::Request;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout_at},
};

use super::{Begun, Dedup, Lease, Settings, pace::Pace, tracker::Booked};
use crate::{DedupEvent, Key, LeaseStore, Lost, LostReason};

/// How many different requests of one event are kept: an unverified forgery must not take the only
/// place.
const MOST_REQUESTS: usize = 4;

/// The pauses after a run of its own that failed, and the shortest one while another holds the
/// lease.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The events that this process stands by for. Whoever takes one out of the map ends its standby,
/// and answers for the promise.
pub(super) struct Standbys<St: LeaseStore>(Mutex<HashMap<Key, Standby<St>>>);

struct Standby<St: LeaseStore> {
    /// Newest first.
    requests: VecDeque<Kept<St>>,
    /// How many have joined.
    count: u64,
    /// Wakes the task when the standby is ended from outside; and tells this standby from a later
    /// one for the same event.
    ended: Arc<Notify>,
    settings: Arc<Settings>,
}

struct Kept<St: LeaseStore> {
    n: u64,
    candidate: Arc<Candidate<St>>,
    _bytes: Booked,
}

/// A request that was acknowledged, and how to run it.
pub(crate) struct Candidate<St: LeaseStore> {
    /// As it is reported, should it be lost.
    pub(crate) request: Arc<Request<Bytes>>,
    /// How much it holds in memory.
    pub(crate) bytes: usize,
    /// Runs it under this lease, and ends the lease. `true`: it is completed.
    pub(crate) run: Box<dyn Fn(Lease<St>) -> Run + Send + Sync>,
}

type Run = Pin<Box<dyn Future<Output = bool> + Send>>;

impl<St: LeaseStore> Candidate<St> {
    fn is_same(&self, other: &Self) -> bool {
        let (this, other) = (&self.request, &other.request);
        this.headers() == other.headers()
            && this.body() == other.body()
            && this.method() == other.method()
            && this.uri() == other.uri()
    }
}

/// Why no promise was made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NotStoodBy {
    NoRoom,
    Draining,
}

impl<St: LeaseStore> Default for Standbys<St> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<St: LeaseStore> Standbys<St> {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Standby<St>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the standby; `None` where somebody else has.
    fn end(&self, key: &Key, ended: &Arc<Notify>) -> Option<Standby<St>> {
        let mut standbys = self.lock();
        standbys
            .get(key)
            .filter(|standby| Arc::ptr_eq(&standby.ended, ended))?;
        standbys.remove(key)
    }
}

impl<St: LeaseStore> Standby<St> {
    fn join(&mut self, candidate: Candidate<St>, bytes: Booked) {
        self.requests
            .retain(|other| !other.candidate.is_same(&candidate));
        self.count += 1;
        let candidate = Arc::new(candidate);
        self.requests.push_front(Kept {
            n: self.count,
            candidate,
            _bytes: bytes,
        });
        self.requests.truncate(MOST_REQUESTS);
    }

    /// Reports the event.
    fn lose(self, key: Key, reason: LostReason) -> Option<Lost> {
        let mut requests = self
            .requests
            .iter()
            .map(|kept| kept.candidate.request.clone());
        let request = requests.next()?;
        let others = requests.collect();
        let lost = Lost {
            key,
            reason,
            request,
            others,
        };
        self.settings.emit(&DedupEvent::Lost(lost.clone()));
        Some(lost)
    }
}

impl<St: LeaseStore> Dedup<St> {
    /// Promises to bring the event to an end: joins the standby for it, or starts one.
    ///
    /// One step under the lock, as ending one is: nobody is acknowledged on a standby that has
    /// just ended.
    pub(crate) fn stand_by(&self, key: &Key, candidate: Candidate<St>) -> Result<(), NotStoodBy> {
        let limits = &self.settings.limits;
        let bytes = self
            .tracker()
            .book(candidate.bytes, limits)
            .ok_or(NotStoodBy::NoRoom)?;
        let mut standbys = self.shared.standbys.lock();
        if self.tracker().is_draining() {
            return Err(NotStoodBy::Draining);
        }
        if let Some(standby) = standbys.get_mut(key) {
            standby.join(candidate, bytes);
            return Ok(());
        }
        if standbys.len() >= limits.standbys {
            return Err(NotStoodBy::NoRoom);
        }
        let ended = Arc::new(Notify::new());
        let mut standby = Standby {
            requests: VecDeque::new(),
            count: 0,
            ended: ended.clone(),
            settings: self.settings.clone(),
        };
        standby.join(candidate, bytes);
        standbys.insert(key.clone(), standby);
        drop(standbys);
        // Not under the lock: a runtime that is ending drops the task at once, and with it the
        // promise, which is then reported.
        let watch = Watch {
            dedup: self.clone(),
            key: key.clone(),
            ended,
        };
        match self.tracker().spawn(watch.stand()) {
            Some(_) => Ok(()),
            None => Err(NotStoodBy::NoRoom),
        }
    }

    /// Ends all standbys and reports their events.
    pub(super) fn end_standbys(&self, reason: LostReason) -> Vec<Lost> {
        let standbys: Vec<_> = self.shared.standbys.lock().drain().collect();
        let lose = |(key, standby): (Key, Standby<St>)| {
            standby.ended.notify_one();
            standby.lose(key, reason)
        };
        standbys.into_iter().filter_map(lose).collect()
    }
}

/// The task of one standby. Dropped with the promise still open, it reports the event.
struct Watch<St: LeaseStore> {
    dedup: Dedup<St>,
    key: Key,
    ended: Arc<Notify>,
}

impl<St: LeaseStore> Watch<St> {
    async fn stand(self) {
        let age = Instant::now() + self.dedup.settings.limits.standby_age;
        let in_time = {
            // Dropped in the middle of a run of its own, it drops that run and releases its lease.
            let completed = pin!(self.complete());
            let ended = pin!(self.ended.notified());
            timeout_at(age, select(completed, ended)).await.is_ok()
        };
        if in_time {
            self.dedup.shared.standbys.end(&self.key, &self.ended);
        } else {
            self.lose(LostReason::TooOld);
        }
    }

    /// Tries until the event is completed, by anybody.
    async fn complete(&self) {
        let settings = &self.dedup.settings;
        let longest = (settings.lease / 2)
            .min(settings.retention() / 3)
            .min(PAUSE.1);
        let mut held = Pace::new(PAUSE.0, longest);
        let mut failed = Pace::new(PAUSE.0, PAUSE.1);
        let mut pause = held.pause();
        let mut tried = Vec::new();
        loop {
            self.pause(pause).await;
            pause = match self.dedup.acquire(&self.key).await {
                Ok(Begun::Done(_)) => return,
                Ok(Begun::Acquired(lease)) => {
                    if self.run(lease, &mut tried).await {
                        return;
                    }
                    held.restart();
                    failed.pause()
                }
                // A store that fails says nothing about the event.
                Ok(Begun::InFlight { .. }) | Err(_) => held.pause(),
            };
        }
    }

    /// Pauses; not when draining begins, since then there is little time left.
    async fn pause(&self, pause: Duration) {
        let until = Instant::now() + pause;
        if self.dedup.tracker().is_draining() {
            sleep_until(until.min(Instant::now() + PAUSE.0)).await;
        } else {
            _ = timeout_at(until, self.dedup.tracker().draining()).await;
        }
    }

    /// Runs the newest request that has not failed yet; when all have, all get another chance.
    async fn run(&self, lease: Lease<St>, tried: &mut Vec<u64>) -> bool {
        let Some(candidate) = self.next(tried) else {
            return false;
        };
        // A panic ends the run, not the promise; its lease has been dropped, and so is released.
        AssertUnwindSafe((candidate.run)(lease))
            .catch_unwind()
            .await
            .unwrap_or(false)
    }

    fn next(&self, tried: &mut Vec<u64>) -> Option<Arc<Candidate<St>>> {
        let standbys = self.dedup.shared.standbys.lock();
        let requests = &standbys.get(&self.key)?.requests;
        if requests.iter().all(|kept| tried.contains(&kept.n)) {
            tried.clear();
        }
        let next = requests.iter().find(|kept| !tried.contains(&kept.n))?;
        tried.push(next.n);
        Some(next.candidate.clone())
    }

    fn lose(&self, reason: LostReason) {
        if let Some(standby) = self.dedup.shared.standbys.end(&self.key, &self.ended) {
            standby.lose(self.key.clone(), reason);
        }
    }
}

impl<St: LeaseStore> Drop for Watch<St> {
    /// Where the standby was ended, this finds nothing to do.
    fn drop(&mut self) {
        self.lose(LostReason::Dropped);
    }
}
