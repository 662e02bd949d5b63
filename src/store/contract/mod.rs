//! What every store must do, as a test.

mod ends;
mod leases;

use std::time::Duration;

use tokio::time::Instant;

use super::{Acquire, Entry, LeaseStore, Record, Release, StoreError, Token};
use crate::Key;

/// A lease that the checks wait to run out.
const SHORT: Duration = Duration::from_millis(100);

/// When it has, whatever the store's clock is worth.
const OVER: Duration = Duration::from_millis(250);

/// A lease that outlives the checks.
const LONG: Duration = Duration::from_secs(60);

/// Checks that a store does all that the docs of [`LeaseStore`] say.
///
/// For authors of stores, in an async test. It writes under a random namespace, so the store may be
/// shared and in use; what it leaves behind runs out within a minute. It takes some two seconds, by
/// [tokio's clock](tokio::time), which may be paused for a store that lives on it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use tower_webhook_dedup::{MemoryStore, store};
///
/// store::contract(MemoryStore::new()).await;
/// # }
/// ```
///
/// # Panics
///
/// If the store breaks a rule, or answers with an error.
pub async fn contract(store: impl LeaseStore) {
    let check = Check {
        store,
        namespace: Token::random().to_string(),
    };
    check.a_lease_excludes_others().await;
    check.a_repeat_changes_nothing().await;
    check.a_lease_runs_out().await;
    check.renewing_makes_a_lease_last().await;
    check.renewing_takes_no_other_entry().await;
    check.a_completed_event_stays_done().await;
    check.completing_spares_others().await;
    check.failures_are_counted().await;
    check.releasing_spares_others().await;
    check.an_abandoned_run_does_not_count().await;
    check.entries_run_out().await;
    check.forgetting_spares_live_leases().await;
    check.keys_do_not_meet().await;
    check.a_dropped_call_breaks_nothing().await;
    check.the_shortest_and_the_longest_lease_will_do().await;
    check.one_of_many_acquires().await;
}

/// The store under test, with its errors as panics.
struct Check<St> {
    store: St,
    namespace: String,
}

impl<St: LeaseStore> Check<St> {
    fn key(&self, id: &str) -> Key {
        Key::new(&self.namespace, id)
    }

    async fn acquire(&self, key: &Key, token: Token, lease: Duration) -> Acquire {
        must(
            "acquire",
            self.store.acquire(key, token, lease, soon()).await,
        )
    }

    async fn renew(&self, key: &Key, token: Token, lease: Duration) -> bool {
        must("renew", self.store.renew(key, token, lease, soon()).await)
    }

    async fn complete(&self, key: &Key, token: Token, record: &Record) -> bool {
        let completed = self.store.complete(key, token, record, LONG, soon());
        must("complete", completed.await)
    }

    async fn release(&self, key: &Key, token: Token, release: Release) -> bool {
        let released = self.store.release(key, token, release, LONG, soon());
        must("release", released.await)
    }

    async fn inspect(&self, key: &Key) -> Option<Entry> {
        must("inspect", self.store.inspect(key, soon()).await)
    }

    async fn forget(&self, key: &Key, force: bool) -> bool {
        must("forget", self.store.forget(key, force, soon()).await)
    }

    /// Acquires, and expects to.
    async fn acquired(&self, key: &Key, token: Token, lease: Duration, attempt: u32) {
        let acquired = self.acquire(key, token, lease).await;
        assert_eq!(acquired, Acquire::Acquired { attempt }, "of {key}");
    }

    /// Expects that another token holds the lease.
    async fn in_flight(&self, key: &Key) {
        let acquired = self.acquire(key, Token::random(), LONG).await;
        assert!(
            matches!(acquired, Acquire::InFlight { .. }),
            "{key} is not in flight: {acquired:?}"
        );
    }

    /// Runs the event and fails, for the `attempt`th time.
    async fn fail(&self, key: &Key, attempt: u32) {
        let token = Token::random();
        self.acquired(key, token, LONG, attempt).await;
        let failed = Release::Failed { status: Some(500) };
        assert!(self.release(key, token, failed).await);
    }
}

/// A deadline that a store in order does not need.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

#[track_caller]
fn must<T, E: StoreError>(step: &str, result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{step}: {error}"),
    }
}
