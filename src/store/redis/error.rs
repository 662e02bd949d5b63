//! What goes wrong with Redis, and what kind of trouble it is.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use redis::{ErrorKind, RedisError};

#[cfg(feature = "cluster")]
use super::slots::Redirect;
use crate::{StoreError, StoreErrorKind};

/// An error of a [`RedisStore`](crate::RedisStore).
///
/// Its text keeps what the server said and never holds a password.
///
/// | kind | when |
/// |---|---|
/// | [`Unreachable`](StoreErrorKind::Unreachable) | the name does not resolve, no connection, a broken one, `LOADING`, `MASTERDOWN`, `CLUSTERDOWN`, `TRYAGAIN`, `BUSY`, too many clients |
/// | [`TimedOut`](StoreErrorKind::TimedOut) | no answer by the deadline |
/// | [`ReadOnly`](StoreErrorKind::ReadOnly) | `READONLY`, `NOREPLICAS`, a write that too few replicas [confirmed](crate::RedisStoreBuilder::min_replicas) |
/// | [`OutOfMemory`](StoreErrorKind::OutOfMemory) | `OOM`; `MISCONF`, which in most cases is a full disk |
/// | [`Denied`](StoreErrorKind::Denied) | `NOAUTH`, `WRONGPASS`, `NOPERM`, `DENIED`, a refused `AUTH` |
/// | [`BadReply`](StoreErrorKind::BadReply) | a value that is not an [`Entry`](crate::Entry), `WRONGTYPE`, `MOVED` (the server is one node of a cluster), any other error |
/// | [`Misconfigured`](StoreErrorKind::Misconfigured) | when opened: the URL is malformed or needs a feature that is off, a certificate cannot be read; when called: the server does not know `SET`, `GET`, `SELECT` or `CLUSTER`, as a Sentinel does not |
#[derive(Clone)]
pub struct RedisStoreError {
    kind: StoreErrorKind,
    may_have_landed: bool,
    /// The connection is of no more use.
    broken: bool,
    code: Option<Arc<str>>,
    text: Arc<str>,
}

impl RedisStoreError {
    /// The code that the server's error starts with, such as `READONLY`; `None` where the error is
    /// not the server's. Servers older than 7.0 wrap the error of a command in that of its script:
    /// it is the code of the command.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// Sorts an error that the connection gave for a command, one of the user's included.
    pub(super) fn new(error: &RedisError) -> Self {
        let (kind, may_have_landed, broken) = match error.kind() {
            ErrorKind::Io if error.is_timeout() => (StoreErrorKind::TimedOut, true, true),
            ErrorKind::Io => (StoreErrorKind::Unreachable, true, true),
            ErrorKind::Parse => (StoreErrorKind::BadReply, true, true),
            ErrorKind::AuthenticationFailed => (StoreErrorKind::Denied, false, false),
            // What the `redis` crate found out before it sent anything.
            ErrorKind::InvalidClientConfig | ErrorKind::Client | ErrorKind::EmptySentinelList => {
                (StoreErrorKind::Unreachable, false, false)
            }
            ErrorKind::MasterNameNotFoundBySentinel
            | ErrorKind::NoValidReplicasFoundBySentinel
            | ErrorKind::ClusterConnectionNotFound => (StoreErrorKind::Unreachable, true, false),
            ErrorKind::Server(_) | ErrorKind::Extension => {
                if let Some(code) = error.code() {
                    return Self::said(code, error.detail().unwrap_or_default());
                }
                (StoreErrorKind::BadReply, true, false)
            }
            _ => (StoreErrorKind::BadReply, true, false),
        };
        Self {
            kind,
            may_have_landed,
            broken,
            code: None,
            text: error.to_string().into(),
        }
    }

    /// The server refused the command with these words, so it was not executed.
    pub(super) fn said(code: &str, detail: &str) -> Self {
        let mut text = format!("{code} {}", detail.trim_end());
        let code = match code {
            "ERR" => code_within(detail).unwrap_or(code),
            code => code,
        };
        let kind = kind_of(code, detail);
        if kind == StoreErrorKind::Misconfigured {
            text += " (if this is a Sentinel, the URL should begin with redis+sentinel://)";
        }
        Self {
            kind,
            may_have_landed: false,
            broken: false,
            code: Some(code.into()),
            text: text.into(),
        }
    }

    /// Nothing can come of what the user said about the server.
    pub(super) fn misconfigured(text: impl Into<Arc<str>>) -> Self {
        Self::plain(StoreErrorKind::Misconfigured, false, text)
    }

    /// No connection came about.
    pub(super) fn unreachable(text: impl Into<Arc<str>>) -> Self {
        Self::plain(StoreErrorKind::Unreachable, false, text)
    }

    pub(super) fn timed_out(may_have_landed: bool, text: impl Into<Arc<str>>) -> Self {
        Self::plain(StoreErrorKind::TimedOut, may_have_landed, text)
    }

