//! What passes by although the layer applies: handshakes and probes.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures_util::{FutureExt, stream};
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{Delivery, Operation, Outcome, RequestBody};

use http_support::{Events, Handler, Run, c0, is, post, post_body, send};
use stores::{Fault, Faulty};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

const PROBE: &str = r#"{"id":"e1","type":"probe"}"#;

fn is_probe(_: &http::request::Parts, body: &Bytes) -> bool {
    body == PROBE
}

// R40
#[tokio::test(start_paused = true)]
async fn what_passes_by_reaches_the_handler_each_time_and_makes_no_store_call() {
    let (store, events) = (Faulty::new(), Events::default());
    let handler = Handler::new(|run: Run| async move {
        assert_eq!(run.body(), PROBE);
        assert!(run.request.extensions().get::<Delivery>().is_none());
        418
    });
    let layer = c0(store.clone()).on_event(events.hook()).bypass(is_probe);
    let service = layer.layer(handler.clone());
    for n in ["1", "2", "3"] {
        let answer = send(&service, post_body(PROBE)).await;
        // As the handler made it: no header of ours, no outcome.
        assert_eq!((answer.brief(), answer.headers.len()), ((418, ""), 1));
        assert_eq!(answer.header("x-handler"), Some(n));
        assert_eq!(answer.body, "from the handler");
        assert!(answer.extensions.get::<Outcome>().is_none());
    }
    assert_eq!(handler.runs(), 3);
    assert!(store.calls().is_empty());
    assert!(store.inner.is_empty());
    assert_eq!(events.count(is!(Bypassed)), 3);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_pass_by_is_deduplicated() {
    let handler = Handler::ok();
    let service = c0(Faulty::new()).bypass(is_probe).layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn probes_pass_by_while_the_store_is_broken() {
    let service = c0(Faulty::broken(Operation::Acquire, Fault::UNREACHABLE))
        .bypass(is_probe)
        .layer(Handler::ok());
    assert_eq!(send(&service, post_body(PROBE)).await.brief(), (200, ""));
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "refused"));
}

#[tokio::test(start_paused = true)]
async fn the_whole_body_is_there_to_be_looked_at_and_comes_through_with_its_trailers() {
    let inner = service_fn(|request: Request<RequestBody<_>>| async move {
        let body = request.into_body().collect().await.unwrap();
        assert_eq!(body.trailers().unwrap()["x-sum"], "7");
        Ok::<_, Infallible>(Response::new(Full::new(body.to_bytes())))
    });
    let trailers: HeaderMap = [("x-sum".parse().unwrap(), "7".parse().unwrap())]
        .into_iter()
        .collect();
    let pieces = PROBE.as_bytes().chunks(5);
    let frames: Vec<_> = pieces
        .map(|piece| Frame::data(Bytes::copy_from_slice(piece)))
        .chain([Frame::trailers(trailers)])
        .map(Ok::<_, Infallible>)
        .collect();
    let body = StreamBody::new(stream::iter(frames));
    let service = c0(Faulty::new()).bypass(is_probe).layer(inner);
    let answer = service
        .oneshot(Request::post("/").body(body).unwrap())
        .await;
    let answer = answer.unwrap().into_body().collect().await.unwrap();
    assert_eq!(answer.to_bytes(), PROBE);
}

#[tokio::test(start_paused = true)]
async fn a_body_over_the_limit_is_refused_before_anybody_is_asked() {
    let layer = c0(Faulty::new()).max_body(8);
    let service = layer.bypass(|_, _| panic!("asked")).layer(Handler::ok());
    assert_eq!(send(&service, post("e1")).await.brief(), (413, "refused"));
}

#[tokio::test(start_paused = true)]
async fn where_the_layer_does_not_apply_nobody_is_asked() {
    let layer = c0(Faulty::new()).applies_to(|_| false);
    let service = layer.bypass(|_, _| panic!("asked")).layer(Handler::ok());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, ""));
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_being_asked_touches_nothing() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    let layer = c0(store.clone()).bypass(|_, _| panic!("a bug"));
    let service = layer.layer(handler.clone());
    let answer = std::panic::AssertUnwindSafe(send(&service, post("e1")));
    assert!(answer.catch_unwind().await.is_err());
    assert_eq!(handler.runs(), 0);
    assert!(store.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_handler_comes_out_as_it_is() {
    let inner = service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Err::<Response<Full<Bytes>>, _>(Arc::new("broken"))
    });
    let service = c0(Faulty::new()).bypass(is_probe).layer(inner);
    let error = service.oneshot(post_body(PROBE)).await.unwrap_err();
    assert_eq!(*error, "broken");
}
