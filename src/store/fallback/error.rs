//! What goes wrong in both stores.

use std::{error::Error, fmt};

use crate::{StoreError, StoreErrorKind};

/// The error of a [`Fallback`](crate::Fallback): of its primary store, or, when that had failed
/// already, of its secondary.
#[derive(Debug)]
pub struct FallbackError<P, S> {
    cause: Cause<P, S>,
    may_have_landed: bool,
}

#[derive(Debug)]
enum Cause<P, S> {
    Primary(P),
    Secondary(S),
    /// There was no time left to ask anybody.
    Late,
}

impl<P: StoreError, S: StoreError> FallbackError<P, S> {
    pub(super) fn primary(error: P) -> Self {
        Self {
            may_have_landed: error.may_have_landed(),
            cause: Cause::Primary(error),
        }
    }

    /// The secondary failed, after the primary may have done its part.
    pub(super) fn secondary(error: S, sent: bool) -> Self {
        Self {
            may_have_landed: sent || error.may_have_landed(),
            cause: Cause::Secondary(error),
        }
    }

    pub(super) const fn late() -> Self {
        Self {
            cause: Cause::Late,
            may_have_landed: true,
        }
    }
}

impl<P: fmt::Display, S: fmt::Display> fmt::Display for FallbackError<P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Primary(error) => write!(f, "primary store: {error}"),
            Cause::Secondary(error) => write!(f, "secondary store: {error}"),
            Cause::Late => f.write_str("primary store: the deadline was over before it answered"),
        }
    }
}

impl<P: Error, S: Error> Error for FallbackError<P, S> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            Cause::Primary(error) => error.source(),
            Cause::Secondary(error) => error.source(),
            Cause::Late => None,
        }
    }
}

impl<P: StoreError, S: StoreError> StoreError for FallbackError<P, S> {
    fn kind(&self) -> StoreErrorKind {
        match &self.cause {
            Cause::Primary(error) => error.kind(),
            Cause::Secondary(error) => error.kind(),
            Cause::Late => StoreErrorKind::TimedOut,
        }
    }

    fn may_have_landed(&self) -> bool {
        self.may_have_landed
    }
}
