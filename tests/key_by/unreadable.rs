//! Bodies whose parts cannot be read.

use std::{convert::Infallible, io::Write};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{BodyHash, MissingId, NoId, Outcome, RequestBody};

use crate::{delivery, except, fields, key, layer, none, runtime::block_on, send, ways};

#[test]
fn what_is_not_json_has_no_id() {
    for key_by in [fields(), except()] {
        none(
            &key_by,
            NoId::Malformed,
            &[
                "",
                " ",
                "{",
                "{}}",
                "[1,]",
                "{\"a\":01}",
                "a=1",
                "\"\u{1}\"",
                "nul",
                "{\"a\" 1}",
            ],
        );
        assert_eq!(key(&key_by, b"{\"a\":\"\xff\"}"), Err(NoId::Malformed));
        // Half a surrogate pair: JSON, but no text.
        none(
            &key_by,
            NoId::WrongType,
            &[r#"{"a":"\ud800"}"#, r#"{"a":{"\udc00":1}}"#],
        );
    }
    // Where it does not count, it does not matter.
    key(&fields(), r#"{"z":"\ud800"}"#).unwrap();
    key(&except(), r#"{"n":"\ud800"}"#).unwrap();
}

#[test]
fn deep_nesting_ends_the_reading_and_not_the_process() {
    for (key_by, body) in ways() {
        let nested = |depth: usize, [open, close]: [&str; 2]| {
            body(&(open.repeat(depth) + "1" + &close.repeat(depth)))
        };
        for brackets in [["[", "]"], ["{\"a\":", "}"]] {
            key(&key_by, nested(120, brackets)).unwrap();
            let deep = nested(100_000, brackets);
            none(&key_by, NoId::Malformed, &[&deep]);
        }
    }
    // What does not count may be as deep as it likes.
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    key(&except(), format!(r#"{{"n":{deep}}}"#)).unwrap();
    key(&fields(), format!(r#"{{"n":{deep}}}"#)).unwrap();
}

// R57
#[test]
fn a_compressed_body_has_no_parts_and_comes_through_untouched() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(br#"{"a":1,"b":{"c":2}}"#).unwrap();
    let gzip = gzip.finish().unwrap();
    for key_by in [fields(), except()] {
        assert_eq!(key(&key_by, &gzip), Err(NoId::Malformed));
        let handler = service_fn(|request: Request<RequestBody<Full<Bytes>>>| async move {
            let body = request.into_body().bytes().cloned().unwrap();
            Ok::<_, Infallible>(Response::new(Full::new(body)))
        });
        let forwarding = layer(&key_by).missing_id(MissingId::Forward).layer(handler);
        block_on(async {
            let answer = forwarding.oneshot(delivery(&gzip)).await.unwrap();
            let outcome = answer.extensions().get::<Outcome>().unwrap();
            assert!(matches!(outcome, Outcome::Unprotected(_)), "{outcome:?}");
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, gzip);
        });
    }
}

#[test]
fn without_a_readable_part_the_policy_decides() {
    block_on(async {
        let not_json = b"a=1";
        let refusing = layer(&fields());
        assert_eq!(send(refusing.clone(), not_json).await, Err(NoId::Malformed));
        let by_body = refusing.missing_id(MissingId::UseBodyHash);
        let (_, hash, is_by_body) = send(by_body, not_json).await.unwrap();
        assert!(is_by_body);
        assert_eq!(hash, BodyHash::of(not_json));
    });
}
