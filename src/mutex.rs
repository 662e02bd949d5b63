//! A mutex that no panic poisons.

use std::sync::{self, MutexGuard, PoisonError};

/// As that of `std`, but for poison: what is changed under a lock here is whole whenever something
/// can panic.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
