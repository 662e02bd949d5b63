//! Which events are done, as far as this process remembers.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::Record;
use crate::{Key, identity::KeyMap, store::shards::Shards};

/// What an entry takes next to its key and its record: its places in the map and in the order.
const OVERHEAD: usize = 300;

/// Bounded in number and in bytes.
pub(super) struct Remembered {
    shards: Shards<Shard>,
    limits: (usize, usize),
}

/// How often events were forgotten before a call to the store was made. What its reply says is not
/// remembered if that has changed: it may be from before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen(u64);

struct Shard {
    max_entries: usize,
    max_bytes: usize,
    slots: KeyMap<Slot>,
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
        let shard = |shards| Shard::new(entries / shards, bytes / shards);
        Self {
            shards: Shards::new(entries, shard),
            limits: (entries, bytes),
        }
    }

    /// At most so many entries, and so many bytes.
    pub(super) const fn limits(&self) -> (usize, usize) {
        self.limits
    }

    pub(super) fn len(&self) -> usize {
        self.shards.all().map(|shard| shard.slots.len()).sum()
    }

    /// How the event was completed, if that is remembered.
    pub(super) fn look(&self, key: &Key, now: Instant) -> Result<Record, Seen> {
        let shard = self.shards.of(key);
        match shard.slots.get(key) {
            Some(slot) if slot.place.0 > now => Ok(slot.record.clone()),
            _ => Err(Seen(shard.forgotten)),
        }
    }

    /// What was forgotten until now.
    pub(super) fn seen(&self, key: &Key) -> Seen {
        Seen(self.shards.of(key).forgotten)
    }

    /// Remembers the event, unless it may have been forgotten since.
    pub(super) fn put(&self, key: &Key, record: &Record, until: Instant, seen: Seen) {
        let mut shard = self.shards.of(key);
        if seen == Seen(shard.forgotten) {
            shard.put(key, record, until);
        }
    }

    /// Forgets the event now, and once more when what is returned is dropped: the store may have
    /// been asked before it forgot, and answered.
    pub(super) fn forget<'a>(&'a self, key: &'a Key) -> Forgetting<'a> {
        self.shards.of(key).forget(key);
        Forgetting(self, key)
    }
}

/// Forgets when dropped.
pub(super) struct Forgetting<'a>(&'a Remembered, &'a Key);

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        self.0.shards.of(self.1).forget(self.1);
    }
}

fn size(key: &Key, record: &Record) -> usize {
    OVERHEAD + key.as_str().len() + record.size()
}

impl Shard {
    fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self {
            max_entries,
            max_bytes,
            slots: KeyMap::default(),
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
