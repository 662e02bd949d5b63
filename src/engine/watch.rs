//! The task of one standby: it tries to acquire the event until somebody has completed it.

use std::{panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use futures_util::{
    FutureExt,
    future::{Either, select},
};
use tokio::{
    sync::Notify,
    time::{timeout, timeout_at},
};

use super::{
    Begun, Candidate, Dedup, Lease,
    pace::Pace,
    standby::{End, Standby},
};
use crate::{Key, LeaseStore, LostReason};

/// The pauses after a run of its own that failed, and the shortest one while another holds the
/// lease.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The longest pause while the store fails.
const TROUBLED: Duration = Duration::from_secs(5);

/// Dropped, it ends its standby, and a promise that was not kept is reported.
pub(super) struct Watch<St: LeaseStore> {
    dedup: Dedup<St>,
    key: Key,
    ended: Arc<Notify>,
}

impl<St: LeaseStore> Watch<St> {
    pub(super) const fn new(dedup: Dedup<St>, key: Key, ended: Arc<Notify>) -> Self {
        Self { dedup, key, ended }
    }

    pub(super) async fn stand(self) {
        loop {
            // Once more, where the promise was made once more just then.
            match self.complete_in_time().await {
                Some(Some(end)) => {
                    _ = self.end(|_| true).map(|standby| standby.keep(end));
                    return;
                }
                Some(None) => return,
                None => {}
            }
            let end = self.dedup.end(&self.key).await;
            match (self.end(Standby::is_over), end) {
                (Some(standby), Some(end)) => _ = standby.keep(end),
                (Some(mut standby), None) => _ = standby.lose(LostReason::TooOld),
                (None, _) => {}
            }
        }
    }

    /// How the event ended, if that was before the standby was ended; `None` if its age is over
    /// first. A run of its own is dropped then, its lease released, or its completion on its way.
    async fn complete_in_time(&self) -> Option<Option<End>> {
        // Looked at last and dropped last: whoever ends the standby and is told so finds the run
        // gone. In place before the first step of a run.
        let mut ended = pin!(self.ended.notified());
        ended.as_mut().enable();
        let completed = pin!(self.complete());
        let mut over = select(completed, ended);
        loop {
            let Some(until) = self.with(Standby::until) else {
                return Some(None);
            };
            match timeout_at(until, &mut over).await {
                Ok(Either::Left((end, _))) => return Some(end),
                Ok(Either::Right(_)) => return Some(None),
                Err(_) if self.with(Standby::is_over) == Some(true) => return None,
                Err(_) => {}
            }
        }
    }

    /// Tries until the event is completed, or given up, by anybody; `None` once the standby is gone.
    async fn complete(&self) -> Option<End> {
        let settings = &self.dedup.settings;
        let longest = (settings.lease / 2)
            .min(settings.retention() / 3)
            .min(PAUSE.1);
        let mut held = Pace::new(PAUSE.0, longest);
        let mut failed = Pace::new(PAUSE.0, PAUSE.1);
        let mut troubled = Pace::new(PAUSE.0, longest.min(TROUBLED));
        let mut pause = held.pause();
        let mut tried = Vec::new();
        let mut hurried = false;
        loop {
            if self.pause(pause, &mut hurried).await {
                held.restart();
            }
            let next = self.with(|standby| standby.next(&mut tried)).flatten();
            let (n, candidate) = next?;
            pause = match candidate.dedup.acquire(&self.key).await {
                Ok(Begun::Done(record)) => return Some(End::of(&record)),
                Ok(Begun::Acquired(lease)) => {
                    tried.push(n);
                    let end = run(&candidate, lease).await;
                    if end.is_some() {
                        return end;
                    }
                    held.restart();
                    failed.pause()
                }
                Ok(Begun::InFlight { .. }) => {
                    troubled.restart();
                    held.pause()
                }
                // A store that fails says nothing about the event, and may be back soon.
                Err(_) => troubled.pause(),
            };
        }
    }

    /// Pauses until the run of this event in this process is over: `true`. When draining begins, not
    /// at all, and then only briefly, since there is little time left.
    async fn pause(&self, pause: Duration, hurried: &mut bool) -> bool {
        let (tracker, hurry) = (self.dedup.tracker(), *hurried);
        let begins = pin!(async {
            if hurry {
                std::future::pending::<()>().await;
            } else {
                tracker.draining().await;
            }
        });
        let over = pin!(self.dedup.run_ends(&self.key));
        let pause = if hurry { pause.min(PAUSE.0) } else { pause };
        let ended = timeout(pause, select(over, begins)).await;
        *hurried = tracker.is_draining();
        matches!(ended, Ok(Either::Left(_)))
    }

    fn with<T>(&self, look: impl FnOnce(&Standby<St>) -> T) -> Option<T> {
        let standbys = &self.dedup.shared.standbys;
        standbys.with(&self.key, &self.ended, look)
    }

    fn end(&self, only_if: impl FnOnce(&Standby<St>) -> bool) -> Option<Standby<St>> {
        let standbys = &self.dedup.shared.standbys;
        standbys.end(&self.key, &self.ended, only_if)
    }
}

impl<St: LeaseStore> Drop for Watch<St> {
    fn drop(&mut self) {
        // Where it was ended before, there is nothing to drop, but somebody to tell.
        drop(self.end(|_| true));
        self.ended.notify_one();
    }
}

/// A panic ends the run, not the promise; its lease has been dropped, and so is released.
async fn run<St: LeaseStore>(candidate: &Candidate<St>, lease: Lease<St>) -> Option<End> {
    let run = async { (candidate.run)(lease).await };
    AssertUnwindSafe(run).catch_unwind().await.ok().flatten()
}
