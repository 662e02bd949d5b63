//! The hash of parts of a JSON body, whatever the order of its keys and its white space.

use std::{borrow::Cow, str};

use serde_json::value::RawValue;

use super::{BodyHash, BodyHasher, JsonPointer, NoId, pointer::index};

/// How deep objects and arrays may be nested; as deep as serde_json lets them.
const DEEPEST: usize = 127;

/// Hashes what stands at these pointers. Absent differs from `null`.
pub(crate) fn hash_of(body: &[u8], fields: &[JsonPointer]) -> Result<BodyHash, NoId> {
    let mut hasher = BodyHasher::default();
    for field in fields {
        match field.find(body)? {
            Some(value) => Walk::over(value).value(&[], 0)?.hash_into(&mut hasher),
            None => hasher.update(b"-"),
        }
    }
    Ok(hasher.finish())
}

/// Hashes all but what stands at these pointers.
pub(crate) fn hash_except(body: &[u8], except: &[JsonPointer]) -> Result<BodyHash, NoId> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let body: &RawValue = serde_json::from_slice(body).map_err(|_| NoId::Malformed)?;
    let except: Vec<_> = except.iter().map(JsonPointer::tokens).collect();
    let mut hasher = BodyHasher::default();
    if !is_whole(&except) {
        Walk::over(body).value(&except, 0)?.hash_into(&mut hasher);
    }
    Ok(hasher.finish())
}

/// The rest of a path.
type Path<'p> = &'p [Box<str>];

/// The rests of those paths that go on with this token.
fn below<'p>(paths: &[Path<'p>], is_next: impl Fn(&str) -> bool) -> Vec<Path<'p>> {
    let rests = paths.iter().filter_map(|path| path.split_first());
    rests
        .filter(|(next, _)| is_next(next))
        .map(|(_, rest)| rest)
        .collect()
}

