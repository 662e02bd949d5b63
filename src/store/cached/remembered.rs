//! Which events are done, as far as this process remembers.

use std::{
    collections::{BTreeMap, HashMap, hash_map::RandomState},
    hash::BuildHasher,
    iter,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

use super::Record;
use crate::Key;

/// What an entry takes next to its key and its record: its places in the map and in the order.
const OVERHEAD: usize = 300;

const MOST_SHARDS: usize = 64;
const SMALLEST_SHARD: usize = 1024;

/// Bounded in number and in bytes. Many small maps, so that none holds everybody up while it grows.
pub(super) struct Remembered {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    limits: (usize, usize),
}

/// How often events were forgotten before a call to the store was made. What its reply says is not
/// remembered if that has changed: it may be from before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen(u64);

struct Shard {
    max_entries: usize,
    max_bytes: usize,
    slots: HashMap<Key, Slot>,
    /// What runs out first comes first.
    order: BTreeMap<Place, Key>,
    bytes: usize,
    /// Tells apart what runs out at the same moment.
    count: u64,
    forgotten: u64,
}

/// Until when, and a number.
type Place = (Instant, u64);

struct Slot {
    record: Record,
    place: Place,
}

impl Remembered {
    pub(super) fn new(entries: usize, bytes: usize) -> Self {
        let shards = (entries / SMALLEST_SHARD).clamp(1, MOST_SHARDS);
        let shard = || Mutex::new(Shard::new(entries / shards, bytes / shards));
        Self {
            shards: iter::repeat_with(shard).take(shards).collect(),
            hasher: RandomState::new(),
            limits: (entries, bytes),
        }
    }

    /// At most so many entries, and so many bytes.
    pub(super) const fn limits(&self) -> (usize, usize) {
        self.limits
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|it| lock(it).slots.len()).sum()
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        #[expect(clippy::cast_possible_truncation, reason = "the low bits will do")]
        let n = self.hasher.hash_one(key) as usize % self.shards.len();
        lock(&self.shards[n])
    }

    /// How the event was completed, if that is remembered.
    pub(super) fn look(&self, key: &Key, now: Instant) -> Result<Record, Seen> {
        let shard = self.shard(key);
        match shard.slots.get(key) {
            Some(slot) if slot.place.0 > now => Ok(slot.record.clone()),
            _ => Err(Seen(shard.forgotten)),
        }
    }

    /// What was forgotten until now.
    pub(super) fn seen(&self, key: &Key) -> Seen {
        Seen(self.shard(key).forgotten)
    }

    /// Remembers the event, unless it may have been forgotten since.
    pub(super) fn put(&self, key: &Key, record: &Record, until: Instant, seen: Seen) {
        let mut shard = self.shard(key);
        if seen == Seen(shard.forgotten) {
            shard.put(key, record, until);
        }
    }

    /// Forgets the event now, and once more when what is returned is dropped: the store may have
    /// been asked before it forgot, and answered.
    pub(super) fn forget<'a>(&'a self, key: &'a Key) -> Forgetting<'a> {
        self.shard(key).forget(key);
        Forgetting(self, key)
    }
}

/// Forgets when dropped.
pub(super) struct Forgetting<'a>(&'a Remembered, &'a Key);

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        self.0.shard(self.1).forget(self.1);
    }
}

/// No code that can panic runs under the lock, so a poisoned one is as good as any.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn size(key: &Key, record: &Record) -> usize {
    OVERHEAD + key.as_str().len() + record.size()
}

impl Shard {
    fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self {
            max_entries,
            max_bytes,
            slots: HashMap::new(),
            order: BTreeMap::new(),
            bytes: 0,
            count: 0,
            forgotten: 0,
        }
    }

    fn put(&mut self, key: &Key, record: &Record, until: Instant) {
        let size = size(key, record);
        self.remove(key);
        self.expire();
        if self.max_entries == 0 || size > self.max_bytes {
            return;
        }
        while self.slots.len() >= self.max_entries || self.bytes + size > self.max_bytes {
            self.remove_first();
        }
        self.count += 1;
        let place = (until, self.count);
        let record = record.clone();
        self.bytes += size;
        self.order.insert(place, key.clone());
        self.slots.insert(key.clone(), Slot { record, place });
    }

    fn forget(&mut self, key: &Key) {
        self.forgotten += 1;
        self.remove(key);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(slot) = self.slots.remove(key) {
            self.order.remove(&slot.place);
            self.bytes -= size(key, &slot.record);
        }
    }

    fn remove_first(&mut self) {
        if let Some((_, key)) = self.order.first_key_value() {
            let key = key.clone();
            self.remove(&key);
        }
    }

    /// Removes a few of those whose time is over, so that it shrinks as it is used and no call pays
    /// for many.
    fn expire(&mut self) {
        let now = Instant::now();
        for _ in 0..2 {
            match self.order.first_key_value() {
                Some((place, _)) if place.0 <= now => self.remove_first(),
                _ => break,
            }
        }
    }
}
