//! The guard of one run: dropped without an ending, it releases.

use std::{fmt, future::Future, sync::Arc};

use tokio::time::Instant;

use super::{Beat, Dedup, heartbeat::Superseded};
use crate::{DedupEvent, Key, LeaseStore, Record, Release, Token};

/// The right to run one event, renewed in the background until it ends, or until the run limit.
///
/// Dropped without [`complete`](Self::complete) or [`release`](Self::release), by a panic or a
/// cancelled future, say, it is released by a background task, and the event runs again when it
/// comes again. Outside a tokio runtime nothing can be sent, and the lease runs out.
#[must_use = "a lease that is dropped is released"]
pub struct Lease<St: LeaseStore> {
    dedup: Dedup<St>,
    key: Key,
    token: Token,
    attempt: u32,
    beat: Arc<Beat>,
    /// Whether the store has said that the lease is held.
    confirmed: bool,
    ending: Ending,
}

/// How far the run has come; what `Drop` has to do depends on it.
enum Ending {
    /// It is running.
    None,
    /// It is being released, and the reply is not here.
    Release(Release),
    /// It is being completed, and the reply is not here: from here on, nothing may release the
    /// event as if it had failed.
    Complete(Record),
    /// It is released.
    Released,
    /// It is completed, or was lost at the end.
    Completed,
}

impl<St: LeaseStore> fmt::Debug for Lease<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", &self.key)
            .field("token", &self.token)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

impl<St: LeaseStore> Lease<St> {
    pub(super) fn new(
        dedup: Dedup<St>,
        key: Key,
        token: Token,
        attempt: u32,
        sent: Instant,
    ) -> Self {
        let beat = Arc::new(Beat::new(key.clone(), token, dedup.settings.clone(), sent));
        Self {
            dedup,
            key,
            token,
            attempt,
            beat,
            confirmed: true,
            ending: Ending::None,
        }
    }

    /// As [`new`](Self::new), for a token that may hold the event, or not, or not yet.
    pub(super) fn unconfirmed(dedup: Dedup<St>, key: Key, token: Token) -> Self {
        let mut lease = Self::new(dedup, key, token, 1, Instant::now());
        lease.confirmed = false;
        lease
    }

    /// Has the lease renewed from now on.
    pub(super) async fn keep(&self) -> Result<(), Superseded> {
        if self.dedup.register(self.beat.clone())? {
            // The heartbeat was woken on this thread and sits in a slot that no other thread
            // takes from. A handler that now blocks the thread would hold it up, so let it go
            // first.
            tokio::task::yield_now().await;
            // The process may have stood still meanwhile.
            if self.is_lost() {
                return Err(Superseded);
            }
            self.beat.begin();
        }
        Ok(())
    }

    /// The event.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// The token that stands in the store.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.token
    }

    /// 1 for the first run, one more after each failed one.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the lease is gone: another run may be going on beside this one.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.beat.is_lost()
    }

    /// Resolves when the lease is gone.
    pub async fn lost(&self) {
        self.beat.lost().await;
    }

    /// Records the event as done. `true`: it is written. `false`: another run got hold of the
    /// event, and its outcome counts; or the store failed, and the record is written in the
    /// background, where [`DedupEvent`]s tell how that goes.
    ///
    /// Dropped before that, the future goes on in the background; unless it was never polled, which
    /// releases the lease.
    #[expect(clippy::manual_async_fn, reason = "that would hold the lease twice")]
    pub fn complete(mut self, record: Record) -> impl Future<Output = bool> + Send + use<St> {
        async move {
            self.end_beat();
            if self.beat.is_handed_over() {
                // What may still land is released.
                self.is_at(Ending::Released);
                return false;
            }
            self.is_at(Ending::Complete(record.clone()));
            let written = self
                .dedup
                .call_complete(&self.key, self.token, &record)
                .await;
            match written {
                Ok(true) if record.is_given_up() => {}
                Ok(true) => {
                    let (key, status) = (self.key.clone(), record.status());
                    self.emit(&DedupEvent::Completed { key, status });
                }
                Ok(false) => self.beat.lose(),
                // `Drop` hands it to the background.
                Err(_) => return false,
            }
            self.is_at(Ending::Completed);
            matches!(written, Ok(true))
        }
    }

    /// Gives the event up, so that it can run again. Where the store fails, that is repeated in
    /// the background; at the latest the lease runs out.
    pub async fn release(mut self, release: Release) {
        if let Release::Failed { status } = release {
            let (key, attempt) = (self.key.clone(), self.attempt);
            self.emit(&DedupEvent::Failed {
                key,
                attempt,
                status,
            });
        }
        self.end(release).await;
    }

    /// The run was over its limit and is dropped.
    pub(crate) async fn overran(mut self) {
        let key = self.key.clone();
        self.emit(&DedupEvent::RunLimit { key });
        self.end(Release::Failed { status: None }).await;
    }

    /// The run is over. Where its thread was blocked, nobody may have seen the time of the lease
    /// pass until now.
    fn end_beat(&self) {
        if self.confirmed {
            _ = self.beat.is_lost();
        }
        self.beat.end();
    }

    fn is_at(&mut self, ending: Ending) {
        self.ending = ending;
    }

    async fn end(&mut self, release: Release) {
        self.end_beat();
        self.is_at(Ending::Release(release));
        let released = self.dedup.call_release(&self.key, self.token, release);
        // Where the token did not hold it any more, there is nothing left to give up. A failed
        // call is handed to the background by `Drop`.
        if released.await.is_ok() {
            self.is_at(Ending::Released);
        }
    }

    fn emit(&self, event: &DedupEvent) {
        self.dedup.settings.emit(event);
    }

    /// Whether so many runs have failed if this one fails. Where the lease is lost, or was never
    /// confirmed, that is not for this run to say.
    pub(crate) fn is_last(&self, runs: u32) -> bool {
        self.confirmed && !self.is_lost() && self.attempt >= runs
    }

    /// Whether it is known to hold the event, and renewed.
    pub(crate) const fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    pub(crate) const fn beat(&self) -> &Arc<Beat> {
        &self.beat
    }
}

impl<St: LeaseStore> Drop for Lease<St> {
    fn drop(&mut self) {
        self.end_beat();
        // What was sent and not answered, an acquire or a renewal, can take the event again after
        // it is released now.
        let again = self.dedup.deregister(&self.beat) || !self.confirmed;
        let ending = std::mem::replace(&mut self.ending, Ending::Completed);
        if matches!(ending, Ending::None) {
            let key = self.key.clone();
            self.emit(&DedupEvent::Abandoned { key });
        }
        let (dedup, key, token) = (&self.dedup, self.key.clone(), self.token);
        match ending {
            Ending::None => dedup.release_later(key, token, Release::Abandoned, again),
            Ending::Release(release) => dedup.release_later(key, token, release, true),
            Ending::Complete(record) => dedup.complete_later(key, token, record),
            Ending::Released if again => dedup.release_later(key, token, Release::Abandoned, true),
            Ending::Released | Ending::Completed => {}
        }
        // Not before: who is woken and asks finds the completion pending, where it is.
        self.beat.tell_end();
    }
}
