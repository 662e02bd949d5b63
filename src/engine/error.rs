//! A store call that failed.

use std::{error::Error as StdError, fmt, sync::Arc};

use crate::{StoreError, StoreErrorKind};

/// Which call to the store an [`Error`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Taking a lease.
    Acquire,
    /// Renewing it.
    Renew,
    /// Recording the event as done.
    Complete,
    /// Giving the lease up.
    Release,
    /// Looking at an event.
    Inspect,
    /// Letting an event run again.
    Forget,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Complete => "complete",
            Self::Release => "release",
            Self::Inspect => "inspect",
            Self::Forget => "forget",
        })
    }
}

/// A call to the store failed, or had no answer within
/// [`store_timeout`](crate::WebhookDedupLayer::store_timeout).
#[derive(Clone, Debug)]
pub struct Error {
    operation: Operation,
    kind: StoreErrorKind,
    may_have_landed: bool,
    source: Option<Arc<dyn StoreError>>,
}

impl Error {
    pub(crate) fn new(operation: Operation, source: impl StoreError) -> Self {
        Self {
            operation,
            kind: source.kind(),
            may_have_landed: source.may_have_landed(),
            source: Some(Arc::new(source)),
        }
    }

    /// The store let its time pass.
    pub(crate) const fn timed_out(operation: Operation) -> Self {
        Self {
            operation,
            kind: StoreErrorKind::TimedOut,
            may_have_landed: true,
            source: None,
        }
    }

    /// The store panicked.
    pub(crate) const fn panicked(operation: Operation) -> Self {
        Self {
            operation,
            kind: StoreErrorKind::BadReply,
            may_have_landed: true,
            source: None,
        }
    }

    /// What kind of trouble it is; a store that panicked is one that makes no sense.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Which call failed.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        self.operation
    }

    pub(crate) const fn may_have_landed(&self) -> bool {
        self.may_have_landed
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operation, self.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_ref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}
