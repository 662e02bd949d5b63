//! A request whose whole body is here.

use std::{sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue, Request, Response, Uri, header::CONTENT_LENGTH, request::Parts,
};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::{BodyHash, Delivery, Refusal, RequestBody, identity::BodyHasher};

/// A request, read.
#[derive(Clone)]
pub(crate) struct Buffered {
    pub(crate) parts: Parts,
    pub(crate) data: Bytes,
    trailers: Option<HeaderMap>,
}

impl Buffered {
    /// Reads and hashes, in one pass, a body of at most `limit` bytes within `time`.
    pub(crate) async fn read<B: Body>(
        parts: Parts,
        body: B,
        limit: usize,
        time: Duration,
    ) -> Result<(Self, BodyHash), Refusal> {
        // What is known to be too long is refused unread.
        if declared(&parts.headers).max(body.size_hint().lower()) > limit as u64 {
            return Err(Refusal::BodyTooLarge { limit });
        }
        let read = timeout(time, collect(body, limit)).await;
        let (data, trailers, hash) = read.unwrap_or(Err(Refusal::BodyTimedOut))?;
        Ok((
            Self {
                parts,
                data,
                trailers,
            },
            hash,
        ))
    }

    /// The request for the inner service, as it came.
    pub(crate) fn into_request<B>(self, delivery: Option<Delivery>) -> Request<RequestBody<B>> {
        let Self {
            mut parts,
            data,
            trailers,
        } = self;
        if let Some(delivery) = delivery {
            parts.extensions.insert(delivery);
        }
        Request::from_parts(parts, RequestBody::buffered(data, trailers))
    }

    /// An answer with nothing in it. It takes over the maps of the request, emptied: they have room,
    /// and new ones would cost most of the allocations of a duplicate.
    pub(crate) fn into_blank(self) -> Response<()> {
        let (mut headers, mut extensions) = (self.parts.headers, self.parts.extensions);
        headers.clear();
        extensions.clear();
        let mut blank = Response::new(());
        *blank.headers_mut() = headers;
        *blank.extensions_mut() = extensions;
        blank
    }

    /// The same request in memory of its own. A server's requests share its read buffers, which
    /// a small one that is kept would keep alive whole.
    pub(crate) fn into_owned(self) -> Self {
        let Self {
            mut parts,
            data,
            trailers,
        } = self;
        parts.headers = owned_headers(&parts.headers);
        parts.uri = owned_uri(parts.uri);
        let data = Bytes::copy_from_slice(&data);
        Self {
            parts,
            data,
            trailers: trailers.as_ref().map(owned_headers),
        }
    }

    /// The request as it is reported.
    pub(crate) fn to_request(&self) -> Arc<Request<Bytes>> {
        Arc::new(Request::from_parts(self.parts.clone(), self.data.clone()))
    }

    /// Whether this is the request, once more.
    pub(crate) fn is_same(&self, request: &Request<Bytes>) -> bool {
        self.data == request.body()
            && self.parts.headers == *request.headers()
            && self.parts.uri == *request.uri()
            && self.parts.method == *request.method()
    }

    /// About how much memory it holds; what is in the extensions is not counted.
    pub(crate) fn size(&self) -> usize {
        const PER_REQUEST: usize = 1024;
        const PER_HEADER: usize = 64;
        let headers = self.parts.headers.iter();
        let headers = headers.chain(self.trailers.iter().flatten());
        let headers = headers.map(|(name, value)| name.as_str().len() + value.len() + PER_HEADER);
        let target = self.parts.uri.path_and_query();
        let target = target.map_or(0, |target| target.as_str().len());
        PER_REQUEST + self.data.len() + target + headers.sum::<usize>()
    }
}

fn declared(headers: &HeaderMap) -> u64 {
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

async fn collect<B: Body>(
    body: B,
    limit: usize,
) -> Result<(Bytes, Option<HeaderMap>, BodyHash), Refusal> {
    let mut body = std::pin::pin!(body);
    let mut hasher = BodyHasher::default();
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        let mut data = match frame.map_err(|_| Refusal::BodyBroken)?.into_data() {
            Ok(data) => data,
            Err(frame) => {
                trailers = frame.into_trailers().ok();
                continue;
            }
        };
        let so_far = first.len().max(all.len());
        if data.remaining() > limit - so_far {
            return Err(Refusal::BodyTooLarge { limit });
        }
        let data = data.copy_to_bytes(data.remaining());
        hasher.update(&data);
        if so_far == 0 {
            // A body of a single frame is not copied.
            first = data;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
    }
    let data = if all.is_empty() { first } else { all.freeze() };
    Ok((data, trailers, hasher.finish()))
}

pub(crate) fn owned_headers(headers: &HeaderMap) -> HeaderMap {
    let mut owned = HeaderMap::with_capacity(headers.keys_len());
    for (name, value) in headers {
        let mut copy = HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone());
        copy.set_sensitive(value.is_sensitive());
        owned.append(name, copy);
    }
    owned
}

fn owned_uri(uri: Uri) -> Uri {
    let copy = uri.to_string().parse();
    copy.ok().filter(|copy| *copy == uri).unwrap_or(uri)
}
