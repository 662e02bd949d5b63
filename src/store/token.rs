//! Who holds a lease.

use std::{
    cell::RefCell,
    fmt, process,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::BodyHash;

/// Names one attempt at one event: 128 random bits, shown as 32 lower-case hex digits.
///
/// Unique across processes and restarts. A counter would not be: one that is kept with the key
/// dies with the key and repeats.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// A new token from the operating system's randomness.
    #[must_use]
    pub fn random() -> Self {
        thread_local!(static POOL: RefCell<Pool> = const { RefCell::new(Pool::EMPTY) });
        let drawn = POOL.try_with(|pool| pool.try_borrow_mut().ok()?.draw());
        drawn.ok().flatten().unwrap_or_else(Self::improvised)
    }

    /// Unique, though not random. A request must not fail for want of entropy.
    fn improvised() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let text = format!(
            "{} {count} {:?} {:p}",
            process::id(),
            SystemTime::now(),
            &count
        );
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&BodyHash::of(text.as_bytes()).as_bytes()[..16]);
        Self(bytes)
    }

    /// The 16 bytes of the token.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The token as ASCII hex, without an allocation.
    pub(crate) fn to_hex(self) -> [u8; 32] {
        let mut hex = [0; 32];
        let written = hex::encode_to_slice(self.0, &mut hex);
        debug_assert!(written.is_ok(), "32 digits hold 16 bytes");
        hex
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.to_hex()).unwrap_or_default())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

/// Randomness for some tokens, which costs about as much as for one: a system call.
struct Pool {
    bytes: [u8; Self::SIZE],
    left: usize,
}

impl Pool {
    const SIZE: usize = 32 * size_of::<Token>();

    const EMPTY: Self = Self {
        bytes: [0; Self::SIZE],
        left: 0,
    };

    /// `None` if the system has no randomness.
    fn draw(&mut self) -> Option<Token> {
        if self.left == 0 {
            getrandom::fill(&mut self.bytes).ok()?;
            self.left = Self::SIZE;
        }
        let (rest, drawn) = self.bytes[..self.left].split_last_chunk_mut::<16>()?;
        self.left = rest.len();
        let token = u128::from_ne_bytes(std::mem::take(drawn));
        // A fork of this process, or a copy of its virtual machine, has the same pool. It does not
        // draw from it in the same nanosecond.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_nanos());
        Some(Token((token ^ now).to_ne_bytes()))
    }
}

/// The text is not a [`Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseTokenError;

impl fmt::Display for ParseTokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a token of 32 hex digits")
    }
}

impl std::error::Error for ParseTokenError {}

impl FromStr for Token {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| ParseTokenError)?;
        Ok(Self(bytes))
    }
}