/// Whether one of the paths ends here.
fn is_whole(paths: &[Path<'_>]) -> bool {
    paths.iter().any(|path| path.is_empty())
}

/// A value, as far as it has to be kept until its place in the order of keys is known.
enum Part<'a> {
    Text(Cow<'a, str>),
    /// A number, in its exact source text, or `true`, `false` or `null`.
    Plain(&'a str),
    Object(BodyHash),
    Array(BodyHash),
    /// An element that is left out.
    Hole,
}

impl Part<'_> {
    /// With kind and length, so that no two values give the same bytes.
    fn hash_into(&self, hasher: &mut BodyHasher) {
        let (kind, data) = match self {
            Self::Text(text) => (b"\"", text.as_bytes()),
            Self::Plain(text) => (b"0", text.as_bytes()),
            Self::Object(hash) => (b"{", &hash.as_bytes()[..]),
            Self::Array(hash) => (b"[", &hash.as_bytes()[..]),
            Self::Hole => (b"_", &[][..]),
        };
        hasher.update(kind);
        hash_text(data, hasher);
    }
}

fn hash_text(data: &[u8], hasher: &mut BodyHasher) {
    hasher.update(&(data.len() as u64).to_be_bytes());
    hasher.update(data);
}

/// One walk over JSON that serde_json has found well-formed. It is not used for the walk itself,
/// since it does not tell the source text of a number without reading each value once more for
/// each level that it is nested in.
struct Walk<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Walk<'a> {
    fn over(value: &'a RawValue) -> Self {
        Self {
            text: value.get(),
            at: 0,
        }
    }

    /// Reads a value that is nested so deep, but for what stands at these paths below it.
    fn value(&mut self, except: &[Path<'_>], depth: usize) -> Result<Part<'a>, NoId> {
        let open = self.next()?;
        if matches!(open, b'{' | b'[') && depth == DEEPEST {
            return Err(NoId::Malformed);
        }
        match open {
            b'{' => Ok(Part::Object(self.object(except, depth + 1)?)),
            b'[' => Ok(Part::Array(self.array(except, depth + 1)?)),
            b'"' => Ok(Part::Text(self.string()?)),
            _ => Ok(Part::Plain(self.plain())),
        }
    }

    fn object(&mut self, except: &[Path<'_>], depth: usize) -> Result<BodyHash, NoId> {
        let mut members = Vec::new();
        let mut more = self.enters(b'}')?;
        while more {
            self.next()?;
            let key = self.string()?;
            // The colon.
            self.next()?;
            self.at += 1;
            let value = self.element(&below(except, |next| next == key), depth)?;
            members.push((key, value));
            more = self.goes_on()?;
        }
        members.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        if members.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(NoId::Ambiguous);
        }
        let mut hasher = BodyHasher::default();
        for (key, value) in members {
            if !matches!(value, Part::Hole) {
                hash_text(key.as_bytes(), &mut hasher);
                value.hash_into(&mut hasher);
            }
        }
        Ok(hasher.finish())
    }

    fn array(&mut self, except: &[Path<'_>], depth: usize) -> Result<BodyHash, NoId> {
        let mut hasher = BodyHasher::default();
        let mut more = self.enters(b']')?;
        let mut n = 0;
        while more {
            let below = below(except, |next| index(next) == Some(n));
            self.element(&below, depth)?.hash_into(&mut hasher);
            n += 1;
            more = self.goes_on()?;
        }
        Ok(hasher.finish())
    }

    /// Reads a value of an object or an array, or passes over it.
    fn element(&mut self, except: &[Path<'_>], depth: usize) -> Result<Part<'a>, NoId> {
        if !is_whole(except) {
            return self.value(except, depth);
        }
        let mut open = 0;
        loop {
            match self.next()? {
                b'"' => _ = self.raw_string()?,
                b'{' | b'[' => (self.at, open) = (self.at + 1, open + 1),
                b'}' | b']' => (self.at, open) = (self.at + 1, open - 1),
                b',' | b':' => self.at += 1,
                _ => _ = self.plain(),
            }
            if open == 0 {
                return Ok(Part::Hole);
            }
        }
    }

    /// Passes the bracket, and the other one if it follows at once.
    fn enters(&mut self, close: u8) -> Result<bool, NoId> {
        self.at += 1;
        let is_empty = self.next()? == close;
        self.at += usize::from(is_empty);
        Ok(!is_empty)
    }

    /// Passes a comma, or the bracket at the end.
    fn goes_on(&mut self) -> Result<bool, NoId> {
        let comma = self.next()? == b',';
        self.at += 1;
        Ok(comma)
    }

    /// The next byte that is not white space.
    fn next(&mut self) -> Result<u8, NoId> {
        let rest = &self.text.as_bytes()[self.at..];
        let space = rest.iter().position(|byte| !byte.is_ascii_whitespace());
        self.at += space.ok_or(NoId::Malformed)?;
        Ok(self.text.as_bytes()[self.at])
    }

    /// A number, `true`, `false` or `null`.
    fn plain(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let ends = |byte: u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
        let end = rest.bytes().position(ends).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// A string, decoded. Half a surrogate pair is nothing that text can hold.
    fn string(&mut self) -> Result<Cow<'a, str>, NoId> {
        let raw = self.raw_string()?;
        if raw.contains('\\') {
            let decoded = serde_json::from_str(raw).map_err(|_| NoId::WrongType)?;
            return Ok(Cow::Owned(decoded));
        }
        Ok(Cow::Borrowed(&raw[1..raw.len() - 1]))
    }

    /// A string with its quotes.
    fn raw_string(&mut self) -> Result<&'a str, NoId> {
        let rest = &self.text[self.at..];
        let mut end = 1;
        loop {
            let special = |byte: &u8| matches!(byte, b'"' | b'\\');
            let tail = rest.as_bytes().get(end..).ok_or(NoId::Malformed)?;
            end += tail.iter().position(special).ok_or(NoId::Malformed)?;
            if rest.as_bytes()[end] == b'"' {
                break;
            }
            end += 2;
        }
        self.at += end + 1;
        Ok(&rest[..=end])
    }
}
