//! The bytes of a body come through, whatever they are and however they were cut up.

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use tower::Layer;
use tower_webhook_dedup::{BodyHash, Delivery, EventId, MissingId, NoId, Outcome, Unprotected};

use crate::{
    Keeper, framed,
    http_support::{c0, send},
    stores::Faulty,
    whole,
};

/// R27: what a signature was made over.
#[tokio::test(start_paused = true)]
async fn the_bytes_of_a_body_come_through_unchanged() {
    let tricky = "{ \"id\" : \"e1\",  \"v\":1.0, \"v\":2, \"s\":\"\\u00e9\\/é\" }\n";
    let bodies: [Vec<u8>; 6] = [
        tricky.into(),
        format!("\u{feff}{tricky}").into(),
        b"\r\n\t {\"id\":12345678901234567890123,\"x\":1e400}".to_vec(),
        b"{\"id\":\"\\u0065\\u0031\"}".to_vec(),
        b"{\"s\":\"\xff\xfe\",\"id\":\"e1\"}".to_vec(),
        b"{\"id\":\"e1\",\"deep\":[[[[{\"id\":\"e2\"}]]]]}\0".to_vec(),
    ];
    let keeper = Keeper::default();
    let service = c0(Faulty::new())
        .missing_id(MissingId::Forward)
        .layer(keeper.clone());
    for body in bodies {
        let request = Request::post("/hooks/x").body(whole(body.clone())).unwrap();
        assert_eq!(send(&service, request).await.status, 200);
        let got = keeper.one();
        assert_eq!(got.data, body);
        if let Some(delivery) = got.parts.extensions.get::<Delivery>() {
            assert_eq!(delivery.body_hash(), BodyHash::of(&body));
        }
    }
}

/// R27: however the body was cut up on its way.
#[tokio::test(start_paused = true)]
async fn a_body_in_many_frames_comes_through_whole() {
    let body = Bytes::from("\u{feff}{ \"id\" : \"e1\", \"s\" : \"é\\u00e9\" }\n");
    for at in 0..=body.len() {
        let keeper = Keeper::default();
        let service = c0(Faulty::new()).layer(keeper.clone());
        let frames = [
            body.slice(..at),
            Bytes::new(),
            body.slice(at..),
            Bytes::new(),
        ];
        let frames = frames.into_iter().map(Frame::data).collect();
        let request = Request::post("/").body(framed(frames)).unwrap();
        assert_eq!(send(&service, request).await.brief(), (200, "run"));
        let got = keeper.one();
        assert_eq!(got.data, body);
        // One frame with data is not copied, whatever is around it.
        let is_whole = [0, body.len()].contains(&at);
        assert_eq!(got.data.as_ptr() == body.as_ptr(), is_whole);
        let delivery = got.parts.extensions.get::<Delivery>().unwrap();
        assert_eq!(delivery.event_id(), "e1");
        assert_eq!(delivery.body_hash(), BodyHash::of(&body));
        // Cut up or not, it is the same event.
        let request = Request::post("/").body(whole(body.clone())).unwrap();
        assert_eq!(send(&service, request).await.brief(), (200, "duplicate"));
    }
}

/// R57: what cannot be read is not ours to judge.
#[tokio::test(start_paused = true)]
async fn a_compressed_body_is_forwarded_as_it_was_sent() {
    let gzip: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xabV\xcaLQ\xb2RJ5T\xaa\x05\0";
    let (keeper, store) = (Keeper::default(), Faulty::new());
    let service = c0(store.clone())
        .missing_id(MissingId::Forward)
        .layer(keeper.clone());
    let request = Request::post("/hooks/x")
        .header("content-encoding", "gzip")
        .body(whole(gzip))
        .unwrap();
    let answer = send(&service, request).await;
    assert_eq!(answer.brief(), (200, "unprotected"));
    let Outcome::Unprotected(Unprotected::NoEventId(NoId::Malformed)) = answer.outcome() else {
        panic!("{:?}", answer.outcome());
    };
    let got = keeper.one();
    assert_eq!(got.data, gzip);
    assert_eq!(got.parts.headers["content-encoding"], "gzip");
    assert!(store.calls().is_empty());
}

/// Ids from elsewhere than the body leave it alone, whatever it is.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_json_comes_through_where_the_id_is_in_a_header() {
    let keeper = Keeper::default();
    let service =
        tower_webhook_dedup::WebhookDedupLayer::new(Faulty::new(), EventId::header("x-delivery"))
            .layer(keeper.clone());
    for outcome in ["run", "duplicate"] {
        let request = Request::post("/")
            .header("x-delivery", "d1")
            .body(whole(&b"\x00\xffnot json"[..]))
            .unwrap();
        assert_eq!(send(&service, request).await.brief(), (200, outcome));
    }
    assert_eq!(keeper.one().data, &b"\x00\xffnot json"[..]);
}
