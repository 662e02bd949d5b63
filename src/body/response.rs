//! The body that the sender gets.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{Ahead, poll_bytes};

pin_project! {
    /// The body of the answer: the inner service's, or one of the layer's own.
    pub struct ResponseBody<B>
    where
        B: Body,
    {
        #[pin]
        kind: ResponseKind<B>,
    }
}

pin_project! {
    #[project = ResponseProj]
    enum ResponseKind<B>
    where
        B: Body,
    {
        Inner { #[pin] body: B },
        Ahead { body: Ahead<B> },
        Own { data: Option<Bytes> },
    }
}

impl<B: Body> ResponseBody<B> {
    pub(crate) const fn inner(body: B) -> Self {
        Self {
            kind: ResponseKind::Inner { body },
        }
    }

    pub(crate) const fn ahead(body: Ahead<B>) -> Self {
        Self {
            kind: ResponseKind::Ahead { body },
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

impl<B: Body> Default for ResponseBody<B> {
    /// An empty body, as middleware outside may need for answers of its own.
    fn default() -> Self {
        Self::own(Bytes::new())
    }
}

impl<B: Body> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            ResponseKind::Inner { .. } | ResponseKind::Ahead { .. } => "ResponseBody(inner)",
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
            ResponseProj::Ahead { body } => body.poll_frame(cx),
            ResponseProj::Own { data } => {
                Poll::Ready(data.take().map(|data| Ok(Frame::data(data))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            ResponseKind::Inner { body } => body.is_end_stream(),
            ResponseKind::Ahead { body } => body.is_end_stream(),
            ResponseKind::Own { data } => data.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            ResponseKind::Inner { body } => body.size_hint(),
            ResponseKind::Ahead { body } => body.size_hint(),
            ResponseKind::Own { data } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
        }
    }
}
