//! What every store must do, as a test.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep, timeout};

use super::{Acquire, Entry, LeaseStore, Record, Release, StoreError, Token};
use crate::{BodyHash, Key};

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
    check.any_duration_will_do().await;
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

    async fn a_lease_excludes_others(&self) {
        let (key, holder) = (self.key("excludes"), Token::random());
        assert_eq!(self.inspect(&key).await, None, "nothing is kept at first");
        let before = SystemTime::now();
        self.acquired(&key, holder, LONG, 1).await;
        let after = SystemTime::now();

        let Acquire::InFlight { since, at_most } = self.acquire(&key, Token::random(), SHORT).await
        else {
            panic!("a second token got in");
        };
        assert_eq!(at_most, LONG, "of the lease of the holder");
        let millisecond = Duration::from_millis(1);
        assert!(
            before - millisecond <= since && since <= after,
            "since when it runs: {since:?}"
        );
        let entry = self.inspect(&key).await;
        let Some(Entry::Running {
            token,
            since: inspected,
            lease,
            attempt,
        }) = entry
        else {
            panic!("not running: {entry:?}");
        };
        assert_eq!(
            (token, inspected, lease, attempt),
            (holder, since, LONG, 1),
            "the entry belongs to the holder"
        );
    }

    async fn a_repeat_changes_nothing(&self) {
        let (key, token) = (self.key("repeat"), Token::random());
        self.acquired(&key, token, LONG, 1).await;
        self.acquired(&key, token, LONG, 1).await;
        let record = Record::new(Some(200), None);
        assert!(self.complete(&key, token, &record).await);
        assert!(self.complete(&key, token, &record).await, "a repeat");
        let done = self.acquire(&key, token, LONG).await;
        assert_eq!(
            done,
            Acquire::Done(record),
            "the token counts while running only"
        );

        let (key, token) = (self.key("repeat-release"), Token::random());
        self.acquired(&key, token, LONG, 1).await;
        let failed = Release::Failed { status: Some(500) };
        assert!(self.release(&key, token, failed).await);
        assert!(!self.release(&key, token, failed).await, "a repeat");
        self.acquired(&key, token, LONG, 2).await;
    }

    async fn a_lease_runs_out(&self) {
        let (key, first, second) = (self.key("runs-out"), Token::random(), Token::random());
        self.acquired(&key, first, SHORT, 1).await;
        sleep(OVER).await;
        assert_eq!(self.inspect(&key).await, None, "its time is over");
        self.acquired(&key, second, LONG, 1).await;
        // The first owner comes back, and finds another in its place.
        assert!(!self.renew(&key, first, LONG).await);
        let late = Record::new(Some(200), None);
        assert!(!self.complete(&key, first, &late).await);
        assert!(!self.release(&key, first, Release::Abandoned).await);
        self.acquired(&key, second, LONG, 1).await;
    }

    async fn renewing_makes_a_lease_last(&self) {
        let (key, token) = (self.key("renew"), Token::random());
        self.acquired(&key, token, SHORT, 1).await;
        assert!(self.renew(&key, token, LONG).await);
        sleep(OVER).await;
        self.in_flight(&key).await;
        // It can get shorter, too.
        assert!(self.renew(&key, token, SHORT).await);
        sleep(OVER).await;
        self.acquired(&key, Token::random(), LONG, 1).await;

        let (key, token) = (self.key("renew-nothing"), Token::random());
        assert!(
            self.renew(&key, token, LONG).await,
            "of a store that forgot"
        );
        self.in_flight(&key).await;
        self.acquired(&key, token, LONG, 1).await;

        let (key, token) = (self.key("renew-attempt"), Token::random());
        self.fail(&key, 1).await;
        self.acquired(&key, token, LONG, 2).await;
        assert!(self.renew(&key, token, LONG).await);
        self.acquired(&key, token, LONG, 2).await;
    }

    async fn renewing_takes_no_other_entry(&self) {
        let (key, token) = (self.key("renew-done"), Token::random());
        let record = Record::new(None, None);
        self.acquired(&key, token, LONG, 1).await;
        assert!(self.complete(&key, token, &record).await);
        assert!(!self.renew(&key, token, LONG).await, "it has ended");
        let done = self.acquire(&key, Token::random(), LONG).await;
        assert_eq!(done, Acquire::Done(record));

        let (key, token) = (self.key("renew-failed"), Token::random());
        self.acquired(&key, token, LONG, 1).await;
        let failed = Release::Failed { status: None };
        assert!(self.release(&key, token, failed).await);
        assert!(!self.renew(&key, token, LONG).await, "it has ended");
        self.acquired(&key, Token::random(), LONG, 2).await;
    }

    async fn a_completed_event_stays_done(&self) {
        let records = [
            Record::new(Some(204), Some(BodyHash::of(b"body"))),
            Record::new(None, None),
        ];
        for (n, record) in records.into_iter().enumerate() {
            let (key, token) = (self.key(&format!("done-{n}")), Token::random());
            self.acquired(&key, token, LONG, 1).await;
            assert!(self.complete(&key, token, &record).await);
            let done = self.acquire(&key, Token::random(), LONG).await;
            assert_eq!(done, Acquire::Done(record.clone()));
            assert!(!self.release(&key, token, Release::Abandoned).await);
            let entry = self.inspect(&key).await;
            assert_eq!(entry, Some(Entry::Done { token, record }));
        }
    }

    async fn completing_spares_others(&self) {
        let record = Record::new(Some(200), None);

        let (key, holder) = (self.key("complete-running"), Token::random());
        self.acquired(&key, holder, LONG, 1).await;
        assert!(!self.complete(&key, Token::random(), &record).await);
        self.acquired(&key, holder, LONG, 1).await;

        let key = self.key("complete-done");
        assert!(
            self.complete(&key, holder, &record).await,
            "nothing is there"
        );
        let other = Record::new(Some(201), None);
        assert!(!self.complete(&key, Token::random(), &other).await);
        let done = self.acquire(&key, Token::random(), LONG).await;
        assert_eq!(done, Acquire::Done(record.clone()));

        let key = self.key("complete-failed");
        self.fail(&key, 1).await;
        let late = Token::random();
        assert!(
            self.complete(&key, late, &record).await,
            "a late completion"
        );
        let done = self.acquire(&key, Token::random(), LONG).await;
        assert_eq!(done, Acquire::Done(record));
    }

    /// Runs the event and fails, for the `attempt`th time.
    async fn fail(&self, key: &Key, attempt: u32) {
        let token = Token::random();
        self.acquired(key, token, LONG, attempt).await;
        let failed = Release::Failed { status: Some(500) };
        assert!(self.release(key, token, failed).await);
    }

    async fn failures_are_counted(&self) {
        let key = self.key("failures");
        let status = [Some(500), None, Some(422)];
        for (status, attempt) in status.into_iter().zip(1..) {
            let token = Token::random();
            self.acquired(&key, token, LONG, attempt).await;
            let failed = Release::Failed { status };
            assert!(self.release(&key, token, failed).await);
            let entry = self.inspect(&key).await;
            let Some(Entry::Failed {
                token: failed,
                at,
                attempts,
                status: last,
            }) = entry
            else {
                panic!("not failed: {entry:?}");
            };
            assert_eq!((failed, attempts, last), (token, attempt, status));
            let age = SystemTime::now().duration_since(at);
            assert!(
                age.is_ok_and(|age| age < LONG),
                "it failed just now: {at:?}"
            );
        }
        // The run after failures holds its lease like the first.
        self.acquired(&key, Token::random(), LONG, 4).await;
        self.in_flight(&key).await;
    }

    async fn releasing_spares_others(&self) {
        let releases = [
            Release::Abandoned,
            Release::Failed { status: None },
            Release::Failed { status: Some(500) },
        ];
        for release in releases {
            let (key, holder) = (self.key("release"), Token::random());
            assert!(!self.release(&key, holder, release).await, "nothing there");
            assert_eq!(self.inspect(&key).await, None);
            self.acquired(&key, holder, LONG, 1).await;
            assert!(!self.release(&key, Token::random(), release).await);
            self.in_flight(&key).await;
            assert!(self.forget(&key, true).await);
        }
    }

    async fn an_abandoned_run_does_not_count(&self) {
        let (key, token) = (self.key("abandoned"), Token::random());
        self.acquired(&key, token, LONG, 1).await;
        assert!(self.release(&key, token, Release::Abandoned).await);
        assert_eq!(self.inspect(&key).await, None);

        // Failures before it still count.
        self.fail(&key, 1).await;
        self.acquired(&key, token, LONG, 2).await;
        assert!(self.release(&key, token, Release::Abandoned).await);
        let entry = self.inspect(&key).await;
        assert!(
            matches!(entry, Some(Entry::Failed { attempts: 1, .. })),
            "{entry:?}"
        );
        self.acquired(&key, token, LONG, 2).await;
    }

    async fn entries_run_out(&self) {
        let (done, failed, token) = (
            self.key("old-done"),
            self.key("old-failed"),
            Token::random(),
        );
        let (record, failure) = (Record::new(None, None), Release::Failed { status: None });
        self.acquired(&done, token, LONG, 1).await;
        let completed = self.store.complete(&done, token, &record, SHORT, soon());
        assert!(must("complete", completed.await));
        self.acquired(&failed, token, LONG, 1).await;
        let released = self.store.release(&failed, token, failure, SHORT, soon());
        assert!(must("release", released.await));
        sleep(OVER).await;
        for key in [done, failed] {
            assert_eq!(self.inspect(&key).await, None, "the time of {key} is over");
            self.acquired(&key, Token::random(), LONG, 1).await;
        }
    }

    async fn forgetting_spares_live_leases(&self) {
        let (key, token) = (self.key("forget"), Token::random());
        for force in [false, true] {
            assert!(!self.forget(&key, force).await, "nothing was removed");
        }
        self.acquired(&key, token, LONG, 1).await;
        assert!(!self.forget(&key, false).await, "a live lease");
        self.in_flight(&key).await;
        assert!(self.forget(&key, true).await);
        assert_eq!(self.inspect(&key).await, None);

        let record = Record::new(None, None);
        assert!(self.complete(&key, token, &record).await);
        assert!(self.forget(&key, false).await, "a completed event");
        self.fail(&key, 1).await;
        assert!(self.forget(&key, false).await, "a failed one");
        self.acquired(&key, token, LONG, 1).await;
    }

    async fn keys_do_not_meet(&self) {
        let hash = BodyHash::of(b"body");
        let keys = [
            self.key("a"),
            self.key("A"),
            self.key("a:*"),
            self.key("{a}"),
            self.key("a*?[b]\\ \0\r\n\u{1F600}"),
            self.key(&"a".repeat(5000)),
            Key::with_hash(&self.namespace, "a", hash),
            Key::with_hash(&self.namespace, "a", BodyHash::of(b"other")),
        ];
        for key in &keys {
            self.acquired(key, Token::random(), LONG, 1).await;
        }
        for key in &keys {
            self.in_flight(key).await;
            assert!(self.forget(key, true).await);
            assert_eq!(self.inspect(key).await, None);
        }
    }

    async fn a_dropped_call_breaks_nothing(&self) {
        let (key, token) = (self.key("dropped"), Token::random());
        // Polled once. It may have taken the lease, or may not.
        let call = self.store.acquire(&key, token, LONG, soon());
        drop(timeout(Duration::ZERO, call).await);
        self.acquired(&key, token, LONG, 1).await;
        let record = Record::new(Some(200), None);
        let call = self.store.complete(&key, token, &record, LONG, soon());
        drop(timeout(Duration::ZERO, call).await);
        assert!(self.complete(&key, token, &record).await);
        // A deadline that is over already may be an error, or not; it must not hang or panic.
        let late = self.store.inspect(&key, Instant::now()).await;
        assert!(late.is_err() || late.is_ok_and(|entry| entry.is_some()));
    }

    async fn any_duration_will_do(&self) {
        let (key, token) = (self.key("durations"), Token::random());
        for lease in [Duration::ZERO, Duration::from_nanos(1)] {
            assert!(
                matches!(
                    self.acquire(&key, token, lease).await,
                    Acquire::Acquired { attempt: 1 }
                ),
                "a lease of {lease:?}"
            );
            sleep(OVER).await;
            assert_eq!(self.inspect(&key).await, None, "a lease of {lease:?}");
        }
        self.acquired(&key, token, Duration::MAX, 1).await;
        self.in_flight(&key).await;
        assert!(self.renew(&key, token, Duration::MAX).await);
        self.in_flight(&key).await;
        assert!(self.forget(&key, true).await);
    }

    async fn one_of_many_acquires(&self) {
        let key = self.key("race");
        self.race(&key, 1).await;
        self.fail(&self.key("race-failed"), 1).await;
        self.race(&self.key("race-failed"), 2).await;
    }

    /// Many callers at once, of whom one may get it.
    async fn race(&self, key: &Key, attempt: u32) {
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..32 {
            let (store, key) = (self.store.clone(), key.clone());
            callers.spawn(async move {
                let acquired = store.acquire(&key, Token::random(), LONG, soon()).await;
                must("acquire", acquired)
            });
        }
        let answers = callers.join_all().await;
        let (won, lost): (Vec<_>, Vec<_>) = answers
            .into_iter()
            .partition(|answer| matches!(answer, Acquire::Acquired { .. }));
        assert_eq!(won, [Acquire::Acquired { attempt }], "one of them");
        assert!(
            lost.iter().all(|it| matches!(it, Acquire::InFlight { .. })),
            "{lost:?}"
        );
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
