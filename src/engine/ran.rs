//! What comes of running an event.

use std::{error::Error as StdError, fmt, time::Duration};

use super::{Error, Lease};
#[cfg(doc)]
use crate::Dedup;
use crate::{LeaseStore, Record};

/// What became of an event given to [`Dedup::run`].
///
/// These three are all there can be, so that a `match` needs no fourth arm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ran<T> {
    /// It ran now, and this came out.
    Completed(T),
    /// It was completed before.
    Done(Record),
    /// Another run of it is going on.
    InFlight {
        /// When to try again.
        retry_after: Duration,
    },
}

/// Why [`Dedup::run`] did not complete an event. It stays runnable.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError<E> {
    /// The store failed; the work was not begun.
    Store(Error),
    /// The work failed.
    Work(E),
    /// The work took longer than the run limit and was dropped.
    RunLimit,
}

impl<E> fmt::Display for RunError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Store(_) => "the event could not be acquired",
            Self::Work(_) => "the event was not completed",
            Self::RunLimit => "the event was not completed within the run limit",
        })
    }
}

impl<E: StdError + 'static> StdError for RunError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::Work(error) => Some(error),
            Self::RunLimit => None,
        }
    }
}

/// The answer to [`Dedup::begin`].
#[non_exhaustive]
pub enum Begun<St: LeaseStore> {
    /// The event is the caller's to run.
    Acquired(Lease<St>),
    /// It was completed before.
    Done(Record),
    /// Another run of it is going on.
    InFlight {
        /// When to try again.
        retry_after: Duration,
    },
}

// Not derived: that would ask the store to be `Debug`.
impl<St: LeaseStore> fmt::Debug for Begun<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquired(lease) => f.debug_tuple("Acquired").field(lease).finish(),
            Self::Done(record) => f.debug_tuple("Done").field(record).finish(),
            Self::InFlight { retry_after } => write!(f, "InFlight({retry_after:?})"),
        }
    }
}
