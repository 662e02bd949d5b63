//! The key under which a store keeps one event.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
    sync::Arc,
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use super::{BodyHash, key_map};

const PREFIX: &str = "webhook:lock:";

/// A part whose encoded form is longer is replaced by its hash.
const LONGEST_PART: usize = 200;

/// `webhook:lock:`, two parts and their colons, and the hash.
const LONGEST_KEY: usize = PREFIX.len() + 2 * (LONGEST_PART + 1) + 64;

/// The unreserved characters of RFC 3986 stay as they are: no part can hold a colon, a brace or a
/// control character.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The key of one event: `webhook:lock:{namespace}:{event id}:{hex SHA-256 of the body}`.
///
/// Always these five parts; without a body hash the last is `*`. Every byte of namespace and id
/// outside `A-Z a-z 0-9 . _ ~ -` is percent-encoded, so parts cannot run together, and braces
/// cannot choose a [slot of a Redis Cluster]. A part whose encoded form is over 200 bytes becomes
/// `=` and its SHA-256. Two keys are equal only if namespace, id and hash are.
///
/// A key is cheap to clone.
///
/// ```
/// use tower_webhook_dedup::{BodyHash, Key};
///
/// assert_eq!(Key::new("billing", "evt_1").as_str(), "webhook:lock:billing:evt_1:*");
/// assert_eq!(Key::new("a:b", "c").as_str(), "webhook:lock:a%3Ab:c:*");
///
/// let key = Key::with_hash("billing", "evt_1", BodyHash::of(b"{}"));
/// assert_eq!(key.as_str().parse::<Key>(), Ok(key));
/// ```
///
/// [slot of a Redis Cluster]: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags
#[derive(Clone)]
pub struct Key {
    text: Arc<str>,
    /// Of the text, made once: several maps and shards ask for it with every request.
    hash: u64,
}

impl Key {
    fn of(text: &str) -> Self {
        Self {
            text: text.into(),
            hash: key_map::hash(text),
        }
    }

    /// The key of an event that its id alone identifies.
    #[must_use]
    pub fn new(namespace: impl AsRef<str>, id: impl AsRef<str>) -> Self {
        Builder::new(namespace.as_ref())
            .part(id.as_ref())
            .finish(b"*")
    }

    /// The key of an event that its id and its body identify together.
    #[must_use]
    pub fn with_hash(namespace: impl AsRef<str>, id: impl AsRef<str>, hash: BodyHash) -> Self {
        let builder = Builder::new(namespace.as_ref()).part(id.as_ref());
        builder.finish(&hash.to_hex())
    }

    /// The key of a request without an id: `request` is the hash of what stands in for it.
    ///
    /// No id encodes to a part that starts with `!`.
    pub(crate) fn without_id(namespace: &str, request: BodyHash, hash: BodyHash) -> Self {
        let mut builder = Builder::new(namespace);
        builder.push(b"!");
        builder.push(&request.to_hex());
        builder.push(b":");
        builder.finish(&hash.to_hex())
    }

    /// The key as text, as a store keeps it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Differs from process to process.
    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.text == other.text
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

/// The text is not a [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseKeyError;

impl fmt::Display for ParseKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a key of the form webhook:lock:{namespace}:{id}:{hash, or *}")
    }
}

impl std::error::Error for ParseKeyError {}

impl FromStr for Key {
    type Err = ParseKeyError;

    /// Reads a key as it stands in a store or a log.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.strip_prefix(PREFIX).ok_or(ParseKeyError)?.split(':');
        let (Some(namespace), Some(id), Some(hash), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(ParseKeyError);
        };
        let hash_fits = hash == "*" || is_hash(hash);
        let id_fits = is_part(id) || id.strip_prefix('!').is_some_and(is_hash);
        if is_part(namespace) && id_fits && hash_fits {
            Ok(Self::of(text))
        } else {
            Err(ParseKeyError)
        }
    }
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether the text is what [`Builder::part`] writes: encoding what it decodes to gives it back.
fn is_part(text: &str) -> bool {
    if let Some(hash) = text.strip_prefix('=') {
        return is_hash(hash);
    }
    let decoded: Vec<u8> = percent_encoding::percent_decode_str(text).collect();
    text.len() <= LONGEST_PART && percent_encode(&decoded, ENCODED).to_string() == text
}

/// Builds a key on the stack, so that it costs one allocation.
struct Builder {
    bytes: [u8; LONGEST_KEY],
    len: usize,
}

impl Builder {
    fn new(namespace: &str) -> Self {
        let mut builder = Self {
            bytes: [0; LONGEST_KEY],
            len: 0,
        };
        builder.push(PREFIX.as_bytes());
        builder.part(namespace)
    }

    /// Adds a part and its colon.
    fn part(mut self, text: &str) -> Self {
        let start = self.len;
        let fits = percent_encode(text.as_bytes(), ENCODED).all(|piece| {
            let fits = self.len - start + piece.len() <= LONGEST_PART;
            if fits {
                self.push(piece.as_bytes());
            }
            fits
        });
        if !fits {
            self.len = start;
            self.push(b"=");
            self.push(&BodyHash::of(text.as_bytes()).to_hex());
        }
        self.push(b":");
        self
    }

    fn finish(mut self, hash: &[u8]) -> Key {
        self.push(hash);
        let text = str::from_utf8(&self.bytes[..self.len]);
        debug_assert!(text.is_ok(), "all of it is ASCII");
        Key::of(text.unwrap_or_default())
    }

    fn push(&mut self, piece: &[u8]) {
        self.bytes[self.len..self.len + piece.len()].copy_from_slice(piece);
        self.len += piece.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_the_same_hash_are_not_equal_for_that() {
        let (one, mut other) = (Key::new("n", "1"), Key::new("n", "2"));
        other.hash = one.hash;
        assert_ne!(one, other);
    }
}
