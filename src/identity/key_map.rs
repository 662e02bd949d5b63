//! Maps by key, for which a key is hashed once.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::{BuildHasher, BuildHasherDefault, Hasher},
    sync::LazyLock,
};

use super::Key;

/// A map by key.
pub(crate) type KeyMap<V> = HashMap<Key, V, BuildHasherDefault<Ready>>;

/// The hash of a key's text, by a secret of this process: whoever chooses ids must not choose
/// shards, or places in a map.
pub(super) fn hash(text: &str) -> u64 {
    static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    SECRET.hash_one(text)
}

/// Which of so many shards has this key. Maps go by the lowest and the highest bits.
pub(crate) fn shard_of(key: &Key, shards: usize) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "16 bits will do")]
    let middle = (key.hash() >> 32) as u16;
    usize::from(middle) % shards
}

/// Takes the hash that a key brings along as it is.
#[derive(Default)]
pub(crate) struct Ready(u64);

impl Hasher for Ready {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        debug_assert!(false, "a key brings its hash along");
    }
}
