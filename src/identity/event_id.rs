//! Where in a request the event id stands.

use std::{borrow::Cow, fmt, sync::Arc};

use bytes::Bytes;
use http::{
    HeaderName,
    header::{CONTENT_TYPE, HeaderMap},
    request::Parts,
};

use super::{JsonPointer, form};

/// Where a request carries the id of its event.
///
/// An id is compared byte for byte: nothing is trimmed, folded or normalised. Strings are decoded;
/// numbers keep their exact source text, so that ids above 2^53 survive (the number `1` and the
/// string `"1"` are the same id; `1` and `1.0` are not). What is absent, `null`, empty, blank,
/// boolean, an object or an array is no id, and neither is one that is there twice: see [`NoId`].
///
/// ```
/// use tower_webhook_dedup::EventId;
///
/// let stripe = EventId::pointer("/id");
/// let github = EventId::header("x-github-delivery");
/// let cloud_events = EventId::header("ce-source").and(EventId::header("ce-id"))
///     .or(EventId::pointer("/source").and(EventId::pointer("/id")));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct EventId(Source);

#[derive(Clone)]
enum Source {
    Pointer(JsonPointer),
    Header(HeaderName),
    Form(Arc<str>),
    Query(Arc<str>),
    Custom(Arc<Custom>),
    First(Box<Self>, Box<Self>),
    Join(Vec<Self>),
    Optional(Box<Self>),
    OnlyIf(Box<Self>, Arc<Check>),
    Nowhere,
}

type Custom = dyn Fn(&Parts, &Bytes) -> Option<String> + Send + Sync;

/// Whether a request is clear about which event it carries.
type Check = dyn Fn(&Parts, &Bytes) -> bool + Send + Sync;

/// Why a request has no readable event id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoId {
    /// Nothing stands there, or `null`.
    Absent,
    /// It is empty or white space only.
    Blank,
    /// It is there twice, and a verifier and a handler may disagree on which one counts; or a key
    /// is that a [`KeyBy`](crate::KeyBy) hashes.
    Ambiguous,
    /// It is a boolean, an object or an array, or not text at all; or what a
    /// [`KeyBy`](crate::KeyBy) hashes has a string with half a surrogate pair.
    WrongType,
    /// The body is not the JSON that it should be, or is nested more than 127 deep.
    Malformed,
}

impl fmt::Display for NoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "the event id is missing",
            Self::Blank => "the event id is blank",
            Self::Ambiguous => "the event id, or a key that counts with it, is there twice",
            Self::WrongType => "the event id is neither text nor a number",
            Self::Malformed => "the body is not the JSON that the event id is read from",
        })
    }
}

impl EventId {
    /// The string or number at this [JSON pointer](JsonPointer) of the body, whatever the
    /// content type says. A leading byte order mark is skipped.
    ///
    /// A batch has no single id. `/0/id` names its first event alone, and the others of a batch that
    /// begins with a known one are lost with it: give each element to a [`Dedup`](crate::Dedup) in
    /// the handler instead.
    ///
    /// # Panics
    ///
    /// If the pointer is malformed. [`str::parse`] to a [`JsonPointer`], which converts into an
    /// `EventId`, is the fallible way.
    #[track_caller]
    pub fn pointer(pointer: &str) -> Self {
        JsonPointer::checked(pointer).into()
    }

    /// The value of this request header. Most signatures do not cover it: anybody who can replay
    /// a signed request can give it another id.
    ///
    /// # Panics
    ///
    /// If the name is not that of a header.
    #[track_caller]
    pub fn header<N: TryInto<HeaderName>>(name: N) -> Self {
        match name.try_into() {
            Ok(name) => Self(Source::Header(name)),
            Err(_) => panic!("not the name of a header"),
        }
    }

    /// The field of this name in an `application/x-www-form-urlencoded` body.
    pub fn form(name: &str) -> Self {
        Self(Source::Form(name.into()))
    }

    /// The parameter of this name in the query string.
    pub fn query(name: &str) -> Self {
        Self(Source::Query(name.into()))
    }

    /// What the closure makes of the request; blank text is no id here either.
    pub fn custom<F>(read: F) -> Self
    where
        F: Fn(&Parts, &Bytes) -> Option<String> + Send + Sync + 'static,
    {
        Self(Source::Custom(Arc::new(read)))
    }

    /// This id, or the other where this one cannot be read.
    pub fn or(self, other: Self) -> Self {
        Self(Source::First(Box::new(self.0), Box::new(other.0)))
    }

    /// Both together as one id: the same only where both are. The parts stand in it with `|`
    /// between, escaped so that no two pairs give the same text.
    pub fn and(self, other: Self) -> Self {
        let mut parts = match self.0 {
            Source::Join(parts) => parts,
            single => vec![single],
        };
        parts.push(other.0);
        Self(Source::Join(parts))
    }

    /// Lets a part of a join ([`and`](Self::and)) be absent or blank; absent differs from blank.
    /// What cannot be read, or is there twice, still makes the whole id unreadable.
    pub fn optional(self) -> Self {
        Self(Source::Optional(Box::new(self.0)))
    }

    /// This id, unless the check says that the request is ambiguous.
    pub(crate) fn only_if<F>(self, check: F) -> Self
    where
        F: Fn(&Parts, &Bytes) -> bool + Send + Sync + 'static,
    {
        Self(Source::OnlyIf(Box::new(self.0), Arc::new(check)))
    }

