//! A body of which a part was read before anybody asked for it.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

use super::poll_bytes;

/// A body that comes in more frames is not read to its end.
const MOST_FRAMES: usize = 1024;

/// What was read of a body, and the rest of it. Whoever polls it gets what the handler made, frame
/// by frame.
pub(crate) struct Ahead<B: Body> {
    read: VecDeque<Result<Frame<Bytes>, B::Error>>,
    /// `None` once it has ended.
    rest: Option<Pin<Box<B>>>,
    /// How many bytes are left, as the body said.
    left: u64,
}

impl<B: Body> Ahead<B> {
    /// Reads a body that says that it has so many bytes, as far as it is there: nobody waits for
    /// it. With it come its data, in memory of their own, if that was all, and nothing else.
    pub(crate) fn read(body: B, length: usize) -> (Self, Option<Bytes>) {
        let mut ahead = Self {
            read: VecDeque::new(),
            rest: Some(Box::pin(body)),
            left: length as u64,
        };
        let data = ahead.read_all(length);
        (ahead, data)
    }

    fn read_all(&mut self, length: usize) -> Option<Bytes> {
        let mut data = BytesMut::with_capacity(length);
        let mut nobody = Context::from_waker(Waker::noop());
        while let Some(rest) = self.rest.as_mut().filter(|rest| !rest.is_end_stream()) {
            let Poll::Ready(frame) = poll_bytes(rest.as_mut(), &mut nobody) else {
                return None;
            };
            let Some(frame) = frame else { break };
            let piece = frame.as_ref().ok().and_then(Frame::data_ref);
            let fits = piece.is_some_and(|piece| {
                let fits = piece.len() <= length - data.len();
                if fits {
                    data.extend_from_slice(piece);
                }
                fits
            });
            self.read.push_back(frame);
            if !fits || self.read.len() >= MOST_FRAMES {
                return None;
            }
        }
        self.rest = None;
        (data.len() == length).then(|| data.freeze())
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = match (self.read.pop_front(), &mut self.rest) {
            (Some(frame), _) => Some(frame),
            (None, Some(rest)) => ready!(poll_bytes(rest.as_mut(), cx)),
            (None, None) => None,
        };
        if let Some(Ok(frame)) = &frame {
            let data = frame.data_ref().map_or(0, Bytes::len);
            self.left = self.left.saturating_sub(data as u64);
        }
        Poll::Ready(frame)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let rest = self.rest.as_ref();
        self.read.is_empty() && rest.is_none_or(|rest| rest.is_end_stream())
    }

    /// Of a body that breaks off, too, as it was promised: so the server sees that it did.
    pub(super) fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
