//! The bodies on both sides of the layer.

mod ahead;
mod request;
mod response;

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame};

pub(crate) use self::ahead::Ahead;
pub use self::{request::RequestBody, response::ResponseBody};

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
