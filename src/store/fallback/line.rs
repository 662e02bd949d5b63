//! One line of the [`Book`](super::book::Book).

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::{Acquire, Key, Record, Release, Token};

/// What became of one token.
pub(super) struct Line {
    pub(super) key: Key,
    pub(super) what: What,
    /// What it says is of no use from then on.
    pub(super) until: Instant,
    /// The primary does not know.
    pub(super) owed: bool,
    /// The primary was told, and had given the event to another token.
    pub(super) contested: bool,
    /// The primary may have heard of this token.
    pub(super) sent: bool,
    /// The secondary knows.
    pub(super) mirrored: bool,
    /// Its answer had to go.
    pub(super) stripped: bool,
    /// When it came up, on this process's clock.
    pub(super) since: SystemTime,
    /// Tells whether the line has changed while it was carried.
    pub(super) change: u64,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    /// The token runs the event, under a lease of this length.
    Lease(Duration),
    /// It has completed it.
    Done(Record),
    /// It has given it up; with `again`, an old command may still land after the release.
    Release {
        release: Release,
        keep: Duration,
        again: bool,
    },
    /// An operator lets the event run again.
    Forget,
}

/// Who knows of a line.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// Not the primary, or not for certain.
    pub(super) owed: bool,
    /// But it may have heard of the token.
    pub(super) sent: bool,
    pub(super) mirrored: bool,
}

/// A line, copied out of the lock to be carried to the primary.
pub(super) struct Debt {
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) what: What,
    pub(super) until: Instant,
    pub(super) stripped: bool,
    pub(super) change: u64,
}

impl Known {
    /// The primary did it, and the secondary is about to be told.
    pub(super) const fn by_primary(owed: bool) -> Self {
        Self {
            owed,
            sent: true,
            mirrored: false,
        }
    }

    pub(super) const fn by_secondary(sent: bool) -> Self {
        Self {
            owed: true,
            sent,
            mirrored: true,
        }
    }
}

impl What {
    /// How much memory the answer in it takes.
    pub(super) fn answer_size(&self) -> usize {
        match self {
            Self::Done(record) => record.answer_size(),
            _ => 0,
        }
    }

    /// Which are carried first: what makes room for the others.
    pub(super) const fn rank(&self) -> u8 {
        match self {
            Self::Forget => 0,
            Self::Release { .. } => 1,
            Self::Done(_) => 2,
            Self::Lease(_) => 3,
        }
    }

    pub(super) const fn is_lease(&self) -> bool {
        matches!(self, Self::Lease(_))
    }
}

impl Line {
    /// Lets its answer go.
    pub(super) fn strip(&mut self) {
        if let What::Done(record) = &mut self.what {
            record.drop_answer();
            self.stripped = true;
        }
    }

    /// Whether the secondary decides because of it.
    pub(super) const fn is_local(&self) -> bool {
        self.owed && matches!(self.what, What::Lease(_) | What::Done(_))
    }

    /// What it says to another token.
    pub(super) fn answer(&self) -> Option<Acquire> {
        match &self.what {
            What::Lease(lease) => Some(Acquire::InFlight {
                since: self.since,
                at_most: *lease,
            }),
            What::Done(record) => Some(Acquire::Done(record.clone())),
            What::Release { .. } | What::Forget => None,
        }
    }
}
