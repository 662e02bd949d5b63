//! Who holds a lease, and for how long.

use std::time::{Duration, SystemTime};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{Acquire, Check, LONG, OVER, SHORT, must, soon};
use crate::{BodyHash, Entry, Key, LeaseStore, Record, Release, Token};

impl<St: LeaseStore> Check<St> {
    pub(super) async fn a_lease_excludes_others(&self) {
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

    pub(super) async fn a_repeat_changes_nothing(&self) {
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

    pub(super) async fn a_lease_runs_out(&self) {
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

    pub(super) async fn renewing_makes_a_lease_last(&self) {
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

    pub(super) async fn renewing_takes_no_other_entry(&self) {
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

    pub(super) async fn keys_do_not_meet(&self) {
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

    pub(super) async fn a_dropped_call_breaks_nothing(&self) {
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

    pub(super) async fn the_shortest_and_the_longest_lease_will_do(&self) {
        const TEN_YEARS: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

        let (key, token) = (self.key("durations"), Token::random());
        let shortest = Duration::from_millis(1);
        self.acquired(&key, token, shortest, 1).await;
        sleep(OVER).await;
        assert_eq!(self.inspect(&key).await, None, "a lease of {shortest:?}");

        self.acquired(&key, token, TEN_YEARS, 1).await;
        self.in_flight(&key).await;
        assert!(self.renew(&key, token, TEN_YEARS).await);
        self.in_flight(&key).await;
        assert!(self.forget(&key, true).await);
    }

    pub(super) async fn one_of_many_acquires(&self) {
        let key = self.key("race");
        self.race(&key, 1).await;
        self.fail(&self.key("race-failed"), 1).await;
        self.race(&self.key("race-failed"), 2).await;
    }

    /// Many callers at once, of whom one may get it.
    async fn race(&self, key: &Key, attempt: u32) {
        let mut callers = JoinSet::new();
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