    /// For senders that give their events no id.
    pub(crate) fn nowhere() -> Self {
        Self(Source::Nowhere)
    }

    pub(crate) fn read<'a>(&self, parts: &'a Parts, body: &'a Bytes) -> Result<Cow<'a, str>, NoId> {
        self.0.read(parts, body)
    }

    /// Whether the same body always has the same id, whatever else the request has.
    pub(crate) fn is_in_body(&self) -> bool {
        self.0.is_in_body()
    }
}

impl fmt::Display for EventId {
    /// As in `header ce-id or /id`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<JsonPointer> for EventId {
    fn from(pointer: JsonPointer) -> Self {
        Self(Source::Pointer(pointer))
    }
}

impl Source {
    fn is_in_body(&self) -> bool {
        match self {
            Self::Pointer(_) => true,
            Self::First(first, other) => first.is_in_body() && other.is_in_body(),
            Self::Join(parts) => parts.iter().all(Self::is_in_body),
            Self::Optional(inner) => inner.is_in_body(),
            // A form is one by its content type.
            Self::Form(_)
            | Self::Header(_)
            | Self::Query(_)
            | Self::Custom(_)
            | Self::OnlyIf(..)
            | Self::Nowhere => false,
        }
    }

    fn read<'a>(&self, parts: &'a Parts, body: &'a Bytes) -> Result<Cow<'a, str>, NoId> {
        let id = match self {
            Self::First(first, other) => {
                return first.read(parts, body).or_else(|_| other.read(parts, body));
            }
            Self::Join(joined) => return join(joined, parts, body),
            Self::Optional(inner) => return inner.read(parts, body),
            Self::OnlyIf(inner, check) if check(parts, body) => return inner.read(parts, body),
            Self::OnlyIf(..) => return Err(NoId::Ambiguous),
            Self::Pointer(pointer) => pointer.read(body)?,
            Self::Header(name) => header(&parts.headers, name)?,
            Self::Form(name) if is_form(&parts.headers) => form::field(body, name)?,
            Self::Form(_) | Self::Nowhere => return Err(NoId::Absent),
            Self::Query(name) => {
                form::field(parts.uri.query().unwrap_or_default().as_bytes(), name)?
            }
            Self::Custom(read) => Cow::Owned(read(parts, body).ok_or(NoId::Absent)?),
        };
        if id.trim().is_empty() {
            Err(NoId::Blank)
        } else {
            Ok(id)
        }
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Cow<'a, str>, NoId> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Err(NoId::Absent),
        (Some(value), None) => str::from_utf8(value.as_bytes())
            .map(Cow::Borrowed)
            .map_err(|_| NoId::WrongType),
        (Some(_), Some(_)) => Err(NoId::Ambiguous),
    }
}

fn is_form(headers: &HeaderMap) -> bool {
    const FORM: &str = "application/x-www-form-urlencoded";
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|essence| essence.trim().eq_ignore_ascii_case(FORM))
}

/// Joins the parts with `|`. Inside a part `|` and `\` stand behind a `\`, so that the ends of
/// parts can be told from their text; `\-` is an absent part, which no text gives.
fn join<'a>(joined: &[Source], parts: &'a Parts, body: &'a Bytes) -> Result<Cow<'a, str>, NoId> {
    let mut id = String::new();
    let mut found = false;
    for (n, source) in joined.iter().enumerate() {
        if n > 0 {
            id.push('|');
        }
        match (source.read(parts, body), source) {
            (Ok(part), _) => {
                found = true;
                for character in part.chars() {
                    if matches!(character, '|' | '\\') {
                        id.push('\\');
                    }
                    id.push(character);
                }
            }
            (Err(NoId::Absent), Source::Optional(_)) => id.push_str("\\-"),
            (Err(NoId::Blank), Source::Optional(_)) => {}
            (Err(why), _) => return Err(why),
        }
    }
    // Requests that have none of the parts are not one event.
    if found {
        Ok(Cow::Owned(id))
    } else {
        Err(NoId::Absent)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pointer(pointer) => pointer.fmt(f),
            Self::Header(name) => write!(f, "header {name}"),
            Self::Form(name) => write!(f, "form field {name}"),
            Self::Query(name) => write!(f, "query parameter {name}"),
            Self::Custom(_) => f.write_str("by closure"),
            Self::First(first, other) => write!(f, "{first} or {other}"),
            Self::Join(parts) => parts.iter().enumerate().try_for_each(|(n, part)| {
                let and = if n > 0 { " and " } else { "" };
                write!(f, "{and}{part}")
            }),
            Self::Optional(inner) => write!(f, "{inner}, if there"),
            Self::OnlyIf(inner, _) => inner.fmt(f),
            Self::Nowhere => f.write_str("none"),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pointer(pointer) => write!(f, "pointer({pointer})"),
            Self::Header(name) => write!(f, "header({name})"),
            Self::Form(name) => write!(f, "form({name})"),
            Self::Query(name) => write!(f, "query({name})"),
            Self::Custom(_) => f.write_str("custom"),
            Self::First(first, other) => write!(f, "({first:?} or {other:?})"),
            Self::Join(parts) => f.debug_list().entries(parts).finish(),
            Self::Optional(inner) => write!(f, "optional({inner:?})"),
            Self::OnlyIf(inner, _) => write!(f, "only_if({inner:?})"),
            Self::Nowhere => f.write_str("nowhere"),
        }
    }
}
