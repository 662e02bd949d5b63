//! A million events, completed in a store.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use tokio::{runtime::Builder, task::JoinSet};
use tower_webhook_dedup::{
    Acquire, BodyHash, Cached, Key, LeaseStore, MemoryStore, Record, RedisStore, Token,
};

use crate::{Result, lab::Lab, machine, process::Process};

const LEASE: Duration = Duration::from_secs(30);
const RETENTION: Duration = Duration::from_secs(4 * 24 * 3600);

/// Where events are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Store {
    Memory,
    /// With its default bounds, over Redis.
    Cached,
    /// With room for a million events, over Redis.
    CachedAll,
    Redis,
}

impl Store {
    pub(crate) const ALL: [Self; 4] = [Self::Memory, Self::Cached, Self::CachedAll, Self::Redis];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "MemoryStore, with room for all",
            Self::Cached => "Cached on Redis, its default bounds",
            Self::CachedAll => "Cached on Redis, with room for all",
            Self::Redis => "Redis",
        }
    }
}

/// What a full store takes.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) store: Store,
    pub(crate) events: usize,
    /// Events that are in the memory of the process.
    pub(crate) kept: usize,
    /// Bytes by which the process grew.
    pub(crate) resident: f64,
    /// Bytes by which Redis grew.
    pub(crate) in_redis: f64,
    pub(crate) seconds: f64,
}

impl Filled {
    pub(crate) fn bytes_here(&self) -> Option<f64> {
        (self.kept > 0).then(|| self.resident / self.kept as f64)
    }

    pub(crate) fn bytes_in_redis(&self) -> Option<f64> {
        (self.store != Store::Memory).then(|| self.in_redis / self.events as f64)
    }
}

/// Fills the store in a process of its own.
pub(crate) fn measure(lab: &mut Lab, store: Store, events: usize) -> Result<Filled> {
    eprintln!("{}: {events} events", store.name());
    lab.redis.flush()?;
    let before = lab.redis.figure("memory", "used_memory")?;
    let name = store.to_possible_value().ok_or("a hidden store")?;
    let role = [
        "fill",
        name.get_name(),
        &events.to_string(),
        &lab.redis.url(),
    ];
    let began = Instant::now();
    let mut process = Process::start(lab.cores.map(|cores| cores.server), &role)?;
    let line = process.line()?;
    let (kept, resident) = line.split_once(' ').ok_or("two figures are missing")?;
    let seconds = began.elapsed().as_secs_f64();
    drop(process);
    let after = lab.redis.figure("memory", "used_memory")?;
    lab.redis.flush()?;
    Ok(Filled {
        store,
        events,
        kept: kept.parse()?,
        resident: resident.parse()?,
        in_redis: after.saturating_sub(before) as f64,
        seconds,
    })
}

/// Prints how many events this process has in memory, and by how many bytes it grew.
pub(crate) fn fill(store: Store, events: usize, redis: &str) -> Result<()> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // Shards fill unevenly.
        let room = events + events / 4;
        match store {
            Store::Memory => {
                let store = MemoryStore::with_capacity(room);
                grow(&store, events, MemoryStore::len).await
            }
            Store::Cached => {
                let store = Cached::new(RedisStore::open(redis)?);
                grow(&store, events, Cached::len).await
            }
            Store::CachedAll => {
                let store = Cached::new(RedisStore::open(redis)?);
                let store = store.max_entries(room).max_bytes(usize::MAX);
                grow(&store, events, Cached::len).await
            }
            Store::Redis => grow(&RedisStore::open(redis)?, events, |_| 0).await,
        }
    })
}

async fn grow<St: LeaseStore>(
    store: &St,
    events: usize,
    kept: impl Fn(&St) -> usize,
) -> Result<()> {
    // Connections and buffers are there before it is measured.
    complete(store, 0..TASKS).await?;
    let (before, had) = (machine::resident()?, kept(store));
    complete(store, TASKS..TASKS + events).await?;
    let grown = machine::resident()?.saturating_sub(before);
    println!("{} {grown}", kept(store) - had);
    Ok(())
}

const TASKS: usize = 256;

/// Completes these events, many at once.
async fn complete<St: LeaseStore>(store: &St, events: std::ops::Range<usize>) -> Result<()> {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (store, events) = (store.clone(), events.clone().skip(task).step_by(TASKS));
        tasks.spawn(async move {
            for event in events {
                complete_one(&store, event).await?;
            }
            Result::Ok(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(())
}

async fn complete_one<St: LeaseStore>(store: &St, event: usize) -> Result<()> {
    // A busy machine is not what is tested here.
    let by = tokio::time::Instant::now() + Duration::from_secs(20);
    let hash = BodyHash::of(&event.to_be_bytes());
    let key = Key::with_hash("/webhook", format!("evt_{event:024}"), hash);
    let token = Token::random();
    let acquired = store.acquire(&key, token, LEASE, by).await?;
    if !matches!(acquired, Acquire::Acquired { .. }) {
        return Err(format!("not a new event: {acquired:?}").into());
    }
    let record = Record::new(Some(200), Some(hash));
    let completed = store.complete(&key, token, &record, RETENTION, by).await?;
    if completed {
        Ok(())
    } else {
        Err("not completed".into())
    }
}
