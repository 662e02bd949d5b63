//! Reading one value out of a JSON body, without building a tree of it.

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

use super::NoId;

/// A JSON pointer ([RFC 6901]), as in `"/data/object/id"`.
///
/// `~1` in it stands for `/` and `~0` for `~`; numbers index arrays. The fallible way to make one,
/// for pointers from configuration, is [`str::parse`].
///
/// ```
/// use tower_webhook_dedup::JsonPointer;
///
/// assert!("/data/object/id".parse::<JsonPointer>().is_ok());
/// assert!("id".parse::<JsonPointer>().is_err());
/// ```
///
/// [RFC 6901]: https://www.rfc-editor.org/rfc/rfc6901
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct JsonPointer {
    tokens: Arc<[Box<str>]>,
}

/// The text is not a JSON pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParsePointerError;

impl fmt::Display for ParsePointerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a JSON pointer: empty, or each part behind a `/`, with `~0` for `~` and `~1` for `/`")
    }
}

impl std::error::Error for ParsePointerError {}

impl FromStr for JsonPointer {
    type Err = ParsePointerError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut tokens = text.split('/');
        if tokens.next() != Some("") {
            return Err(ParsePointerError);
        }
        let tokens = tokens
            .map(unescape)
            .collect::<Option<_>>()
            .ok_or(ParsePointerError)?;
        Ok(Self { tokens })
    }
}

/// Undoes the escapes of one token; any other `~` is an error.
fn unescape(token: &str) -> Option<Box<str>> {
    let mut rest = token.split('~');
    let mut plain = String::from(rest.next()?);
    for piece in rest {
        let (escaped, tail) = piece.split_at_checked(1)?;
        plain.push(match escaped {
            "0" => '~',
            "1" => '/',
            _ => return None,
        });
        plain.push_str(tail);
    }
    Some(plain.into())
}

impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tokens
            .iter()
            .try_for_each(|token| write!(f, "/{}", token.replace('~', "~0").replace('/', "~1")))
    }
}

impl fmt::Debug for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JsonPointer({self})")
    }
}

impl JsonPointer {
    /// Reads a pointer that stands in a program.
    #[track_caller]
    pub(crate) fn checked(text: &str) -> Self {
        match text.parse() {
            Ok(pointer) => pointer,
            Err(error) => panic!("{error}: {text:?}"),
        }
    }

    pub(super) fn tokens(&self) -> &[Box<str>] {
        &self.tokens
    }

    /// Reads the string or number that the pointer leads to.
    pub(super) fn read<'de>(&self, body: &'de [u8]) -> Result<Cow<'de, str>, NoId> {
        text_of(self.find(body)?.ok_or(NoId::Absent)?)
    }

    /// Whether nothing stands there, not even `null`.
    pub(crate) fn leads_nowhere(&self, body: &[u8]) -> bool {
        matches!(self.find(body), Ok(None))
    }

    /// Finds the value that the pointer leads to.
    ///
    /// The whole document is walked and its structure checked. What is not on the path is skipped:
    /// UTF-8 inside skipped strings and the range of skipped numbers are not looked at.
    pub(super) fn find<'de>(&self, body: &'de [u8]) -> Result<Option<&'de RawValue>, NoId> {
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let mut found = Found::Nothing;
        let mut document = serde_json::Deserializer::from_slice(body);
        Walk {
            path: &self.tokens,
            found: &mut found,
        }
        .deserialize(&mut document)
        .and_then(|()| document.end())
        .map_err(|_| NoId::Malformed)?;
        match found {
            Found::Value(value) => Ok(Some(value)),
            Found::Nothing => Ok(None),
            Found::Twice => Err(NoId::Ambiguous),
        }
    }
}

/// A string decoded, a number in its exact source text.
fn text_of(value: &RawValue) -> Result<Cow<'_, str>, NoId> {
    let raw = value.get();
    match raw.as_bytes() {
        [b'"', .., b'"'] if !raw.contains('\\') => Ok(Cow::Borrowed(&raw[1..raw.len() - 1])),
        // Fails where an escape is half a surrogate pair, which no text can hold.
        [b'"', ..] => serde_json::from_str(raw)
            .map(Cow::Owned)
            .map_err(|_| NoId::WrongType),
        [b'-' | b'0'..=b'9', ..] => Ok(Cow::Borrowed(raw)),
        b"null" => Err(NoId::Absent),
        _ => Err(NoId::WrongType),
    }
}

enum Found<'de> {
    Nothing,
    Value(&'de RawValue),
    /// A key on the path occurs twice: a verifier and a handler may disagree on which one counts.
    Twice,
}

/// Walks one value and leaves what stands at `path` below it in `found`.
struct Walk<'p, 'f, 'de> {
    path: &'p [Box<str>],
    found: &'f mut Found<'de>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        if self.path.is_empty() {
            *self.found = Found::Value(<&RawValue>::deserialize(value)?);
            return Ok(());
        }
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((wanted, path)) = self.path.split_first() else {
            return Ok(());
        };
        let mut seen = false;
        while let Some(hit) = map.next_key_seed(Is(wanted))? {
            if !hit {
                map.next_value::<IgnoredAny>()?;
            } else if seen {
                map.next_value::<IgnoredAny>()?;
                *self.found = Found::Twice;
            } else {
                map.next_value_seed(Walk {
                    path,
                    found: &mut *self.found,
                })?;
                seen = true;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Some((wanted, path)) = self.path.split_first() else {
            return Ok(());
        };
        if let Some(index) = index(wanted) {
            for _ in 0..index {
                if seq.next_element::<IgnoredAny>()?.is_none() {
                    return Ok(());
                }
            }
            seq.next_element_seed(Walk {
                path,
                found: self.found,
            })?;
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    // Scalars where the path goes on: nothing is found below them.

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// An array index as RFC 6901 has it: digits without a leading zero.
pub(super) fn index(token: &str) -> Option<usize> {
    let canonical = token == "0" || !token.starts_with(['0', '+']);
    token.parse().ok().filter(|_| canonical)
}

/// Whether the key, its escapes undone, is this text.
struct Is<'t>(&'t str);

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, key: D) -> Result<bool, D::Error> {
        key.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}
