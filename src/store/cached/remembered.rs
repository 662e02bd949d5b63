//! Which events are done, as far as this process remembers.

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasherDefault,
};

use tokio::time::Instant;

use super::Record;
use crate::{Key, identity::Ready, store::shards::Shards};

/// Bounded in number and in bytes.
pub(super) struct Remembered {
    shards: Shards<Shard>,
    limits: (usize, usize),
}

/// How often events were forgotten before a call to the store was made. What its reply says is not
/// remembered if that has changed: it may be from before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen(u64);

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
        self.shards.all().map(|shard| shard.index.len()).sum()
    }

    /// How the event was completed, if that is remembered.
    pub(super) fn look(&self, key: &Key, now: Instant) -> Result<Record, Seen> {
        let shard = self.shards.of(key);
        match shard.get(key) {
            Some(slot) if slot.until > now => Ok(slot.record.clone()),
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

/// Two rings and an index: in the steady state, where each event that comes displaces one, hardly
/// anything is allocated or freed, and what is displaced lies side by side. A map that owns its keys
/// costs a first delivery more than the store call that it spares a duplicate.
struct Shard {
    max_entries: usize,
    max_bytes: usize,
    /// The oldest first. The slot of an event that was forgotten stays until its turn comes; nothing
    /// leads to it.
    slots: VecDeque<Slot>,
    /// The texts of their keys, one after the other.
    texts: VecDeque<u8>,
    /// Which slot, by the hash of its key; as a number, since slots move up.
    index: HashMap<u64, u64, BuildHasherDefault<Ready>>,
    /// How many slots there were before the first.
    slots_gone: u64,
    /// How many bytes there were before the first.
    texts_gone: u64,
    bytes: usize,
    forgotten: u64,
}

struct Slot {
    hash: u64,
    /// Where its text begins, counted from the first that there ever was, and its length.
    text: (u64, usize),
    until: Instant,
    record: Record,
}

impl Slot {
    /// What it takes at most: rings double, and a table is half empty at times.
    fn size(text: usize, record: &Record) -> usize {
        const INDEX: usize = 40;
        let answer = record.size() - size_of::<Record>();
        2 * (size_of::<Self>() + text) + INDEX + answer
    }
}

impl Shard {
    fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self {
            max_entries,
            max_bytes,
            slots: VecDeque::new(),
            texts: VecDeque::new(),
            index: HashMap::default(),
            slots_gone: 0,
            texts_gone: 0,
            bytes: 0,
            forgotten: 0,
        }
    }

    fn get(&self, key: &Key) -> Option<&Slot> {
        self.slots.get(self.find(key)?)
    }

    /// Where its slot is.
    fn find(&self, key: &Key) -> Option<usize> {
        let number = self.index.get(&key.hash())?;
        let found = place(number.wrapping_sub(self.slots_gone));
        let slot = self.slots.get(found)?;
        let text = key.as_str().as_bytes();
        let at = place(slot.text.0 - self.texts_gone);
        (slot.text.1 == text.len() && is_at(&self.texts, at, text)).then_some(found)
    }

    fn put(&mut self, key: &Key, record: &Record, until: Instant) {
        self.expire();
        // Duplicates that were under way at once must not fill the ring with one event.
        if let Some(slot) = self.find(key).and_then(|it| self.slots.get_mut(it))
            && slot.record == *record
        {
            slot.until = slot.until.max(until);
            return;
        }
        let text = key.as_str().as_bytes();
        let size = Slot::size(text.len(), record);
        if self.max_entries == 0 || size > self.max_bytes {
            self.index.remove(&key.hash());
            return;
        }
        let most = self.max_bytes - size;
        while self.slots.len() >= self.max_entries || self.bytes > most {
            self.drop_oldest();
        }
        // Should another key have the same hash, it is displaced.
        let number = self.slots_gone + self.slots.len() as u64;
        self.index.insert(key.hash(), number);
        self.bytes += size;
        self.slots.push_back(Slot {
            hash: key.hash(),
            text: (self.texts_gone + self.texts.len() as u64, text.len()),
            until,
            record: record.clone(),
        });
        self.texts.extend(text);
        self.give_room_back();
    }

    /// Events with long keys, and those with long answers, need it in different places. Some is left,
    /// so that it is not moved for each event that goes.
    fn give_room_back(&mut self) {
        give_room_back(&mut self.slots, 4);
        give_room_back(&mut self.texts, 256);
        if self.index.capacity() > (4 * self.index.len()).max(16) {
            self.index.shrink_to(2 * self.index.len());
        }
    }

    fn forget(&mut self, key: &Key) {
        self.forgotten += 1;
        self.index.remove(&key.hash());
    }

    fn drop_oldest(&mut self) {
        let Some(slot) = self.slots.pop_front() else {
            return;
        };
        if self.index.get(&slot.hash) == Some(&self.slots_gone) {
            self.index.remove(&slot.hash);
        }
        let text = slot.text.1;
        self.texts.drain(..text);
        self.slots_gone += 1;
        self.texts_gone += text as u64;
        self.bytes -= Slot::size(text, &slot.record);
    }

    /// Drops a few of those whose time is over, so that it shrinks as it is used and no call pays
    /// for many.
    fn expire(&mut self) {
        let now = Instant::now();
        for _ in 0..4 {
            match self.slots.front() {
                Some(oldest) if oldest.until <= now => self.drop_oldest(),
                _ => break,
            }
        }
    }
}

/// Keeps no more room than twice what is needed, which is what is counted, or than `least`.
fn give_room_back<T>(ring: &mut VecDeque<T>, least: usize) {
    if ring.capacity() > (2 * ring.len()).max(least) {
        ring.shrink_to((ring.len() + ring.len() / 2).max(least));
    }
}

/// How far behind the first, which is less than memory holds.
fn place(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Whether the text is at this place of a ring, where it may go over the end.
fn is_at(ring: &VecDeque<u8>, at: usize, text: &[u8]) -> bool {
    let (front, back) = ring.as_slices();
    let in_front = front.len().saturating_sub(at).min(text.len());
    let (first, rest) = text.split_at(in_front);
    front[at.min(front.len())..].starts_with(first)
        && back[at.saturating_sub(front.len())..].starts_with(rest)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Where another key has the same hash, which cannot be had from outside.
    #[test]
    fn a_key_is_compared_as_text() {
        let mut shard = Shard::new(5, usize::MAX);
        let until = Instant::now() + Duration::from_secs(60);
        let record = Record::new(None, None);
        for n in 0..1_000 {
            // Their texts differ in one place each, and go over the end of the ring now and then.
            let places = ["a", "b", "c", "d"].map(|it| format!("{n}{}", it.repeat(n % 50)));
            let key = Key::new("t", format!("{}-{}", places[0], places[1]));
            let others = [
                Key::new("t", format!("{}-{}", places[2], places[1])),
                Key::new("t", format!("{}-{}", places[0], places[3])),
            ];
            shard.put(&key, &record, until);
            assert!(shard.get(&key).is_some());
            let number = shard.index[&key.hash()];
            for other in others.iter().filter(|it| **it != key) {
                shard.index.insert(other.hash(), number);
                assert!(shard.get(other).is_none(), "{other} is not {key}");
                shard.index.remove(&other.hash());
            }
        }
    }
}
