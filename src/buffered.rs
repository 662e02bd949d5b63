//! A request whose whole body is here.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    mem::take,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue, Request, Response, Uri, header::CONTENT_LENGTH, request::Parts,
};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::{task::yield_now, time::timeout};

use crate::{BodyHash, Delivery, Refusal, RequestBody, identity::BodyHasher};

/// A request whose body is read, or being read.
#[derive(Clone)]
pub(crate) struct Buffered {
    pub(crate) parts: Parts,
    pub(crate) data: Bytes,
    trailers: Option<Box<HeaderMap>>,
}

impl Buffered {
    /// A request of whose body nothing is here.
    pub(crate) const fn unread(parts: Parts) -> Self {
        Self {
            parts,
            data: Bytes::new(),
            trailers: None,
        }
    }

    /// Reads and hashes, in one pass, a body of at most `limit` bytes within `time`. One that comes
    /// in a single frame is not hashed: it may be known.
    pub(crate) async fn read<B: Body>(
        &mut self,
        body: B,
        limit: usize,
        time: Duration,
    ) -> Result<Option<BodyHash>, Refusal> {
        // What is known to be too long is refused unread.
        if is_too_long(&self.parts, &body, limit) {
            return Err(Refusal::BodyTooLarge { limit });
        }
        let (mut reading, body) = (Reading::default(), pin!(body));
        reading.read_in_time(body, limit, time).await?;
        Ok(reading.finish(self))
    }

    /// The same, but what cannot be read in full comes back, as it came, if it still is there.
    pub(crate) async fn read_or_resume<B: Body>(
        &mut self,
        body: B,
        limit: usize,
        time: Duration,
    ) -> Result<Option<BodyHash>, (Refusal, Option<RequestBody<B>>)> {
        if is_too_long(&self.parts, &body, limit) {
            let body = RequestBody::streaming(body);
            return Err((Refusal::BodyTooLarge { limit }, Some(body)));
        }
        let (mut reading, mut body) = (Reading::default(), Box::pin(body));
        match reading.read_in_time(body.as_mut(), limit, time).await {
            Ok(()) => Ok(reading.finish(self)),
            Err(Refusal::BodyBroken) => Err((Refusal::BodyBroken, None)),
            Err(refusal) => {
                let body = RequestBody::resumed(reading.into_pieces(), body);
                Err((refusal, Some(body)))
            }
        }
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
            trailers: trailers.map(|trailers| Box::new(owned_headers(&trailers))),
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
        let headers = headers.chain(self.trailers.iter().flat_map(|trailers| trailers.iter()));
        let headers = headers.map(|(name, value)| name.as_str().len() + value.len() + PER_HEADER);
        let target = self.parts.uri.path_and_query();
        let target = target.map_or(0, |target| target.as_str().len());
        PER_REQUEST + self.data.len() + target + headers.sum::<usize>()
    }
}

fn is_too_long(parts: &Parts, body: &impl Body, limit: usize) -> bool {
    declared(&parts.headers).max(body.size_hint().lower()) > limit as u64
}

fn declared(headers: &HeaderMap) -> u64 {
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

/// After so many frames without data, which count against no limit, others get their turn, and the
/// time is looked at.
const EMPTY_FRAMES: usize = 64;

/// What of a body is here.
#[derive(Default)]
struct Reading {
    hasher: BodyHasher,
    /// A body of a single frame is not copied.
    first: Bytes,
    /// All of it, where there are several.
    all: BytesMut,
    /// The frame with which it got too long.
    over: Bytes,
    trailers: Option<Box<HeaderMap>>,
}

impl Reading {
    async fn read_in_time<B: Body>(
        &mut self,
        body: Pin<&mut B>,
        limit: usize,
        time: Duration,
    ) -> Result<(), Refusal> {
        let mut read = pin!(self.read(body, limit));
        // Most bodies are here already, and need no timer.
        match poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await {
            Poll::Ready(read) => read,
            Poll::Pending => match Box::pin(timeout(time, read)).await {
                Ok(read) => read,
                Err(_) => Err(Refusal::BodyTimedOut),
            },
        }
    }

    async fn read<B: Body>(&mut self, mut body: Pin<&mut B>, limit: usize) -> Result<(), Refusal> {
        let mut empty: usize = 0;
        while let Some(data) = body.frame().await.map(|frame| self.accept(frame)) {
            let data = data?;
            // Such as the one that ends a stream of HTTP/2: the body still has a single frame.
            if data.is_empty() {
                empty += 1;
                if empty.is_multiple_of(EMPTY_FRAMES) {
                    yield_now().await;
                }
                continue;
            }
            let so_far = self.first.len().max(self.all.len());
            if data.len() > limit - so_far {
                self.over = data;
                return Err(Refusal::BodyTooLarge { limit });
            }
            if so_far == 0 {
                self.first = data;
                continue;
            }
            if self.all.is_empty() {
                self.hasher.update(&self.first);
                self.all.extend_from_slice(&self.first);
            }
            self.hasher.update(&data);
            self.all.extend_from_slice(&data);
        }
        Ok(())
    }

    /// The data of a frame; its trailers are kept.
    fn accept<D: Buf, E>(&mut self, frame: Result<Frame<D>, E>) -> Result<Bytes, Refusal> {
        match frame.map_err(|_| Refusal::BodyBroken)?.into_data() {
            Ok(mut data) => Ok(data.copy_to_bytes(data.remaining())),
            Err(frame) => {
                self.trailers = frame.into_trailers().ok().map(Box::new);
                Ok(Bytes::new())
            }
        }
    }

    fn finish(mut self, request: &mut Buffered) -> Option<BodyHash> {
        let hash = (!self.all.is_empty()).then(|| take(&mut self.hasher).finish());
        request.data = self.data();
        request.trailers = self.trailers;
        hash
    }

    fn into_pieces(mut self) -> VecDeque<Bytes> {
        let pieces = [self.data(), self.over].into_iter();
        pieces.filter(|piece| !piece.is_empty()).collect()
    }

    fn data(&mut self) -> Bytes {
        if self.all.is_empty() {
            take(&mut self.first)
        } else {
            take(&mut self.all).freeze()
        }
    }
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
