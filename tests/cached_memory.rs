//! How much memory `Cached` takes, against what it may take.

use std::{iter::repeat_n, time::Duration};

use allocation_counter::measure;
use futures_util::FutureExt;
use tokio::time::Instant;
use tower_webhook_dedup::{
    Acquire, BodyHash, Cached, Entry, Key, LeaseStore, MemoryStoreError, Record, Release, Token,
};

const MINUTE: Duration = Duration::from_secs(60);

/// Agrees to everything, and keeps nothing.
#[derive(Clone)]
struct Agreeable;

impl LeaseStore for Agreeable {
    type Error = MemoryStoreError;

    async fn acquire(
        &self,
        _: &Key,
        _: Token,
        _: Duration,
        _: Instant,
    ) -> Result<Acquire, MemoryStoreError> {
        Ok(Acquire::Acquired { attempt: 1 })
    }

    async fn renew(
        &self,
        _: &Key,
        _: Token,
        _: Duration,
        _: Instant,
    ) -> Result<bool, MemoryStoreError> {
        Ok(true)
    }

    async fn complete(
        &self,
        _: &Key,
        _: Token,
        _: &Record,
        _: Duration,
        _: Instant,
    ) -> Result<bool, MemoryStoreError> {
        Ok(true)
    }

    async fn release(
        &self,
        _: &Key,
        _: Token,
        _: Release,
        _: Duration,
        _: Instant,
    ) -> Result<bool, MemoryStoreError> {
        Ok(true)
    }

    async fn inspect(&self, _: &Key, _: Instant) -> Result<Option<Entry>, MemoryStoreError> {
        Ok(None)
    }

    async fn forget(&self, _: &Key, _: bool, _: Instant) -> Result<bool, MemoryStoreError> {
        Ok(true)
    }
}

/// Events of one kind: how long their keys are, and what is in their answers.
#[derive(Clone, Copy, Debug)]
struct Kind {
    key: usize,
    headers: usize,
    body: Option<usize>,
}

const SHORT: Kind = Kind {
    key: 10,
    headers: 0,
    body: None,
};

const LONG_KEY: Kind = Kind {
    key: 1_000,
    ..SHORT
};

const ANSWERED: Kind = Kind {
    headers: 1,
    body: Some(3_000),
    ..SHORT
};

const ANSWERED_BRIEFLY: Kind = Kind {
    body: Some(2),
    ..ANSWERED
};

const MANY_HEADERS: Kind = Kind {
    headers: 20,
    ..ANSWERED
};

/// As it is read from a store.
fn record(kind: Kind) -> Record {
    let token = Token::random();
    let mut text = format!("v1 done {token} 0 200 -");
    if let Some(length) = kind.body {
        text += &format!(" request={}", BodyHash::of(b"POST /"));
        for n in 0..kind.headers {
            text += &format!(" header:x-header-{n}=text/plain");
        }
        text += &format!(" body={}%20", "a".repeat(length));
    }
    match text.parse().unwrap() {
        Entry::Done { record, .. } => record,
        other => panic!("{other:?}"),
    }
}

/// Also where what comes later needs its room in other places than what came before.
#[test]
fn it_takes_no_more_memory_than_it_may() {
    const MAX: usize = 1024 * 1024;
    for kinds in [
        &[SHORT][..],
        &[LONG_KEY],
        &[ANSWERED],
        &[ANSWERED_BRIEFLY],
        &[MANY_HEADERS],
        &[LONG_KEY, SHORT, ANSWERED],
        &[SHORT, LONG_KEY, ANSWERED],
        &[SHORT, ANSWERED_BRIEFLY, LONG_KEY],
    ] {
        for max_entries in [1_000, 10_000] {
            let cached = Cached::new(Agreeable)
                .max_entries(max_entries)
                .max_bytes(MAX);
            let info = measure(|| {
                let events = kinds.iter().flat_map(|kind| repeat_n(*kind, 5_000));
                for (n, kind) in events.enumerate() {
                    let key = Key::new("t", format!("{n:0>width$}", width = kind.key));
                    let by = Instant::now() + MINUTE;
                    let record = record(kind);
                    let completed = cached.complete(&key, Token::random(), &record, MINUTE, by);
                    assert!(completed.now_or_never().unwrap().unwrap());
                }
            });
            let taken = info.bytes_current as f64 / MAX as f64;
            let len = cached.len();
            println!("{kinds:?}: {len} of {max_entries} take {taken:.2} of the limit");
            // How full the shards are is random.
            assert!(taken <= 1.05, "{taken} of the limit, {kinds:?}");
        }
    }
}
