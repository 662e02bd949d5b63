//! What a store keeps of an event, and its form as text.

use std::{
    fmt,
    str::{FromStr, SplitAsciiWhitespace},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{StoredAnswer, Token, answer};
use crate::BodyHash;

/// What a store keeps under a [`Key`](crate::Key).
///
/// As text it is one line that a person can read with `GET`; times are milliseconds, `-` stands for
/// what is not known:
///
/// ```text
/// v1 running <token> <since> <lease> <attempt>
/// v1 failed <token> <when> <attempts> <status>
/// v1 done <token> <when> <status> <body hash>
/// ```
///
/// A done entry may go on: with `given-up`, where its event failed too often, and with the answer
/// that is kept for duplicates, as `request=<hash of method, path and query>`,
/// `header:<name>=<value>` for each header, and `body=<body>`. White space, control characters, `%`
/// and all that is not ASCII are percent-encoded there.
///
/// The first three fields never change, and a reader passes over fields that it does not know: old
/// and new processes share a store during a deploy. Of a later version only the first three are
/// relied on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Entry {
    /// A run holds the lease.
    Running {
        /// Who holds it.
        token: Token,
        /// When it was acquired, on that process's clock.
        since: SystemTime,
        /// How long the lease lasts from its last renewal.
        lease: Duration,
        /// 1 for the first run, one more after each failed one.
        attempt: u32,
    },
    /// The last run failed.
    Failed {
        /// Who ran it.
        token: Token,
        /// When it failed.
        at: SystemTime,
        /// How many runs failed so far.
        attempts: u32,
        /// The HTTP status of the last one, where it answered with one.
        status: Option<u16>,
    },
    /// The event was completed.
    Done {
        /// Who completed it.
        token: Token,
        /// How.
        record: Record,
    },
}

/// How an event was completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    at: SystemTime,
    status: Option<u16>,
    body_hash: Option<BodyHash>,
    given_up: bool,
    answer: Option<Arc<StoredAnswer>>,
}

impl Record {
    /// The record of an event completed now.
    #[must_use]
    pub fn new(status: Option<u16>, body_hash: Option<BodyHash>) -> Self {
        // Whole milliseconds, as it will be read back.
        Self {
            at: from_millis(to_millis(SystemTime::now())),
            status,
            body_hash,
            given_up: false,
            answer: None,
        }
    }

    /// The same, of an event that was not completed, but failed too often.
    pub(crate) fn given_up(mut self) -> Self {
        self.given_up = true;
        self
    }

    /// The same, with an answer for its duplicates, or without.
    pub(crate) fn with_answer(mut self, answer: Option<StoredAnswer>) -> Self {
        self.answer = answer.map(Arc::new);
        self
    }

    /// When the event was completed, on the clock of the process that did.
    #[must_use]
    pub const fn completed_at(&self) -> SystemTime {
        self.at
    }

    /// The HTTP status that the handler answered with; `None` outside HTTP.
    #[must_use]
    pub const fn status(&self) -> Option<u16> {
        self.status
    }

    /// SHA-256 of the body that was handled; `None` outside HTTP.
    #[must_use]
    pub const fn body_hash(&self) -> Option<BodyHash> {
        self.body_hash
    }

    /// Whether the event was not completed, but
    /// [given up](crate::WebhookDedupLayer::give_up_after). The status is that of its last run.
    #[must_use]
    pub const fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// The answer that is kept for duplicates.
    #[must_use]
    pub fn answer(&self) -> Option<&StoredAnswer> {
        self.answer.as_deref()
    }

    /// How much memory it takes.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.answer_size()
    }

    /// How much of that its answer takes.
    pub(super) fn answer_size(&self) -> usize {
        self.answer().map_or(0, StoredAnswer::size)
    }

    pub(super) fn drop_answer(&mut self) {
        self.answer = None;
    }
}

impl Entry {
    /// The entry of a lease that was acquired now.
    #[must_use]
    pub fn running(token: Token, lease: Duration, attempt: u32) -> Self {
        Self::Running {
            token,
            since: SystemTime::now(),
            lease,
            attempt,
        }
    }

    /// The entry of a run that failed now.
    #[must_use]
    pub fn failed(token: Token, attempts: u32, status: Option<u16>) -> Self {
        Self::Failed {
            token,
            at: SystemTime::now(),
            attempts,
            status,
        }
    }

