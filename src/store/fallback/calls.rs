//! What each call does with the two stores.

use std::{
    future::{Future, ready},
    time::Duration,
};

use futures_util::{FutureExt, future::Either};
use tokio::time::Instant;

use super::{
    Fallback,
    book::Book,
    line::{Known, What},
    shared::{Error, Shared, Turn},
};
use crate::{Acquire, Entry, Key, LeaseStore, Record, Release, Token, store::FallbackError};

impl<P: LeaseStore, S: LeaseStore> LeaseStore for Fallback<P, S> {
    type Error = Error<P, S>;

    async fn acquire(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Result<Acquire, Self::Error> {
        let (here, sent) = match self
            .turn(key, by, |primary, by| {
                primary.acquire(key, token, lease, by)
            })
            .await?
        {
            Turn::Primary(Acquire::Acquired { attempt }, epoch) => {
                return Ok(self.confirm(key, token, lease, attempt, epoch, by).await);
            }
            Turn::Primary(other, _) => return Ok(other),
            Turn::Secondary { here, sent } => (here, sent),
        };
        let known = self.shared.lock().book.answer(key, token);
        let acquired = match known {
            Some(known) => Ok(known),
            None => self.shared.secondary.acquire(key, token, lease, by).await,
        };
        match &acquired {
            Ok(Acquire::Acquired { .. }) => self.owe(|book| {
                book.acquired(key, token, lease, Known::by_secondary(sent));
            }),
            // It may have the event in the primary, and nobody runs it.
            Ok(_) if sent => self.owe(|book| {
                book.owe_release(key, token, Release::Abandoned, lease, true);
            }),
            Ok(_) | Err(_) => {}
        }
        drop(here);
        acquired.map_err(|error| FallbackError::secondary(error, sent))
    }

    async fn renew(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Result<bool, Self::Error> {
        let (_here, sent) = match self
            .turn(key, by, |primary, by| primary.renew(key, token, lease, by))
            .await?
        {
            Turn::Primary(true, epoch) => {
                let shared = &self.shared;
                shared.note(key, epoch, &self.settings, |book, owed| {
                    book.renewed(key, token, lease, Known::by_primary(owed));
                });
                let (shared, key) = (shared.clone(), key.clone());
                self.shared.mirror(by, async move {
                    let renewed = shared.secondary.renew(&key, token, lease, by).await;
                    if let Ok(true) = renewed {
                        lease_mirrored(&shared, &key, token, lease, by).await;
                    }
                });
                return Ok(true);
            }
            Turn::Primary(false, _) => {
                self.lost(key, token, lease, by);
                return Ok(false);
            }
            Turn::Secondary { here, sent } => (here, sent),
        };
        let renewed = self.shared.secondary.renew(key, token, lease, by).await;
        match renewed {
            Ok(true) => self.owe(|book| {
                book.renewed(key, token, lease, Known::by_secondary(sent));
            }),
            Ok(false) => self.owe(|book| {
                book.owe_release(key, token, Release::Abandoned, lease, sent);
            }),
            Err(_) => {}
        }
        renewed.map_err(|error| FallbackError::secondary(error, sent))
    }

    async fn complete(
        &self,
        key: &Key,
        token: Token,
        record: &Record,
        retention: Duration,
        by: Instant,
    ) -> Result<bool, Self::Error> {
        let most = self.settings.completions;
        let (_here, sent) = match self
            .turn(key, by, |primary, by| {
                primary.complete(key, token, record, retention, by)
            })
            .await?
        {
            Turn::Primary(true, epoch) => {
                self.completed(key, token, record, retention, epoch, by);
                return Ok(true);
            }
            Turn::Primary(false, _) => {
                self.lost(key, token, retention, by);
                return Ok(false);
            }
            Turn::Secondary { here, sent } => (here, sent),
        };
        let secondary = &self.shared.secondary;
        let completed = secondary.complete(key, token, record, retention, by).await;
        match completed {
            Ok(true) => self.owe(|book| {
                let known = Known::by_secondary(sent);
                book.completed(key, token, record.clone(), retention, known, most);
            }),
            Ok(false) => self.owe(|book| {
                book.owe_release(key, token, Release::Abandoned, retention, false);
            }),
            Err(_) => {}
        }
        completed.map_err(|error| FallbackError::secondary(error, sent))
    }

    async fn release(
        &self,
        key: &Key,
        token: Token,
        release: Release,
        keep: Duration,
        by: Instant,
    ) -> Result<bool, Self::Error> {
        let (_here, sent) = match self
            .turn(key, by, |primary, by| {
                primary.release(key, token, release, keep, by)
            })
            .await?
        {
            Turn::Primary(released, _) => {
                self.shared.lock().book.ended(token);
                let (secondary, key) = (self.shared.secondary.clone(), key.clone());
                self.shared.mirror(by, async move {
                    _ = secondary.release(&key, token, release, keep, by).await;
                });
                return Ok(released);
            }
            Turn::Secondary { here, sent } => (here, sent),
        };
        let secondary = &self.shared.secondary;
        let released = secondary.release(key, token, release, keep, by).await;
        if released.is_ok() {
            self.owe(|book| {
                book.owe_release(key, token, release, keep, sent);
            });
        }
        released.map_err(|error| FallbackError::secondary(error, sent))
    }

    async fn inspect(&self, key: &Key, by: Instant) -> Result<Option<Entry>, Self::Error> {
        let _here = match self
            .turn(key, by, |primary, by| primary.inspect(key, by))
            .await?
        {
            Turn::Primary(entry, _) => return Ok(entry),
            Turn::Secondary { here, .. } => here,
        };
        if let Some((token, line)) = self.shared.lock().book.missing(key)
            && let What::Done(record) = &line.what
        {
            let record = record.clone();
            return Ok(Some(Entry::Done { token, record }));
        }
        let found = self.shared.secondary.inspect(key, by).await;
        found.map_err(|error| FallbackError::secondary(error, false))
    }

    async fn forget(&self, key: &Key, force: bool, by: Instant) -> Result<bool, Self::Error> {
        let (_here, sent) = match self
            .turn(key, by, |primary, by| primary.forget(key, force, by))
            .await?
        {
            Turn::Primary(forgotten, _) => {
                self.shared.lock().book.forget(key, force);
                let (secondary, key) = (self.shared.secondary.clone(), key.clone());
                self.shared.mirror(by, async move {
                    _ = secondary.forget(&key, force, by).await;
                });
                return Ok(forgotten);
            }
            Turn::Secondary { here, sent } => (here, sent),
        };
        let forgotten = self.shared.secondary.forget(key, force, by).await;
        if forgotten.is_ok() {
            self.owe(|book| book.owe_forget(key, force));
        }
        forgotten.map_err(|error| FallbackError::secondary(error, sent))
    }
}

impl<P: LeaseStore, S: LeaseStore> Fallback<P, S> {
    async fn turn<'a, T, F>(
        &'a self,
        key: &Key,
        by: Instant,
        call: impl FnOnce(&'a P, Instant) -> F,
    ) -> Result<Turn<'a, T, P, S>, Error<P, S>>
    where
        F: Future<Output = Result<T, P::Error>>,
    {
        self.shared.turn(key, by, &self.settings, call).await
    }

    /// Writes into the book what the primary does not know.
    fn owe(&self, write: impl FnOnce(&mut Book)) {
        self.shared.owe(&self.settings, write);
    }

    /// The primary has given the event to the token. Where it was switched off meanwhile, the
    /// secondary has the last word: it may have given the event to another.
    async fn confirm(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        attempt: u32,
        epoch: u64,
        by: Instant,
    ) -> Acquire {
        let shared = &self.shared;
        let (secondary, copy) = (shared.secondary.clone(), key.clone());
        let mut mirror = Box::pin(async move { secondary.acquire(&copy, token, lease, by).await });
        let at_once = (&mut mirror).now_or_never();
        let is_mirrored = matches!(at_once, Some(Ok(Acquire::Acquired { .. })));
        let mirrored = match at_once {
            Some(mirrored) => Either::Left(ready(mirrored)),
            None => Either::Right(mirror),
        };
        // After the secondary knows of it: whoever switches from here on finds it there.
        let moved = {
            let mut state = shared.lock();
            let moved = state.moved(epoch, key);
            if moved {
                state.book.enter(key);
            } else {
                let known = Known {
                    mirrored: is_mirrored,
                    ..Known::by_primary(false)
                };
                state.book.acquired(key, token, lease, known);
            }
            moved
        };
        let acquired = Acquire::Acquired { attempt };
        if !moved {
            if is_mirrored {
                return acquired;
            }
            let (shared, key) = (shared.clone(), key.clone());
            self.shared.mirror(by, async move {
                let mirrored = match mirrored.await {
                    // What the secondary remembers is over: the primary knows.
                    Ok(Acquire::InFlight { .. } | Acquire::Done(_)) => {
                        overrule(&shared, &key, token, true, epoch, by).await;
                        shared.secondary.acquire(&key, token, lease, by).await
                    }
                    mirrored => mirrored,
                };
                if let Ok(Acquire::Acquired { .. }) = mirrored {
                    lease_mirrored(&shared, &key, token, lease, by).await;
                }
            });
            return acquired;
        }
        let _here = shared.here(key);
        match mirrored.await {
            Ok(other @ (Acquire::InFlight { .. } | Acquire::Done(_))) => {
                self.owe(|book| {
                    book.owe_release(key, token, Release::Abandoned, lease, false);
                });
                other
            }
            Ok(Acquire::Acquired { .. }) | Err(_) => {
                self.owe(|book| book.acquired(key, token, lease, Known::by_secondary(true)));
                acquired
            }
        }
    }

    /// The primary has recorded the event as done.
    fn completed(
        &self,
        key: &Key,
        token: Token,
        record: &Record,
        retention: Duration,
        epoch: u64,
        by: Instant,
    ) {
        let most = self.settings.completions;
        self.shared.note(key, epoch, &self.settings, |book, owed| {
            let known = Known::by_primary(owed);
            book.completed(key, token, record.clone(), retention, known, most);
        });
        let (shared, key, record) = (self.shared.clone(), key.clone(), record.clone());
        self.shared.mirror(by, async move {
            let complete = || {
                let secondary = &shared.secondary;
                secondary.complete(&key, token, &record, retention, by)
            };
            let mut completed = complete().await;
            if let Ok(false) = completed {
                overrule(&shared, &key, token, false, epoch, by).await;
                completed = complete().await;
            }
            if let Ok(true) = completed {
                shared.lock().book.done_mirrored(&key, token);
            }
        });
    }

    /// Another token has the event in the primary.
    fn lost(&self, key: &Key, token: Token, keep: Duration, by: Instant) {
        self.shared.lock().book.ended(token);
        let (secondary, key) = (self.shared.secondary.clone(), key.clone());
        self.shared.mirror(by, async move {
            _ = secondary
                .release(&key, token, Release::Abandoned, keep, by)
                .await;
        });
    }
}

/// Removes what the secondary remembers of an event about which the primary has decided otherwise.
async fn overrule<P: LeaseStore, S: LeaseStore>(
    shared: &Shared<P, S>,
    key: &Key,
    token: Token,
    lease: bool,
    epoch: u64,
    by: Instant,
) {
    let Some(_overruled) = shared.overrule(key, token, lease, epoch) else {
        return;
    };
    _ = shared.secondary.forget(key, true, by).await;
}

/// The secondary was slow to learn of a lease, which may have ended meanwhile.
async fn lease_mirrored<P: LeaseStore, S: LeaseStore>(
    shared: &Shared<P, S>,
    key: &Key,
    token: Token,
    lease: Duration,
    by: Instant,
) {
    let held = shared.lock().book.lease_mirrored(key, token);
    if !held {
        let released = shared
            .secondary
            .release(key, token, Release::Abandoned, lease, by);
        _ = released.await;
    }
}
