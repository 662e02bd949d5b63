//! How a run ends, and what is kept of it.

use std::time::SystemTime;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::sleep;

use super::{Acquire, Check, LONG, OVER, SHORT, must, soon};
use crate::{BodyHash, Entry, LeaseStore, Record, Release, StoredAnswer, Token};

impl<St: LeaseStore> Check<St> {
    pub(super) async fn a_completed_event_stays_done(&self) {
        let headers: HeaderMap = [
            ("content-type", &b"text/xml; charset=\"\xfc\""[..]),
            ("x-twice", b"%20 a=b"),
            ("x-twice", b""),
        ]
        .into_iter()
        .filter_map(|(name, value)| {
            let value = HeaderValue::from_bytes(value).ok()?;
            Some((HeaderName::from_static(name), value))
        })
        .collect();
        let answer = |body: Vec<u8>| {
            let request = BodyHash::of(b"POST /");
            Some(StoredAnswer::new(request, headers.clone(), body.into()))
        };
        let record = || Record::new(Some(204), Some(BodyHash::of(b"body")));
        let records = [
            record(),
            Record::new(None, None),
            record().given_up(),
            record().with_answer(answer((0..=255).collect())),
            record().with_answer(answer(Vec::new())),
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

    pub(super) async fn completing_spares_others(&self) {
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

    pub(super) async fn failures_are_counted(&self) {
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

    pub(super) async fn releasing_spares_others(&self) {
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

    pub(super) async fn an_abandoned_run_does_not_count(&self) {
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

    pub(super) async fn entries_run_out(&self) {
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

    pub(super) async fn forgetting_spares_live_leases(&self) {
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
}
