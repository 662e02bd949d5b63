//! A body is kept where all of it is there, and goes out as it is otherwise.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, StreamBody};
use tower::{Layer, ServiceExt};

use crate::{
    MOST, answering, assert_plain,
    http_support::{post, send},
    record, replaying,
    stores::MemoryStore,
};

/// What a body does when it is polled.
#[derive(Clone, Debug)]
enum Step {
    Data(&'static str),
    Trailers,
    /// It is not there yet.
    Later,
    Breaks,
}

/// A body that does as it is told, and says that it has so many bytes.
#[derive(Clone)]
struct Scripted {
    steps: VecDeque<Step>,
    left: Option<u64>,
}

impl Scripted {
    fn new(left: Option<u64>, steps: &[Step]) -> Self {
        Self {
            steps: steps.iter().cloned().collect(),
            left,
        }
    }
}

impl Body for Scripted {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(match self.steps.pop_front() {
            None => None,
            Some(Step::Data(data)) => {
                self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                Some(Ok(Frame::data(data.into())))
            }
            Some(Step::Trailers) => {
                let mut trailers = HeaderMap::new();
                trailers.insert("x-trailer", HeaderValue::from_static("last"));
                Some(Ok(Frame::trailers(trailers)))
            }
            Some(Step::Later) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Some(Step::Breaks) => Some(Err(io::Error::other("it broke off"))),
        })
    }

    fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// What the sender gets, frame by frame; and how long the body says that it is.
async fn frames<B>(body: B) -> (Option<u64>, Vec<String>)
where
    B: Body<Data = Bytes, Error: ToString>,
{
    let mut body = std::pin::pin!(body);
    let exact = body.size_hint().exact();
    let mut frames = Vec::new();
    while let Some(frame) = body.frame().await {
        frames.push(match frame {
            Err(error) => error.to_string(),
            Ok(frame) => match frame.into_data() {
                Ok(data) => String::from_utf8(data.to_vec()).unwrap(),
                Err(frame) => format!("{:?}", frame.into_trailers().unwrap()),
            },
        });
    }
    (exact, frames)
}

async fn sent_and_kept(body: Scripted) -> bool {
    let bare = frames(body.clone()).await;
    let layer = replaying(MemoryStore::new());
    let copy = body.clone();
    let service = layer.layer(answering(move |_| Response::new(copy.clone())));
    let first = service.clone().oneshot(post("e1")).await.unwrap();
    assert_eq!(
        frames(first.into_body()).await,
        bare,
        "as without the layer"
    );
    let kept = record(&layer).await.answer().map(|it| it.body().clone());
    let answer = send(&service, post("e1")).await;
    assert_eq!(answer.brief(), (200, "duplicate"));
    match &kept {
        Some(kept) => assert_eq!(answer.body, *kept),
        None => assert_plain(&answer),
    }
    kept.is_some()
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_all_there_is_kept_however_it_is_cut() {
    use Step::Data;
    for (length, steps) in [
        (0, &[][..]),
        (0, &[Data("")]),
        (5, &[Data("hello")]),
        (5, &[Data("he"), Data(""), Data("llo")]),
    ] {
        let kept = sent_and_kept(Scripted::new(Some(length), steps)).await;
        assert!(kept, "{steps:?}");
    }
    let most: &'static str = Box::leak("x".repeat(MOST).into());
    assert!(sent_and_kept(Scripted::new(Some(MOST as u64), &[Data(most)])).await);
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_not_kept_and_goes_out_as_it_is() {
    use Step::{Breaks, Data, Later, Trailers};
    for (length, steps) in [
        // Of unknown length.
        (None, &[Data("hello")][..]),
        (None, &[]),
        // Too long.
        (Some(MOST as u64 + 1), &[Data("hello")]),
        (Some(u64::MAX), &[Data("hello")]),
        // Not there yet.
        (Some(5), &[Later, Data("hello")]),
        (Some(5), &[Data("he"), Later, Data("llo")]),
        (Some(5), &[Data("hello"), Later]),
        // It breaks off.
        (Some(5), &[Breaks]),
        (Some(5), &[Data("he"), Breaks]),
        (Some(5), &[Data("hello"), Breaks]),
        // With trailers, which would be missing.
        (Some(5), &[Data("hello"), Trailers]),
        // It lied.
        (Some(5), &[Data("he")]),
        (Some(5), &[Data("hello"), Data("!")]),
        (Some(5), &[Data("hello!")]),
    ] {
        let kept = sent_and_kept(Scripted::new(length, steps)).await;
        assert!(!kept, "{length:?}, {steps:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_of_many_pieces_is_read_no_further_than_a_stream() {
    // It never ends, and is always there.
    let endless = stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::new())));
    let (length, most) = (AtomicUsize::new(0), 100_000);
    let counted = Arc::new(length);
    let polled = counted.clone();
    let service = replaying(MemoryStore::new()).layer(answering(move |_| {
        let polled = polled.clone();
        let endless = futures_util::StreamExt::inspect(endless.clone(), move |_| {
            polled.fetch_add(1, Ordering::SeqCst);
        });
        Response::new(Sized(StreamBody::new(endless)))
    }));
    let response = service.oneshot(post("e1")).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(counted.load(Ordering::SeqCst) < most);
}

/// A body that says that it has one byte.
struct Sized<B>(B);

impl<B: Body + Unpin> Body for Sized<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(1)
    }
}

#[tokio::test(start_paused = true)]
async fn any_bytes_are_given_back() {
    let bytes: Bytes = (0..=255).collect::<Vec<u8>>().into();
    let body = bytes.clone();
    let layer = replaying(MemoryStore::new());
    let service = layer.layer(answering(move |_| {
        Response::new(Full::<Bytes>::from(body.clone()))
    }));
    for _ in 0..2 {
        let answer = service.clone().oneshot(post("e1")).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, bytes);
    }
}
