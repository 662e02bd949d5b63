//! `Cached`: what is done is remembered for a short while, and never for longer than it is true.

mod duplicates;
mod forgotten;
mod room;
mod times;

#[path = "../support/http.rs"]
mod http_support;
#[path = "../support/stores.rs"]
mod stores;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;
use tower_webhook_dedup::{Acquire, Entry, Key, LeaseStore, Record, Token};

use self::{http_support::secs, stores::Faulty};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn key<I: fmt::Display>(id: I) -> Key {
    Key::new("t", format!("{id}"))
}

fn by() -> Instant {
    Instant::now() + secs(100)
}

async fn acquire(store: &impl LeaseStore, key: &Key) -> Acquire {
    let acquired = store.acquire(key, Token::random(), secs(30), by()).await;
    acquired.unwrap()
}

async fn is_done(store: &impl LeaseStore, key: &Key) -> bool {
    matches!(acquire(store, key).await, Acquire::Done(_))
}

/// Runs the event and completes it.
async fn complete(store: &impl LeaseStore, key: &Key, retention: Duration) -> Record {
    let (token, record) = (Token::random(), Record::new(Some(200), None));
    let acquired = store.acquire(key, token, secs(30), by()).await.unwrap();
    assert_eq!(acquired, Acquire::Acquired { attempt: 1 });
    let completed = store.complete(key, token, &record, retention, by()).await;
    assert!(completed.unwrap());
    record
}

/// A record of an event that was completed so long ago.
fn completed_before(age: Duration) -> Record {
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let (token, at) = (Token::random(), (at.unwrap() - age).as_millis());
    let entry: Entry = format!("v1 done {token} {at} 200 -").parse().unwrap();
    match entry {
        Entry::Done { record, .. } => record,
        other => panic!("{other:?}"),
    }
}

/// Completed by another process, so long ago.
async fn completed_elsewhere(store: &Faulty, key: &Key, age: Duration) {
    let (token, record) = (Token::random(), completed_before(age));
    let completed = store.inner.complete(key, token, &record, DAY, by()).await;
    assert!(completed.unwrap());
}
