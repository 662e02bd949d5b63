//! The bodies on both sides of the layer.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of the request that the inner service gets.
    ///
    /// Buffered where the layer applied to the request: [`bytes`](Self::bytes) has all of it at
    /// once. Else it streams, as it came.
    pub struct RequestBody<B> {
        #[pin]
        kind: RequestKind<B>,
    }
}

pin_project! {
    #[project = RequestProj]
    enum RequestKind<B> {
        Buffered { data: Bytes, trailers: Option<HeaderMap>, sent: Sent },
        Streaming { #[pin] body: B },
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
    pub(crate) const fn buffered(data: Bytes, trailers: Option<HeaderMap>) -> Self {
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

    /// The whole body, where it is buffered.
    pub const fn bytes(&self) -> Option<&Bytes> {
        match &self.kind {
            RequestKind::Buffered { data, .. } => Some(data),
            RequestKind::Streaming { .. } => None,
        }
    }
}

impl<B> fmt::Debug for RequestBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            RequestKind::Buffered { data, .. } => write!(f, "RequestBody({} bytes)", data.len()),
            RequestKind::Streaming { .. } => f.write_str("RequestBody(streaming)"),
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
                .map(|trailers| Ok(Frame::trailers(trailers))),
        )
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            RequestKind::Streaming { body } => body.is_end_stream(),
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
            RequestKind::Buffered {
                data,
                sent: Sent::Nothing,
                ..
            } => SizeHint::with_exact(data.len() as u64),
            RequestKind::Buffered { .. } => SizeHint::with_exact(0),
        }
    }
}

pin_project! {
    /// The body of the answer: the inner service's, or one of the layer's own.
    pub struct ResponseBody<B> {
        #[pin]
        kind: ResponseKind<B>,
    }
}

pin_project! {
    #[project = ResponseProj]
    enum ResponseKind<B> {
        Inner { #[pin] body: B },
        Own { data: Option<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    pub(crate) const fn inner(body: B) -> Self {
        Self {
            kind: ResponseKind::Inner { body },
        }
    }

    pub(crate) fn own(data: Bytes) -> Self {
        Self {
            kind: ResponseKind::Own {
                data: Some(data).filter(|data| !data.is_empty()),
            },
        }
    }
}

impl<B> Default for ResponseBody<B> {
    /// An empty body, as middleware outside may need for answers of its own.
    fn default() -> Self {
        Self::own(Bytes::new())
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            ResponseKind::Inner { .. } => "ResponseBody(inner)",
            ResponseKind::Own { .. } => "ResponseBody(own)",
        })
    }
}

impl<B: Body> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            ResponseProj::Inner { body } => poll_bytes(body, cx),
            ResponseProj::Own { data } => {
                Poll::Ready(data.take().map(|data| Ok(Frame::data(data))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            ResponseKind::Inner { body } => body.is_end_stream(),
            ResponseKind::Own { data } => data.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            ResponseKind::Inner { body } => body.size_hint(),
            ResponseKind::Own { data } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
        }
    }
}

/// A frame with its data as `Bytes`; where they are that already, nothing is copied.
fn poll_bytes<B: Body>(
    body: Pin<&mut B>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
    let frame = ready!(body.poll_frame(cx));
    Poll::Ready(frame.map(|frame| {
        frame.map(|frame| frame.map_data(|mut data| data.copy_to_bytes(data.remaining())))
    }))
}
