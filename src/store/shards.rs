//! Many small maps in place of a big one.

use std::{iter, sync::MutexGuard};

use crate::{Key, identity::shard_of, mutex::Mutex};

/// Shards of a map, each under a lock of its own: one big map under one lock holds everybody up
/// while it grows.
///
/// Keys are spread by a hash that nobody outside can foresee: whoever chooses ids must not choose
/// shards.
pub(super) struct Shards<T> {
    shards: Box<[Mutex<T>]>,
}

impl<T> Shards<T> {
    const MOST: usize = 64;
    /// How many entries a shard has at least, where there is more than one.
    const SMALLEST: usize = 1024;

    /// As many as are right for so many entries; `shard` makes one, and is told how many there are.
    pub(super) fn new(entries: usize, shard: impl Fn(usize) -> T) -> Self {
        let count = (entries / Self::SMALLEST).clamp(1, Self::MOST);
        let shards = iter::repeat_with(|| Mutex::new(shard(count)));
        Self {
            shards: shards.take(count).collect(),
        }
    }

    /// The shard that has this key, or would.
    pub(super) fn of(&self, key: &Key) -> MutexGuard<'_, T> {
        self.shards[shard_of(key, self.shards.len())].lock()
    }

    /// All of them, one after the other.
    pub(super) fn all(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.shards.iter().map(Mutex::lock)
    }
}
