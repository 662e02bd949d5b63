//! Which values are ids, and byte for byte which.

use std::{collections::BTreeSet, convert::Infallible};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{EventId, KeyBy, MissingId, NoId, WebhookDedupLayer};

use crate::{at, front::MemoryStore, ok, post, runtime::block_on, send};

// R30
#[test]
fn big_numbers_stay_apart() {
    let ids = [
        "18446744073709551616",
        "18446744073709551617",
        "18446744073709551618",
        "9007199254740993",
        "9007199254740992",
        "-1",
        "1",
        "1.0",
        "1e0",
        "1E0",
        "-0",
        "0",
        "1e999",
    ];
    for id in ids {
        assert_eq!(at("/id", format!(r#"{{"id":{id},"n":1}}"#)), ok(id));
    }
    assert_eq!(BTreeSet::from(ids).len(), ids.len());
}

// R30
#[test]
fn a_number_and_the_same_digits_as_a_string_are_one_event() {
    block_on(async {
        let layer =
            WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id")).key_by(KeyBy::Id);
        let outcome = |body: &'static str| {
            let layer = layer.clone();
            async move {
                let handler = service_fn(|_| async {
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
                });
                let answer = layer.layer(handler).oneshot(post(body)).await.unwrap();
                answer.headers()["webhook-dedup"].clone()
            }
        };
        assert_eq!(outcome(r#"{"id":1}"#).await, "run");
        assert_eq!(outcome(r#"{"id":"1"}"#).await, "duplicate");
        assert_eq!(outcome(r#"{"id":1.0}"#).await, "run");
        assert_eq!(outcome(r#"{"id":1e0}"#).await, "run");
        assert_eq!(outcome(r#"{"id":"1.0"}"#).await, "duplicate");
    });
}

// R60
#[test]
fn odd_ids_are_kept_byte_for_byte() {
    let cases = [
        (r#"" e1""#, " e1"),
        (r#""e1 ""#, "e1 "),
        (r#""E1""#, "E1"),
        (r#""é""#, "\u{e9}"),
        (r#""e\u0301""#, "e\u{301}"),
        ("\"e\u{301}\"", "e\u{301}"),
        (r#""\u00e9""#, "\u{e9}"),
        (r#""\u0000""#, "\0"),
        (r#""a\nb""#, "a\nb"),
        (r#""\/""#, "/"),
        ("\"😀\"", "😀"),
        (r#""\ud83d\ude00""#, "😀"),
        (r#""null""#, "null"),
    ];
    for (written, id) in cases {
        let body = format!(r#"{{"id":{written},"n":1}}"#);
        assert_eq!(at("/id", body), ok(id), "{written}");
    }
}

// R60
#[test]
fn ids_that_no_text_can_hold_or_that_are_blank_are_none() {
    let cases = [
        (r#""\n""#, NoId::Blank),
        (r#""\u00a0\u3000\t""#, NoId::Blank),
        (r#""\ud800""#, NoId::WrongType),
        (r#""\udc00\ud800""#, NoId::WrongType),
        (r#""\ud83d😀""#, NoId::WrongType),
    ];
    for (written, why) in cases {
        let body = format!(r#"{{"id":{written},"n":1}}"#);
        assert_eq!(at("/id", body), Err(why), "{written}");
    }
}

// R6
#[test]
fn what_is_missing_null_or_blank_is_no_id() {
    let shapes = [
        (r#"{"n":1}"#, NoId::Absent),
        (r#"{"id":null}"#, NoId::Absent),
        (r#"{"id":""}"#, NoId::Blank),
        (r#"{"id":"  "}"#, NoId::Blank),
        (r#"{"id":{}}"#, NoId::WrongType),
        (r#"{"id":[]}"#, NoId::WrongType),
        (r#"{"id":true}"#, NoId::WrongType),
        (r#"{"id":["e1"]}"#, NoId::WrongType),
    ];
    for (body, why) in shapes {
        assert_eq!(at("/id", body), Err(why), "{body}");
    }
}

// R6
#[test]
fn requests_without_an_id_are_forwarded_each_time_and_leave_no_key() {
    let bodies = [
        "{}",
        r#"{"id":null}"#,
        r#"{"id":""}"#,
        r#"{"id":"  "}"#,
        r#"{"id":{}}"#,
        r#"{"id":[]}"#,
        "",
        "not json",
    ];
    let store = MemoryStore::new();
    let layer = WebhookDedupLayer::new(store.clone(), EventId::pointer("/id"))
        .missing_id(MissingId::Forward);
    for body in bodies.iter().chain(&bodies) {
        let seen = block_on(send(&layer, post(*body)));
        assert_eq!(seen.outcome, "unprotected");
        assert_eq!(seen.body.unwrap(), *body);
    }
    assert!(store.is_empty());
}
