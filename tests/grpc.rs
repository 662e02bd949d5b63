//! Which gRPC calls complete their event: HTTP says 200 to all of them.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Request, Response, response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_webhook_dedup::{EventId, RequestBody, WebhookDedupLayer};

use front::MemoryStore;

#[path = "support/front.rs"]
mod front;

fn layer() -> WebhookDedupLayer<MemoryStore> {
    WebhookDedupLayer::new(MemoryStore::new(), EventId::header("x-event-id"))
}

/// As the docs of `completed_when` have it.
fn is_ok(head: &response::Parts) -> bool {
    let status = head.headers.get("grpc-status");
    head.status.is_success() && status.is_none_or(|status| status == "0")
}

/// Asks for the health of a service, as event `e1`.
fn call(service: &str) -> Request<Full<Bytes>> {
    // Field 1 of the message, behind a flag and the length of the message.
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    let message = [&[0x0a, length(service)], service.as_bytes()].concat();
    let frame = [&[0, 0, 0, 0, length(service) + 2], &message[..]].concat();
    Request::post("/grpc.health.v1.Health/Check")
        .header("content-type", "application/grpc")
        .header("x-event-id", "e1")
        .body(Full::from(frame))
        .unwrap()
}

/// What became of a call, and the gRPC status in its header and in its trailers.
async fn send<S, R>(
    service: &S,
    request: Request<Full<Bytes>>,
) -> (String, Option<HeaderValue>, Option<HeaderValue>)
where
    S: Service<Request<Full<Bytes>>, Response = Response<R>, Error = Infallible> + Clone,
    R: Body<Error: std::fmt::Debug>,
{
    let answer = service.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let outcome = answer.headers()["webhook-dedup"]
        .to_str()
        .unwrap()
        .to_owned();
    let header = answer.headers().get("grpc-status").cloned();
    let body = answer.into_body().collect().await.unwrap();
    let trailer = body
        .trailers()
        .and_then(|it| it.get("grpc-status"))
        .cloned();
    (outcome, header, trailer)
}

#[tokio::test]
async fn a_status_in_the_header_decides_where_it_is_asked() {
    let (_reporter, health) = tonic_health::server::health_reporter();
    let not_found = Some(HeaderValue::from_static("5"));

    let asking = layer().completed_when(is_ok).layer(health.clone());
    for _ in 0..2 {
        let (outcome, header, _) = send(&asking, call("no such service")).await;
        assert_eq!((&*outcome, &header), ("run", &not_found));
    }
    let (outcome, header, trailer) = send(&asking, call("")).await;
    assert_eq!((&*outcome, header), ("run", None));
    assert_eq!(trailer.unwrap(), "0");
    assert_eq!(send(&asking, call("")).await.0, "duplicate");

    // Left at the default, a call that failed is taken for one that did not.
    let not_asking = layer().layer(health);
    let (outcome, header, _) = send(&not_asking, call("no such service")).await;
    assert_eq!((&*outcome, &header), ("run", &not_found));
    let (outcome, ..) = send(&not_asking, call("no such service")).await;
    assert_eq!(outcome, "duplicate");
}

#[tokio::test]
async fn a_status_in_the_trailers_comes_too_late() {
    let service = layer().completed_when(is_ok).layer(service_fn(
        |_: Request<RequestBody<Full<Bytes>>>| async {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("13"));
            let frames = [
                Frame::data(Bytes::from_static(b"\0\0\0\0\0")),
                Frame::trailers(trailers),
            ];
            let frames = frames.map(Ok::<_, Infallible>);
            Ok(Response::new(StreamBody::new(stream::iter(frames))))
        },
    ));
    let (outcome, header, trailer) = send(&service, call("")).await;
    assert_eq!((&*outcome, header), ("run", None));
    assert_eq!(trailer.unwrap(), "13");
    assert_eq!(send(&service, call("")).await.0, "duplicate");
}
