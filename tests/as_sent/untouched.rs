//! What the layer does not apply to passes as if it were not there.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use tokio::{sync::mpsc, time::timeout};
use tower::{Layer, service_fn};
use tower_webhook_dedup::{Delivery, Outcome, RequestBody};

use crate::{
    AnyBody,
    http_support::{Handler, Run, c0, post, secs, send, send_later},
    stores::Faulty,
};

/// R40
#[tokio::test(start_paused = true)]
async fn what_the_layer_does_not_apply_to_passes_untouched() {
    let store = Faulty::new();
    let handler = Handler::new(|run: Run| async move {
        assert!(run.request.body().bytes().is_none(), "it streams");
        assert!(run.request.extensions().get::<Delivery>().is_none());
        200
    });
    let service = c0(store.clone()).layer(handler.clone());
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT] {
        for _ in 0..2 {
            let mut request = post("e1");
            *request.method_mut() = method.clone();
            *request.uri_mut() = "/hooks/x?hub.challenge=123".parse().unwrap();
            let answer = send(&service, request).await;
            assert_eq!((answer.brief(), answer.headers.len()), ((200, ""), 1));
            assert_eq!(answer.body, "from the handler");
            assert!(answer.extensions.get::<Outcome>().is_none());
        }
    }
    assert_eq!(handler.runs(), 8);
    assert!(store.calls().is_empty());
}

/// R40
#[tokio::test(start_paused = true)]
async fn a_body_that_the_layer_does_not_apply_to_streams_through() {
    let (frames, mut to_come) = mpsc::unbounded_channel::<Bytes>();
    let (seen, mut handler_saw) = mpsc::unbounded_channel::<Bytes>();
    let inner = service_fn(move |request: Request<RequestBody<AnyBody>>| {
        let seen = seen.clone();
        async move {
            let mut body = request.into_body();
            let mut trailers = None;
            while let Some(frame) = body.frame().await {
                match frame.unwrap().into_data() {
                    Ok(data) => seen.send(data).unwrap(),
                    Err(frame) => trailers = frame.into_trailers().ok(),
                }
            }
            let sum = trailers.unwrap()["x-sum"].clone();
            let response = Response::builder().header("x-sum", sum);
            Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).unwrap())
        }
    });
    // Beyond the limit on bodies, too.
    let service = c0(Faulty::new()).max_body(1).layer(inner);
    let stream = futures_util::stream::poll_fn(move |cx| {
        to_come
            .poll_recv(cx)
            .map(|data| data.map(|data| Ok(Frame::data(data))))
    });
    let trailers = HeaderMap::from_iter([(
        http::HeaderName::from_static("x-sum"),
        HeaderValue::from_static("s"),
    )]);
    let end = futures_util::stream::iter([Ok(Frame::trailers(trailers))]);
    let stream = futures_util::StreamExt::chain(stream, end);
    let request = Request::get("/")
        .body(UnsyncBoxBody::new(StreamBody::new(stream)))
        .unwrap();
    let answer = send_later(&service, request);
    for part in ["one", "two", "three"] {
        frames.send(part.into()).unwrap();
        let saw = timeout(secs(60), handler_saw.recv()).await;
        assert_eq!(saw.expect("it streams").unwrap(), part);
    }
    drop(frames);
    assert_eq!(answer.await.unwrap().header("x-sum"), Some("s"));
}

#[tokio::test(start_paused = true)]
async fn what_the_layer_applies_to_is_the_users_choice() {
    let handler = Handler::ok();
    let service = c0(Faulty::new())
        .applies_to(|parts| parts.headers.contains_key("x-event"))
        .layer(handler.clone());
    for brief in [(200, ""), (200, "")] {
        assert_eq!(send(&service, post("e1")).await.brief(), brief);
    }
    for brief in [(200, "run"), (200, "duplicate")] {
        let mut request = post("e1");
        *request.method_mut() = Method::PUT;
        let headers = request.headers_mut();
        headers.insert("x-event", HeaderValue::from_static("1"));
        assert_eq!(send(&service, request).await.brief(), brief);
    }
}
