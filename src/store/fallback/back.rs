//! The way back: probing the primary, and telling it what it missed.

use std::{
    future::Future,
    sync::{Arc, Weak},
};

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{
    Settings, Switch,
    line::{Debt, What},
    shared::{Shared, is_outage},
};
use crate::{Acquire, Entry, Key, LeaseStore, Release, StoreError, StoreErrorKind, Token};

/// How much is carried at once.
const AT_ONCE: usize = 64;

/// Requests go on while things are carried, and there is always something new. So few are left for
/// after the switch: their events stay in the secondary until then.
const FEW: usize = 64;

/// And so often is it tried to be as few.
const MOST_PASSES: usize = 8;

/// The task. It lasts for as long as the primary is down or owed something, or until the store is
/// gone, or its runtime.
pub(super) struct Watch<P: LeaseStore, S: LeaseStore> {
    shared: Weak<Shared<P, S>>,
    settings: Settings,
    owing: Arc<Notify>,
    finished: bool,
}

/// The primary cannot be told anything now.
struct Away(StoreErrorKind);

impl<P: LeaseStore, S: LeaseStore> Watch<P, S> {
    pub(super) fn new(shared: &Arc<Shared<P, S>>, settings: Settings) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            settings,
            owing: shared.owing.clone(),
            finished: false,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            let next = Instant::now() + self.settings.probe_pause;
            let mut woken = timeout_at(next, self.owing.notified()).await.is_ok();
            if woken && self.is_down() {
                woken = false;
                tokio::time::sleep_until(next).await;
            }
            let Some(shared) = self.shared.upgrade() else {
                return;
            };
            let down = {
                let mut state = shared.lock();
                state.book.purge(Instant::now());
                state.down
            };
            match down {
                Some(since) => self.come_back(&shared, since).await,
                None => self.catch_up(&shared, !woken).await,
            }
            if self.is_finished(&shared) {
                return;
            }
        }
    }

    fn is_down(&self) -> bool {
        let shared = self.shared.upgrade();
        shared.is_some_and(|shared| shared.lock().down.is_some())
    }

    /// In the same step in which there was nothing to do.
    fn is_finished(&mut self, shared: &Shared<P, S>) -> bool {
        let mut state = shared.lock();
        self.finished = state.down.is_none() && !state.book.owes();
        if self.finished {
            state.watched = false;
        }
        self.finished
    }

    /// Tries the primary, and returns to it where that works.
    async fn come_back(&self, shared: &Arc<Shared<P, S>>, since: Instant) {
        if self.probe(&shared.primary).await.is_err() {
            return;
        }
        let mut carried = 0;
        for pass in 1..=MOST_PASSES {
            // Those that were contested in an earlier try may not be any more.
            let debts = shared.lock().book.debts(pass == 1);
            match self.carry(shared, debts).await {
                Ok(count) => carried += count,
                Err(Away(_)) => {
                    // Nor is it certain that it still knows what it was told just now.
                    shared.lock().book.owe_all();
                    return;
                }
            }
            let switch = {
                let mut state = shared.lock();
                let (fresh, contested) = state.book.owed();
                if fresh > FEW && pass < MOST_PASSES {
                    continue;
                }
                state.down = None;
                state.epoch += 1;
                if fresh > 0 {
                    self.owing.notify_one();
                }
                Switch::Back {
                    after: since.elapsed(),
                    carried,
                    contested,
                    dropped: std::mem::take(&mut state.book.dropped),
                }
            };
            self.settings.tell(&switch);
            return;
        }
    }

    /// A primary that only reads, or is full, answers whoever only reads; so this writes.
    async fn probe(&self, primary: &P) -> Result<(), Away> {
        let token = Token::random();
        let key = Key::new("fallback-probe", token.to_string());
        let lease = std::time::Duration::from_secs(1);
        self.tell(|by| primary.acquire(&key, token, lease, by))
            .await?;
        self.tell(|by| primary.release(&key, token, Release::Abandoned, lease, by))
            .await?;
        Ok(())
    }

    /// Tells the primary what came up since it is trusted again, or was contested.
    async fn catch_up(&self, shared: &Arc<Shared<P, S>>, contested: bool) {
        let (epoch, debts) = {
            let mut state = shared.lock();
            (state.epoch, state.book.debts(contested))
        };
        if let Err(Away(kind)) = self.carry(shared, debts).await
            && is_outage(kind)
        {
            shared.trip(epoch, kind, &self.settings);
        }
    }

    /// Tells the primary. How much it took over, or that it is away.
    async fn carry(&self, shared: &Arc<Shared<P, S>>, mut debts: Vec<Debt>) -> Result<usize, Away> {
        let mut carried = 0;
        // Sorted, so that what makes room goes first.
        while let Some(rank) = debts.first().map(|debt| debt.what.rank()) {
            let others = debts.partition_point(|debt| debt.what.rank() == rank);
            let others = debts.split_off(others);
            let same = std::mem::replace(&mut debts, others);
            let told = stream::iter(same).map(|debt| self.carry_one(shared, debt));
            let told = told.buffer_unordered(AT_ONCE);
            carried += told
                .try_fold(
                    0,
                    |count, taken| async move { Ok(count + usize::from(taken)) },
                )
                .await?;
        }
        Ok(carried)
    }

    async fn carry_one(&self, shared: &Arc<Shared<P, S>>, debt: Debt) -> Result<bool, Away> {
        let taken = self.told(&shared.primary, &debt).await?;
        let book = &mut shared.lock().book;
        if taken {
            book.settle(&debt);
        } else {
            book.contest(&debt);
        }
        Ok(taken)
    }

    /// Whether the primary and this process now agree.
    async fn told(&self, primary: &P, debt: &Debt) -> Result<bool, Away> {
        let Debt { key, token, .. } = debt;
        let left = debt.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(true);
        }
        match &debt.what {
            What::Forget => {
                // What lives there now may be another run than the one that the operator meant.
                let told = self.tell(|by| primary.forget(key, false, by)).await?;
                Ok(told.is_some())
            }
            What::Release { release, keep, .. } => {
                let told = self.tell(|by| primary.release(key, *token, *release, *keep, by));
                Ok(told.await?.is_some())
            }
            What::Done(record) => {
                // The primary may have the answer that had to go here.
                if debt.stripped {
                    let found = self.tell(|by| primary.inspect(key, by)).await?;
                    if let Some(Some(Entry::Done { .. })) = found {
                        return Ok(true);
                    }
                }
                let told = self.tell(|by| primary.complete(key, *token, record, left, by));
                match told.await? {
                    Some(true) => Ok(true),
                    // Somebody else completed it, or runs it.
                    Some(false) => {
                        let found = self.tell(|by| primary.inspect(key, by)).await?;
                        Ok(matches!(found, Some(Some(Entry::Done { .. }))))
                    }
                    None => Ok(false),
                }
            }
            What::Lease(lease) => {
                // What the primary still has of it runs out from its last renewal there.
                let renewed = self.tell(|by| primary.renew(key, *token, *lease, by));
                if renewed.await? == Some(true) {
                    return Ok(true);
                }
                let told = self.tell(|by| primary.acquire(key, *token, *lease, by));
                Ok(matches!(told.await?, Some(Acquire::Acquired { .. })))
            }
        }
    }

    /// One call. `None`: the primary cannot read what it has there, which says nothing about the
    /// rest.
    async fn tell<T, F>(&self, call: impl FnOnce(Instant) -> F) -> Result<Option<T>, Away>
    where
        F: Future<Output = Result<T, P::Error>>,
    {
        let by = Instant::now() + self.settings.probe_timeout;
        match timeout_at(by, call(by)).await {
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(error)) if error.kind() == StoreErrorKind::BadReply => Ok(None),
            Ok(Err(error)) => Err(Away(error.kind())),
            Err(_) => Err(Away(StoreErrorKind::TimedOut)),
        }
    }
}

impl<P: LeaseStore, S: LeaseStore> Drop for Watch<P, S> {
    /// When the runtime ends under the task, or a store panics, the next call that needs a task
    /// starts another.
    fn drop(&mut self) {
        if !self.finished
            && let Some(shared) = self.shared.upgrade()
        {
            shared.lock().watched = false;
        }
    }
}
