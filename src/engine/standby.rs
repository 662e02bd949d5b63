//! Standing by: the promise behind a 200 that was given while another attempt was running.

use std::{collections::VecDeque, future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Request;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use super::{Dedup, Lease, tracker::Booked, watch::Watch};
use crate::{
    BodyHash, DedupEvent, Entry, Key, LeaseStore, Lost, LostReason, Record, identity::KeyMap,
    mutex::Mutex,
};

/// How many different requests of one event are kept: an unverified forgery must not take the only
/// place.
const MOST_REQUESTS: usize = 4;

/// How many events are looked at at once when a drain ends.
const AT_ONCE: usize = 64;

/// The events that this process stands by for. Whoever takes one out of the map answers for the
/// promise.
pub(super) struct Standbys<St: LeaseStore>(Mutex<KeyMap<Standby<St>>>);

/// The promise to bring one event to an end. Dropped without having been kept, it is reported.
pub(super) struct Standby<St: LeaseStore> {
    key: Key,
    /// Newest first.
    requests: VecDeque<Kept<St>>,
    /// How many have joined.
    count: u64,
    /// The age of the newest promise is over.
    until: Instant,
    /// Wakes the task when the standby is ended from outside; and tells this standby from a later
    /// one for the same event.
    ended: Arc<Notify>,
    open: bool,
}

struct Kept<St: LeaseStore> {
    n: u64,
    candidate: Arc<Candidate<St>>,
    _bytes: Booked,
}

/// A request that was acknowledged, and how to run it.
pub(crate) struct Candidate<St: LeaseStore> {
    /// Under whose settings.
    pub(crate) dedup: Dedup<St>,
    /// As it is reported, should it be lost.
    pub(crate) request: Arc<Request<Bytes>>,
    /// Runs it under this lease, and ends the lease.
    pub(crate) run: Box<dyn Fn(Lease<St>) -> Run + Send + Sync>,
}

/// `None`: the event has to run again.
type Run = Pin<Box<dyn Future<Output = Option<End>> + Send>>;

/// How an event came to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Completed,
    /// It failed too often, the last time with this body, which was reported.
    GivenUp(Option<BodyHash>),
}

impl End {
    pub(super) fn of(record: &Record) -> Self {
        if record.is_given_up() {
            Self::GivenUp(record.body_hash())
        } else {
            Self::Completed
        }
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
    /// Looks at the standby that this tells; `None` where it was ended.
    pub(super) fn with<T>(
        &self,
        key: &Key,
        ended: &Arc<Notify>,
        look: impl FnOnce(&Standby<St>) -> T,
    ) -> Option<T> {
        let standbys = self.0.lock();
        let standby = standbys.get(key)?;
        Arc::ptr_eq(&standby.ended, ended).then(|| look(standby))
    }

    /// Ends the standby that this tells, if it is to be; `None` where it is not, or somebody else
    /// has ended it.
    pub(super) fn end(
        &self,
        key: &Key,
        ended: &Arc<Notify>,
        only_if: impl FnOnce(&Standby<St>) -> bool,
    ) -> Option<Standby<St>> {
        let mut standbys = self.0.lock();
        let standby = standbys.get(key)?;
        let is_this = Arc::ptr_eq(&standby.ended, ended) && only_if(standby);
        is_this.then(|| standbys.remove(key))?
    }
}

impl<St: LeaseStore> Standby<St> {
    fn new(key: Key) -> Self {
        Self {
            key,
            requests: VecDeque::new(),
            count: 0,
            until: Instant::now(),
            ended: Arc::default(),
            open: true,
        }
    }

    /// Adds a request. The one that has to go for it is returned, to be dropped elsewhere: it
    /// holds what is the user's.
    #[must_use]
    fn join(&mut self, candidate: Candidate<St>, bytes: Booked) -> Option<Kept<St>> {
        self.last(candidate.dedup.settings.limits.standby_age);
        self.count += 1;
        self.requests.push_front(Kept {
            n: self.count,
            candidate: Arc::new(candidate),
            _bytes: bytes,
        });
        (self.requests.len() > MOST_REQUESTS)
            .then(|| self.requests.pop_back())
            .flatten()
    }