    /// The token of whoever wrote the entry.
    #[must_use]
    pub const fn token(&self) -> Token {
        match self {
            Self::Running { token, .. } | Self::Failed { token, .. } | Self::Done { token, .. } => {
                *token
            }
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running {
                token,
                since,
                lease,
                attempt,
            } => {
                let lease = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
                let since = to_millis(*since);
                write!(f, "v1 running {token} {since} {lease} {attempt}")
            }
            Self::Failed {
                token,
                at,
                attempts,
                status,
            } => {
                write!(
                    f,
                    "v1 failed {token} {} {attempts} {}",
                    to_millis(*at),
                    Known(status)
                )
            }
            Self::Done {
                token,
                record:
                    Record {
                        at,
                        status,
                        body_hash,
                        given_up,
                        answer,
                    },
            } => {
                let at = to_millis(*at);
                let (status, body_hash) = (Known(status), Known(body_hash));
                write!(f, "v1 done {token} {at} {status} {body_hash}")?;
                if *given_up {
                    write!(f, " {GIVEN_UP}")?;
                }
                answer
                    .as_ref()
                    .map_or(Ok(()), |answer| write!(f, " {answer}"))
            }
        }
    }
}

const GIVEN_UP: &str = "given-up";

/// `-` where there is nothing.
pub(super) struct Known<'a, T>(pub(super) &'a Option<T>);

impl<T: fmt::Display> fmt::Display for Known<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("-"),
        }
    }
}

/// The text is not an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseEntryError;

impl fmt::Display for ParseEntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an entry of the form `v1 running|failed|done <token> …`")
    }
}

impl std::error::Error for ParseEntryError {}

impl FromStr for Entry {
    type Err = ParseEntryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut fields = text.split_ascii_whitespace();
        let version = fields
            .next()
            .and_then(|field| field.strip_prefix('v'))
            .ok_or(ParseEntryError)?;
        let version: u32 = version.parse().map_err(|_| ParseEntryError)?;
        let state = fields.next().ok_or(ParseEntryError)?;
        let token = fields
            .next()
            .and_then(|field| field.parse().ok())
            .ok_or(ParseEntryError)?;
        let rest = Fields {
            fields,
            strict: version == 1,
        };
        match state {
            "running" => rest.running(token),
            "failed" => rest.failed(token),
            "done" => rest.done(token),
            _ => Err(ParseEntryError),
        }
    }
}

/// The fields after the first three.
struct Fields<'a> {
    fields: SplitAsciiWhitespace<'a>,
    /// Version 1: each must be there. Later versions may have moved them: what fits is taken.
    strict: bool,
}

impl Fields<'_> {
    /// A lease of unknown length is taken to be this long.
    const LEASE: Duration = Duration::from_secs(30);

    fn next<T>(
        &mut self,
        read: impl FnOnce(&str) -> Option<T>,
        default: T,
    ) -> Result<T, ParseEntryError> {
        match self.fields.next().and_then(read) {
            Some(value) => Ok(value),
            None if self.strict => Err(ParseEntryError),
            None => Ok(default),
        }
    }

    fn running(mut self, token: Token) -> Result<Entry, ParseEntryError> {
        Ok(Entry::Running {
            token,
            since: self.next(time, SystemTime::UNIX_EPOCH)?,
            lease: self.next(
                |field| Some(Duration::from_millis(field.parse().ok()?)),
                Self::LEASE,
            )?,
            attempt: self.next(|field| field.parse().ok(), 1)?,
        })
    }

    fn failed(mut self, token: Token) -> Result<Entry, ParseEntryError> {
        Ok(Entry::Failed {
            token,
            at: self.next(time, SystemTime::UNIX_EPOCH)?,
            attempts: self.next(|field| field.parse().ok(), 1)?,
            status: self.next(known, None)?,
        })
    }

    fn done(mut self, token: Token) -> Result<Entry, ParseEntryError> {
        let mut record = Record {
            at: self.next(time, SystemTime::UNIX_EPOCH)?,
            status: self.next(known, None)?,
            body_hash: self.next(known, None)?,
            given_up: false,
            answer: None,
        };
        let mut answer = answer::Fields::default();
        for field in self.fields {
            record.given_up |= field == GIVEN_UP;
            // A later version may have answers of another form, which nobody must be given.
            if self.strict {
                answer.read(field)?;
            }
        }
        record.answer = answer.finish().map(Arc::new);
        Ok(Entry::Done { token, record })
    }
}

fn time(field: &str) -> Option<SystemTime> {
    let since_epoch = Duration::from_millis(field.parse().ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since_epoch)
}

fn known<T: FromStr>(field: &str) -> Option<Option<T>> {
    if field == "-" {
        Some(None)
    } else {
        field.parse().ok().map(Some)
    }
}

pub(super) fn to_millis(time: SystemTime) -> u64 {
    let since_epoch = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

fn from_millis(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}
