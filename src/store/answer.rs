//! An answer as a record keeps it, and its form as text.

use std::{borrow::Cow, fmt};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};

use super::ParseEntryError;
use crate::BodyHash;

/// What would end a field, and what is not ASCII; text stays readable.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// The handler's answer to a completed event, kept for its duplicates:
/// [`Duplicate::Replay`](crate::Duplicate::Replay). Its status is [that of the
/// record](crate::Record::status).
#[derive(Clone, PartialEq, Eq)]
pub struct StoredAnswer {
    /// Of method, path and query: the answer is for them alone.
    request: BodyHash,
    headers: HeaderMap,
    body: Bytes,
}

impl StoredAnswer {
    pub(crate) const fn new(request: BodyHash, headers: HeaderMap, body: Bytes) -> Self {
        Self {
            request,
            headers,
            body,
        }
    }

    /// The headers that were kept.
    #[must_use]
    pub const fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The whole body.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// Whether it was the answer to this method, path and query.
    pub(crate) fn is_for(&self, request: BodyHash) -> bool {
        self.request == request
    }

    /// About how much memory it holds, with itself.
    pub(crate) fn size(&self) -> usize {
        // A place in the map, which has some that are free.
        const PER_HEADER: usize = 112;
        let headers = self.headers.iter();
        let texts = headers.map(|(name, value)| name.as_str().len() + value.len());
        let map = self.headers.capacity() * PER_HEADER;
        size_of::<Self>() + self.body.len() + map + texts.sum::<usize>()
    }
}

impl fmt::Debug for StoredAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredAnswer")
            .field("headers", &self.headers.len())
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// The fields of a record that it ends with.
impl fmt::Display for StoredAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encoded = |bytes| percent_encode(bytes, ENCODED);
        write!(f, "request={}", self.request)?;
        for (name, value) in &self.headers {
            write!(f, " header:{name}={}", encoded(value.as_bytes()))?;
        }
        write!(f, " body={}", encoded(&self.body))
    }
}

/// Those fields, as they are read.
#[derive(Default)]
pub(super) struct Fields {
    request: Option<BodyHash>,
    headers: HeaderMap,
    body: Option<Bytes>,
}

impl Fields {
    /// Takes the field, if it is one of them.
    pub(super) fn read(&mut self, field: &str) -> Result<(), ParseEntryError> {
        let Some((name, value)) = field.split_once('=') else {
            return Ok(());
        };
        let decoded = || Cow::from(percent_decode_str(value));
        if let Some(name) = name.strip_prefix("header:") {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| ParseEntryError)?;
            let value = HeaderValue::from_bytes(&decoded()).map_err(|_| ParseEntryError)?;
            let appended = self.headers.try_append(name, value);
            appended.map_err(|_| ParseEntryError)?;
        } else if name == "request" {
            self.request = Some(value.parse().map_err(|_| ParseEntryError)?);
        } else if name == "body" {
            // Without room to grow, which would be held for as long as the answer is.
            self.body = Some(decoded().into_owned().into_boxed_slice().into());
        }
        Ok(())
    }

    /// The answer, if all of it is there.
    pub(super) fn finish(self) -> Option<StoredAnswer> {
        Some(StoredAnswer::new(self.request?, self.headers, self.body?))
    }
}