    /// The command was executed, or found a value, and one of the two makes no sense.
    pub(super) fn bad_reply(may_have_landed: bool, text: impl Into<Arc<str>>) -> Self {
        Self::plain(StoreErrorKind::BadReply, may_have_landed, text)
    }

    fn plain(kind: StoreErrorKind, may_have_landed: bool, text: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            may_have_landed,
            broken: false,
            code: None,
            text: text.into(),
        }
    }

    /// The same trouble, while connecting to `address`: no command was sent.
    pub(super) fn connecting_to(self, address: &str) -> Self {
        Self {
            kind: match self.kind {
                StoreErrorKind::TimedOut => StoreErrorKind::Unreachable,
                kind => kind,
            },
            may_have_landed: false,
            broken: false,
            text: format!("connecting to {address}: {}", self.text).into(),
            ..self
        }
    }

    /// The same trouble, as the reason not to send a command at all.
    pub(super) fn before_sending(self) -> Self {
        Self {
            may_have_landed: false,
            broken: false,
            ..self
        }
    }

    /// The server said so to `AUTH`. Whatever its words, it did not let us in.
    pub(super) fn refusing_login(mut self) -> Self {
        if self.kind == StoreErrorKind::BadReply {
            self.kind = StoreErrorKind::Denied;
        }
        self
    }

    pub(super) fn connect_took_longer_than(limit: Duration) -> Self {
        Self::unreachable(format!("no answer within {limit:?}"))
    }

    /// An earlier try at the same step ended with `earlier` and may have landed.
    pub(super) fn after(mut self, earlier: &Self) -> Self {
        self.may_have_landed |= earlier.may_have_landed;
        self
    }

    /// A command was executed before the one that this is about.
    pub(super) const fn after_a_write(mut self) -> Self {
        self.may_have_landed = true;
        self
    }

    /// What was written is not on as many replicas as it has to be.
    pub(super) fn unconfirmed(by: u32, of: u32) -> Self {
        Self {
            kind: StoreErrorKind::ReadOnly,
            may_have_landed: true,
            broken: false,
            code: None,
            text: format!("{by} of {of} replicas confirmed the write in time").into(),
        }
    }

    /// Whether the connection broke under the command.
    pub(super) const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether the server does not know the arguments of the command.
    pub(super) fn is_syntax(&self) -> bool {
        self.code() == Some("ERR") && self.text.contains("syntax error")
    }

    /// Where the node of a cluster that gave this error sends the command on to.
    #[cfg(feature = "cluster")]
    pub(super) fn redirect(&self, from: &str) -> Option<Redirect> {
        match self.code() {
            Some("MOVED" | "ASK") => Redirect::read(&self.text, from),
            _ => None,
        }
    }

    /// Whether the server at the other end has become a replica: the writable one may be found at
    /// the same address by now.
    pub(super) fn is_demoted(&self) -> bool {
        matches!(self.code(), Some("READONLY" | "MASTERDOWN"))
    }
}

fn kind_of(code: &str, detail: &str) -> StoreErrorKind {
    match code {
        "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" => {
            StoreErrorKind::Unreachable
        }
        "READONLY" | "NOREPLICAS" => StoreErrorKind::ReadOnly,
        "OOM" | "MISCONF" => StoreErrorKind::OutOfMemory,
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => StoreErrorKind::Denied,
        "ERR" if detail.contains("max number of clients") => StoreErrorKind::Unreachable,
        "ERR" if detail.contains("user executing the script") || detail.contains("ACL failure") => {
            StoreErrorKind::Denied
        }
        "ERR"
            if matches!(
                unknown_command(detail),
                Some("CLUSTER" | "GET" | "SELECT" | "SET")
            ) =>
        {
            StoreErrorKind::Misconfigured
        }
        _ => StoreErrorKind::BadReply,
    }
}

/// The command that the server says it does not know, as in ``unknown command `SET`, with args …``.
/// Newer ones have other quotes.
fn unknown_command(detail: &str) -> Option<&str> {
    let command = detail.strip_prefix("unknown command ")?;
    command.split(['\'', '`']).nth(1)
}

/// The code behind a plain `ERR`: servers older than 7.0 wrap the error of a command in that of its
/// script, as in `ERR Error running script (…): @user_script:12: -OOM command not allowed …`.
fn code_within(detail: &str) -> Option<&str> {
    detail.split_ascii_whitespace().find_map(|word| {
        let code = word.strip_prefix('-')?;
        matches!(
            code,
            "OOM" | "MISCONF" | "READONLY" | "NOREPLICAS" | "NOPERM"
        )
        .then_some(code)
    })
}

impl fmt::Display for RedisStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.text)
    }
}

/// The text, as it comes out of a `main` that returns the error.
impl fmt::Debug for RedisStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for RedisStoreError {}

impl StoreError for RedisStoreError {
    fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    fn may_have_landed(&self) -> bool {
        self.may_have_landed
    }
}