    /// The promise is made once more.
    fn last(&mut self, age: Duration) {
        self.until = self.until.max(Instant::now() + age);
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    pub(super) const fn until(&self) -> Instant {
        self.until
    }

    /// The newest request that was not tried; when all were, all get another chance.
    pub(super) fn next(&self, tried: &mut Vec<u64>) -> Option<(u64, Arc<Candidate<St>>)> {
        if self.requests.iter().all(|kept| tried.contains(&kept.n)) {
            tried.clear();
        }
        let next = self.requests.iter().find(|kept| !tried.contains(&kept.n))?;
        Some((next.n, next.candidate.clone()))
    }

    /// The event was brought to its end. What else was acknowledged than what was given up is
    /// reported, too: one of both may be a forgery.
    pub(super) fn keep(mut self, end: End) -> Option<Lost> {
        self.open = false;
        let End::GivenUp(reported) = end else {
            return None;
        };
        self.requests.retain(|kept| {
            let body = kept.candidate.request.body();
            reported != Some(BodyHash::of(body))
        });
        self.lose(LostReason::GivenUp)
    }

    /// The promise cannot be kept. It is reported to all who made it.
    pub(super) fn lose(&mut self, reason: LostReason) -> Option<Lost> {
        self.open = false;
        let mut requests = self.requests.iter().map(|kept| &kept.candidate.request);
        let lost = Lost {
            key: self.key.clone(),
            reason,
            request: requests.next()?.clone(),
            others: requests.cloned().collect(),
        };
        let mut told = Vec::new();
        for kept in &self.requests {
            let settings = &kept.candidate.dedup.settings;
            if !told.iter().any(|it| Arc::ptr_eq(it, settings)) {
                settings.emit(&DedupEvent::Lost(lost.clone()));
                told.push(settings.clone());
            }
        }
        Some(lost)
    }
}

impl<St: LeaseStore> Drop for Standby<St> {
    fn drop(&mut self) {
        if self.open {
            self.lose(LostReason::Dropped);
        }
    }
}

impl<St: LeaseStore> Dedup<St> {
    /// Room for a request to stand by with.
    pub(crate) fn room(&self, bytes: usize) -> Result<Booked, NotStoodBy> {
        if self.tracker().is_draining() {
            return Err(NotStoodBy::Draining);
        }
        let room = self.tracker().book(bytes, &self.settings.limits);
        room.ok_or(NotStoodBy::NoRoom)
    }

    /// Makes the promise once more, where it was made for the same request already. A storm of
    /// one request costs no copies.
    pub(crate) fn stand_by_again(&self, key: &Key, same: impl Fn(&Request<Bytes>) -> bool) -> bool {
        let mut standbys = self.shared.standbys.0.lock();
        let Some(standby) = standbys.get_mut(key) else {
            return false;
        };
        let mut requests = standby.requests.iter();
        let known = requests.any(|kept| same(&kept.candidate.request));
        let stands_by = known && !self.tracker().is_draining();
        if stands_by {
            standby.last(self.settings.limits.standby_age);
        }
        stands_by
    }

    /// Promises to bring the event to an end: joins the standby for it, or starts one.
    ///
    /// One step under the lock, as ending one is: nobody is acknowledged on a standby that has
    /// just ended.
    pub(crate) fn stand_by(
        &self,
        key: &Key,
        candidate: Candidate<St>,
        room: Booked,
    ) -> Result<(), NotStoodBy> {
        if !self.tracker().can_spawn() {
            return Err(NotStoodBy::NoRoom);
        }
        let (displaced, started);
        {
            let mut standbys = self.shared.standbys.0.lock();
            if self.tracker().is_draining() {
                return Err(NotStoodBy::Draining);
            }
            if let Some(standby) = standbys.get_mut(key) {
                (displaced, started) = (standby.join(candidate, room), None);
            } else if standbys.len() >= self.settings.limits.standbys {
                return Err(NotStoodBy::NoRoom);
            } else {
                let mut standby = Standby::new(key.clone());
                (displaced, started) = (standby.join(candidate, room), Some(standby.ended.clone()));
                standbys.insert(key.clone(), standby);
            }
        }
        drop(displaced);
        if let Some(ended) = started {
            // Not under the lock: a runtime that is ending drops the task at once, and with it
            // the promise, which is then reported.
            let watch = Watch::new(self.clone(), key.clone(), ended);
            self.tracker().spawn(watch.stand());
        }
        Ok(())
    }

    /// One last look, before an event is reported as lost: it may have been completed since, or
    /// its completion be on its way.
    pub(super) async fn end(&self, key: &Key) -> Option<End> {
        match self.call_inspect(key).await {
            Ok(Some(Entry::Done { record, .. })) => Some(End::of(&record)),
            _ => self.pending_completion(key).as_ref().map(End::of),
        }
    }

    /// Ends all standbys, and reports those whose events are not done after all.
    pub(super) async fn end_standbys(&self, reason: LostReason) -> Vec<Lost> {
        let standbys: Vec<_> = self.shared.standbys.0.lock().drain().collect();
        let lost = stream::iter(standbys).map(|(key, mut standby)| async move {
            standby.ended.notify_one();
            // Its task answers when it, and a run of its own, are gone.
            let gone = standby.ended.notified();
            _ = timeout(self.settings.store_timeout(), gone).await;
            match self.end(&key).await {
                Some(end) => standby.keep(end),
                None => standby.lose(reason),
            }
        });
        let lost = lost.buffer_unordered(AT_ONCE);
        lost.filter_map(|lost| async { lost }).collect().await
    }
}
