//! The body that the inner service gets.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::poll_bytes;

pin_project! {
    /// The body of the request that the inner service gets.
    ///
    /// Buffered where the layer applied to the request: [`bytes`](Self::bytes) has all of it at
    /// once. Else it streams, as it came.
    ///
    /// A layer that takes no body but its own, such as axum's `from_fn`, goes under this one in a
    /// `ServiceBuilder` with `MapRequestBodyLayer::new(axum::body::Body::new)` of `tower-http`
    /// between them. `Router::layer` needs nothing.
    pub struct RequestBody<B> {
        #[pin]
        kind: RequestKind<B>,
    }
}

pin_project! {
    #[project = RequestProj]
    enum RequestKind<B> {
        // The trailers are boxed: hardly ever there, and as large as all the rest.
        Buffered { data: Bytes, trailers: Option<Box<HeaderMap>>, sent: Sent },
        Streaming { #[pin] body: B },
        // Read in part, and given up.
        Resumed { read: VecDeque<Bytes>, rest: Pin<Box<B>> },
    }
}

/// What of a buffered body has been polled out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Nothing,
    Data,
    All,
}

impl<B> RequestBody<B> {
    pub(crate) const fn buffered(data: Bytes, trailers: Option<Box<HeaderMap>>) -> Self {
        Self {
            kind: RequestKind::Buffered {
                data,
                trailers,
                sent: Sent::Nothing,
            },
        }
    }

    pub(crate) const fn streaming(body: B) -> Self {
        Self {
            kind: RequestKind::Streaming { body },
        }
    }

    /// What was read of a body, in pieces, and the rest.
    pub(crate) const fn resumed(read: VecDeque<Bytes>, rest: Pin<Box<B>>) -> Self {
        Self {
            kind: RequestKind::Resumed { read, rest },
        }
    }

    /// The whole body, where it is buffered.
    pub const fn bytes(&self) -> Option<&Bytes> {
        match &self.kind {
            RequestKind::Buffered { data, .. } => Some(data),
            RequestKind::Streaming { .. } | RequestKind::Resumed { .. } => None,
        }
    }
}

impl<B> fmt::Debug for RequestBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            RequestKind::Buffered { data, .. } => write!(f, "RequestBody({} bytes)", data.len()),
            RequestKind::Streaming { .. } | RequestKind::Resumed { .. } => {
                f.write_str("RequestBody(streaming)")
            }
        }
    }
}

impl<B: Body> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let (data, trailers, sent) = match self.project().kind.project() {
            RequestProj::Streaming { body } => return poll_bytes(body, cx),
            RequestProj::Resumed { read, rest } => {
                return match read.pop_front() {
                    Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
                    None => poll_bytes(rest.as_mut(), cx),
                };
            }
            RequestProj::Buffered {
                data,
                trailers,
                sent,
            } => (data, trailers, sent),
        };
        if *sent == Sent::Nothing {
            *sent = Sent::Data;
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(data.clone()))));
            }
        }
        *sent = Sent::All;
        Poll::Ready(
            trailers
                .take()
                .map(|trailers| Ok(Frame::trailers(*trailers))),
        )
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            RequestKind::Streaming { body } => body.is_end_stream(),
            RequestKind::Resumed { read, rest } => read.is_empty() && rest.is_end_stream(),
            RequestKind::Buffered {
                data,
                trailers,
                sent,
            } => trailers.is_none() && (data.is_empty() || *sent != Sent::Nothing),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            RequestKind::Streaming { body } => body.size_hint(),
            RequestKind::Resumed { read, rest } => {
                let read = read.iter().map(Bytes::len).sum::<usize>() as u64;
                let rest = rest.size_hint();
                let mut hint = SizeHint::new();
                hint.set_lower(read + rest.lower());
                if let Some(upper) = rest.upper() {
                    hint.set_upper(read + upper);
                }
                hint
            }
            RequestKind::Buffered {
                data,
                sent: Sent::Nothing,
                ..
            } => SizeHint::with_exact(data.len() as u64),
            RequestKind::Buffered { .. } => SizeHint::with_exact(0),
        }
    }
}
