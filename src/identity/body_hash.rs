//! SHA-256 of a request body.

use std::{fmt, str::FromStr};

use sha2::{Digest, Sha256};

/// SHA-256 of a raw request body; shown as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BodyHash([u8; 32]);

impl BodyHash {
    /// Hashes a whole body.
    #[must_use]
    pub fn of(body: &[u8]) -> Self {
        Self(Sha256::digest(body).into())
    }

    /// The 32 bytes of the hash.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The hash as ASCII hex, without an allocation.
    pub(super) fn to_hex(self) -> [u8; 64] {
        let mut hex = [0; 64];
        let written = hex::encode_to_slice(self.0, &mut hex);
        debug_assert!(written.is_ok(), "64 digits hold 32 bytes");
        hex
    }
}

impl fmt::Display for BodyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.to_hex()).unwrap_or_default())
    }
}

impl fmt::Debug for BodyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BodyHash({self})")
    }
}

impl FromStr for BodyHash {
    type Err = hex::FromHexError;

    /// Reads 64 hex digits.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes)?;
        Ok(Self(bytes))
    }
}

/// Hashes a body frame by frame, while it is read.
#[derive(Default)]
pub(crate) struct BodyHasher(Sha256);

impl BodyHasher {
    pub(crate) fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    pub(crate) fn finish(self) -> BodyHash {
        BodyHash(self.0.finalize().into())
    }
}
