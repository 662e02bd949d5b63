//! A store of one's own: a map under a lock, which shows what each method has to decide.
//!
//! ```sh
//! cargo run --example store
//! ```
//!
//! In a database each method is one statement, or one transaction, on one row. A test of this crate has
//! it checked by `contract`, of the feature `test-util`; do so with yours:
//!
//! ```ignore
//! tower_webhook_dedup::contract(MyStore::default()).await;
//! ```

use std::{
    collections::HashMap,
    convert::Infallible,
    error::Error,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use tower_webhook_dedup::{
    Acquire, Dedup, Entry, Key, LeaseStore, Ran, Record, Release, StoreError, StoreErrorKind, Token,
};

/// What is kept, and until when.
#[derive(Clone, Default)]
pub(crate) struct MyStore(Arc<Mutex<HashMap<Key, (Entry, Instant)>>>);

impl MyStore {
    /// One atomic step: looks at the entry, and keeps another in its place where `decide` says so.
    /// What has expired is not there.
    fn step<T>(
        &self,
        key: &Key,
        decide: impl FnOnce(Option<(Entry, Instant)>) -> (T, Change),
    ) -> T {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let found = entries.get(key).filter(|(_, until)| *until > now);
        let (answer, change) = decide(found.cloned());
        match change {
            Change::None => {}
            Change::Put(entry, time) => drop(entries.insert(key.clone(), (entry, now + time))),
            Change::Remove => drop(entries.remove(key)),
        }
        answer
    }
}

/// What a step writes.
enum Change {
    None,
    Put(Entry, Duration),
    Remove,
}

impl LeaseStore for MyStore {
    type Error = MyError;

    async fn acquire(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        _by: Instant,
    ) -> Result<Acquire, MyError> {
        self.step(key, |found| {
            let attempt = match found {
                None => 1,
                Some((
                    Entry::Running {
                        token: owner,
                        attempt,
                        ..
                    },
                    _,
                )) if owner == token => {
                    return (Ok(Acquire::Acquired { attempt }), Change::None);
                }
                Some((Entry::Running { since, .. }, until)) => {
                    let at_most = until.saturating_duration_since(Instant::now());
                    return (Ok(Acquire::InFlight { since, at_most }), Change::None);
                }
                Some((Entry::Failed { attempts, .. }, _)) => attempts.saturating_add(1),
                Some((Entry::Done { record, .. }, _)) => {
                    return (Ok(Acquire::Done(record)), Change::None);
                }
                Some(_) => return (Err(MyError), Change::None),
            };
            let running = Entry::running(token, lease, attempt);
            let acquired = Acquire::Acquired { attempt };
            (Ok(acquired), Change::Put(running, lease))
        })
    }

    async fn renew(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        _by: Instant,
    ) -> Result<bool, MyError> {
        Ok(self.step(key, |found| match found {
            None => (true, Change::Put(Entry::running(token, lease, 1), lease)),
            Some((running @ Entry::Running { .. }, _)) if running.token() == token => {
                (true, Change::Put(running, lease))
            }
            Some(_) => (false, Change::None),
        }))
    }

    async fn complete(
        &self,
        key: &Key,
        token: Token,
        record: &Record,
        retention: Duration,
        _by: Instant,
    ) -> Result<bool, MyError> {
        let record = record.clone();
        Ok(self.step(key, |found| match found {
            Some((Entry::Done { token: owner, .. }, _)) => (owner == token, Change::None),
            Some((Entry::Running { token: owner, .. }, _)) if owner != token => {
                (false, Change::None)
            }
            // Nobody took over, or somebody did and failed.
            _ => (true, Change::Put(Entry::Done { token, record }, retention)),
        }))
    }

    async fn release(
        &self,
        key: &Key,
        token: Token,
        release: Release,
        keep: Duration,
        _by: Instant,
    ) -> Result<bool, MyError> {
        Ok(self.step(key, |found| {
            let attempt = match found {
                Some((
                    Entry::Running {
                        token: owner,
                        attempt,
                        ..
                    },
                    _,
                )) if owner == token => attempt,
                _ => return (false, Change::None),
            };
            let (failures, status) = match release {
                Release::Failed { status } => (attempt, status),
                // This run does not count; those before it do.
                _ => (attempt.saturating_sub(1), None),
            };
            if failures == 0 {
                return (true, Change::Remove);
            }
            let failed = Entry::failed(token, failures, status);
            (true, Change::Put(failed, keep))
        }))
    }

    async fn inspect(&self, key: &Key, _by: Instant) -> Result<Option<Entry>, MyError> {
        Ok(self.step(key, |found| (found.map(|(entry, _)| entry), Change::None)))
    }

    async fn forget(&self, key: &Key, force: bool, _by: Instant) -> Result<bool, MyError> {
        Ok(self.step(key, |found| match found {
            None => (false, Change::None),
            Some((Entry::Running { .. }, _)) if !force => (false, Change::None),
            Some(_) => (true, Change::Remove),
        }))
    }
}

/// What was found makes no sense: an error, and never a duplicate. All that can go wrong in a map; a
/// server that cannot be reached or lets its time pass says so by other kinds.
#[derive(Debug)]
pub(crate) struct MyError;

impl fmt::Display for MyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an entry that this version does not know")
    }
}

impl Error for MyError {}

impl StoreError for MyError {
    fn kind(&self) -> StoreErrorKind {
        StoreErrorKind::BadReply
    }

    /// Nothing was written. Where the reply to a write got lost, this is `true`.
    fn may_have_landed(&self) -> bool {
        false
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let dedup = Dedup::new(MyStore::default());
    let key = Key::new("billing", "evt_1");
    for _ in 0..2 {
        match dedup
            .run(&key, async || Ok::<_, Infallible>("charged"))
            .await?
        {
            Ran::Completed(what) => println!("{what}"),
            Ran::Done(_) => println!("done before"),
            Ran::InFlight { retry_after } => println!("running; again in {retry_after:?}"),
        }
    }
    Ok(())
}
