//! The lease protocol: what a store does with one command, and nothing else.

use std::fmt;

/// Ticks of a clock that all agree on.
pub(crate) type Time = u8;

/// How long a lease lasts.
pub(crate) const LEASE: Time = 2;

/// Which attempt of which owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Token {
    pub(crate) owner: u8,
    pub(crate) attempt: u8,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", char::from(b'A' + self.owner), self.attempt)
    }
}

/// What is kept under the one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stored {
    Nothing,
    Running { token: Token, until: Time },
    Failed,
    Done { token: Token },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Command {
    Acquire,
    Renew,
    Complete,
    Release { failed: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Answer {
    Acquired,
    InFlight,
    Done,
    /// Of all but acquire: whether the token holds, or held, what it says it does.
    Held(bool),
}

impl Stored {
    /// The one atomic step that a command is.
    pub(crate) fn apply(self, command: Command, token: Token, now: Time) -> (Self, Answer) {
        let stored = self.at(now);
        let lease = Self::Running {
            token,
            until: now + LEASE,
        };
        let mine = stored.token() == Some(token);
        match (command, stored) {
            (Command::Acquire, Self::Nothing | Self::Failed) => (lease, Answer::Acquired),
            (Command::Acquire, Self::Running { .. }) if mine => (stored, Answer::Acquired),
            (Command::Acquire, Self::Running { .. }) => (stored, Answer::InFlight),
            (Command::Acquire, Self::Done { .. }) => (stored, Answer::Done),

            (Command::Renew, Self::Nothing) => (lease, Answer::Held(true)),
            (Command::Renew, Self::Running { .. }) if mine => (lease, Answer::Held(true)),

            (Command::Complete, Self::Running { .. } | Self::Done { .. }) if !mine => {
                (stored, Answer::Held(false))
            }
            (Command::Complete, _) => (Self::Done { token }, Answer::Held(true)),

            (Command::Release { failed }, Self::Running { .. }) if mine => {
                let left = if failed { Self::Failed } else { Self::Nothing };
                (left, Answer::Held(true))
            }

            (Command::Renew | Command::Release { .. }, _) => (stored, Answer::Held(false)),
        }
    }

    /// A lease that has run out is not there.
    fn at(self, now: Time) -> Self {
        match self {
            Self::Running { until, .. } if until <= now => Self::Nothing,
            stored => stored,
        }
    }

    pub(crate) const fn token(self) -> Option<Token> {
        match self {
            Self::Running { token, .. } | Self::Done { token } => Some(token),
            Self::Nothing | Self::Failed => None,
        }
    }
}
