//! How often events are counted.

use std::collections::HashMap;

use crate::Key;

/// An event is in it while it has been added more often than removed.
#[derive(Default)]
pub(super) struct Tally(HashMap<Key, usize>);

impl Tally {
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    pub(super) fn add(&mut self, key: &Key) {
        *self.0.entry(key.clone()).or_default() += 1;
    }

    pub(super) fn remove(&mut self, key: &Key) {
        if let Some(count) = self.0.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(key);
            }
        }
    }
}
