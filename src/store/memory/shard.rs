//! Some of the entries, under one lock.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::MemoryStoreError;
use crate::{Entry, Key, identity::KeyMap};

/// Some of the entries, and the order in which each kind of them runs out.
pub(super) struct Shard {
    capacity: usize,
    slots: KeyMap<Slot>,
    running: Queue,
    failed: Queue,
    done: Queue,
    /// Those of the done that have an answer.
    answered: Queue,
    /// What the answers take, and how much that may be.
    answer_bytes: usize,
    max_answer_bytes: usize,
    /// Tells apart what runs out at the same moment.
    count: u64,
}

type Queue = BTreeMap<Place, Key>;

/// When an entry runs out.
type Place = (Instant, u64);

struct Slot {
    entry: Entry,
    place: Place,
}

impl Shard {
    pub(super) fn new(capacity: usize, max_answer_bytes: usize) -> Self {
        Self {
            capacity,
            slots: KeyMap::default(),
            running: Queue::new(),
            failed: Queue::new(),
            done: Queue::new(),
            answered: Queue::new(),
            answer_bytes: 0,
            max_answer_bytes,
            count: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Entry> {
        self.slots.get(key).map(|slot| &slot.entry)
    }

    pub(super) fn put(
        &mut self,
        key: &Key,
        mut entry: Entry,
        until: Instant,
    ) -> Result<(), MemoryStoreError> {
        if !self.remove(key) && self.slots.len() >= self.capacity {
            self.displace()?;
        }
        self.count += 1;
        let place = (until, self.count);
        self.admit_answer(key, &mut entry, place);
        self.queue(&entry).insert(place, key.clone());
        self.slots.insert(key.clone(), Slot { entry, place });
        Ok(())
    }

    pub(super) fn remove(&mut self, key: &Key) -> bool {
        let Some(Slot { entry, place }) = self.slots.remove(key) else {
            return false;
        };
        self.queue(&entry).remove(&place);
        if self.answered.remove(&place).is_some()
            && let Entry::Done { record, .. } = entry
        {
            self.answer_bytes -= record.answer_size();
        }
        true
    }

    /// Removes the entry of this key if its time is over, and up to two others whose time is, so that
    /// the shard shrinks as it is used and no call pays for many.
    pub(super) fn expire(&mut self, key: &Key, now: Instant) {
        if self.slots.get(key).is_some_and(|slot| slot.place.0 <= now) {
            self.remove(key);
        }
        for _ in 0..2 {
            let Some(key) = self.over(now) else { break };
            self.remove(&key);
        }
    }

    /// One whose time is over.
    fn over(&self, now: Instant) -> Option<Key> {
        [&self.running, &self.failed, &self.done]
            .into_iter()
            .filter_map(|queue| queue.first_key_value())
            .find(|((until, _), _)| *until <= now)
            .map(|(_, key)| key.clone())
    }

    fn queue(&mut self, entry: &Entry) -> &mut Queue {
        match entry {
            Entry::Running { .. } => &mut self.running,
            Entry::Failed { .. } => &mut self.failed,
            Entry::Done { .. } => &mut self.done,
        }
    }

    /// Makes room for one entry.
    fn displace(&mut self) -> Result<(), MemoryStoreError> {
        let mut first = self.failed.values().chain(self.done.values());
        let key = first.next().ok_or(MemoryStoreError)?.clone();
        self.remove(&key);
        Ok(())
    }

    /// Makes room for the answer that the entry has, or takes it from the entry where it is larger
    /// than all the room there is.
    fn admit_answer(&mut self, key: &Key, entry: &mut Entry, place: Place) {
        let Entry::Done { record, .. } = entry else {
            return;
        };
        let bytes = record.answer_size();
        if bytes > self.max_answer_bytes {
            record.drop_answer();
        } else if bytes > 0 {
            while self.answer_bytes + bytes > self.max_answer_bytes && self.displace_answer() {}
            self.answer_bytes += bytes;
            self.answered.insert(place, key.clone());
        }
    }

    /// Takes the answer that would run out first from its entry, if there is any.
    fn displace_answer(&mut self) -> bool {
        let Some((_, key)) = self.answered.pop_first() else {
            return false;
        };
        let slot = self.slots.get_mut(&key);
        if let Some(Entry::Done { record, .. }) = slot.map(|slot| &mut slot.entry) {
            self.answer_bytes -= record.answer_size();
            record.drop_answer();
        }
        true
    }
}
