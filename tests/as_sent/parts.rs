//! All that a request or its answer can carry comes through.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version, request::Parts};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_webhook_dedup::{Delivery, Key, MissingId, RequestBody};

use crate::{
    AnyBody, Got, Keeper, framed,
    http_support::{by_id, c0, millis, post, secs, send},
    stores::Faulty,
    whole,
};

#[derive(Clone, Debug, PartialEq)]
struct ConnectInfo(u16);

/// All that a request can carry.
fn laden() -> Request<AnyBody> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    trailers.append("x-sum", HeaderValue::from_static("a"));
    trailers.append("x-sum", HeaderValue::from_static("b"));
    let mut request = Request::post("http://example.com/hooks/x?a=b&a=%20c&d")
        .version(Version::HTTP_2)
        .header("x-twice", "1")
        .header("x-other", "o")
        .header("x-twice", "2")
        .header("x-bytes", HeaderValue::from_bytes(b"\xff\xfe").unwrap())
        .header("content-type", "application/json")
        .extension(ConnectInfo(4711))
        .body(framed(vec![
            Frame::data(Bytes::from(r#"{"id":"e1""#)),
            Frame::data(Bytes::from(r#","n":1}"#)),
            Frame::trailers(trailers),
        ]))
        .unwrap();
    let mut secret = HeaderValue::from_static("s3cret");
    secret.set_sensitive(true);
    request.headers_mut().insert("authorization", secret);
    request
}

fn assert_laden(got: &Got) {
    let expected = laden().into_parts().0;
    let Parts {
        method,
        uri,
        version,
        headers,
        extensions,
        ..
    } = &got.parts;
    assert_eq!(method, expected.method);
    assert_eq!(uri, &expected.uri);
    assert_eq!(*version, Version::HTTP_2);
    assert_eq!(headers, &expected.headers);
    let twice: Vec<_> = headers.get_all("x-twice").iter().collect();
    assert_eq!(twice, ["1", "2"]);
    assert_eq!(headers["x-bytes"].as_bytes(), b"\xff\xfe");
    assert!(headers["authorization"].is_sensitive());
    assert_eq!(extensions.get(), Some(&ConnectInfo(4711)));
    assert_eq!(got.data, r#"{"id":"e1","n":1}"#);
    let trailers = got.trailers.as_ref().unwrap();
    assert_eq!(trailers.len(), 3);
    assert_eq!(trailers["grpc-status"], "0");
}

/// R41
#[tokio::test(start_paused = true)]
async fn every_part_of_a_request_comes_through() {
    let keeper = Keeper::default();
    let service = c0(Faulty::new()).layer(keeper.clone());
    assert_eq!(send(&service, laden()).await.brief(), (200, "run"));
    let got = keeper.one();
    assert_laden(&got);
    assert!(got.buffered);
    assert_eq!(got.parts.extensions.len(), 2, "and the delivery");
}

/// R41 without an id.
#[tokio::test(start_paused = true)]
async fn every_part_of_a_request_without_an_id_comes_through() {
    let keeper = Keeper::default();
    let service = c0(Faulty::new())
        .missing_id(MissingId::Forward)
        .layer(keeper.clone());
    let mut request = laden();
    let absent = &br#"{"no":"e1"}"#[..];
    *request.body_mut() = whole(absent);
    assert_eq!(send(&service, request).await.brief(), (200, "unprotected"));
    let got = keeper.one();
    assert_eq!(got.parts.headers, laden().into_parts().0.headers);
    assert_eq!(got.data, absent);
    assert!(got.parts.extensions.get::<Delivery>().is_none());
}

/// R41, run by a standby.
#[tokio::test(start_paused = true)]
async fn every_part_of_a_request_that_was_stood_by_for_comes_through_each_time() {
    let keeper = Keeper::default();
    let store = Faulty::new();
    let failing = {
        let keeper = keeper.clone();
        service_fn(move |request: Request<RequestBody<AnyBody>>| {
            let kept = keeper.clone().call(request);
            let tries = keeper.0.lock().unwrap().len();
            async move {
                let mut answer = kept.await?;
                if tries < 2 {
                    *answer.status_mut() = 500.try_into().unwrap();
                }
                Ok::<_, Infallible>(answer)
            }
        })
    };
    store.hold(&Key::new("t", "e1"), millis(500)).await;
    let layer = by_id(store);
    let service = layer.layer(failing);
    assert_eq!(send(&service, laden()).await.brief(), (200, "standby"));
    assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    let got = keeper.take();
    assert_eq!(got.len(), 3);
    got.iter().for_each(assert_laden);
}

/// The inner answer, too, comes out as it went in.
#[tokio::test(start_paused = true)]
async fn the_inner_answer_comes_out_with_its_trailers() {
    let service =
        c0(Faulty::new()).layer(service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
            let trailers = HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                HeaderValue::from_static("7"),
            )]);
            let body = framed(vec![
                Frame::data(Bytes::from("one")),
                Frame::data(Bytes::from("two")),
                Frame::trailers(trailers),
            ]);
            Ok::<_, Infallible>(Response::new(body))
        }));
    let answer = service.oneshot(post("e1")).await.unwrap();
    assert_eq!(answer.headers()["webhook-dedup"], "run");
    let body = answer.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "7");
    assert_eq!(body.to_bytes(), "onetwo");
}
