//! Ids of several parts, or from one of several places.

use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::{prelude::*, sample::Index};
use tower_webhook_dedup::{EventId, NoId};

use crate::{ok, post, property, query, read};

fn optional() -> impl Strategy<Value = Option<&'static str>> {
    let parts = [
        None,
        Some(""),
        Some("-"),
        Some("\\-"),
        Some("|"),
        Some("a"),
        Some("\\"),
    ];
    prop::sample::select(parts.to_vec())
}

fn at_both(body: impl Into<Bytes>) -> Result<String, NoId> {
    let both = EventId::pointer("/a").and(EventId::pointer("/b"));
    read(both, post(body))
}

#[test]
fn or_takes_the_first_that_can_be_read() {
    let id = || EventId::header("x-id").or(EventId::pointer("/id"));
    let mut request = post(r#"{"id":"body"}"#);
    assert_eq!(read(id(), request.clone()), ok("body"));
    request.headers_mut().insert("x-id", "".parse().unwrap());
    assert_eq!(read(id(), request.clone()), ok("body"));
    request
        .headers_mut()
        .insert("x-id", "header".parse().unwrap());
    assert_eq!(read(id(), request), ok("header"));
    assert_eq!(read(id(), post("{}")), Err(NoId::Absent));
    let three = id().or(EventId::query("id"));
    assert_eq!(read(three, query("id=query")), ok("query"));
}

// R34
#[test]
fn parts_of_a_join_cannot_run_together() {
    let pairs = [
        ("x", "y:z"),
        ("x:y", "z"),
        ("a|b", "c"),
        ("a", "b|c"),
        ("a\\", "|c"),
        ("a\\|", "c"),
        ("a", "\\|c"),
        ("a\\\\", "c"),
        ("a", "c"),
        ("c", "a"),
        ("a\n", "c"),
        ("a\0", "c"),
    ];
    let ids: BTreeSet<String> = pairs
        .iter()
        .map(|(a, b)| at_both(serde_json::json!({"a": a, "b": b}).to_string()).unwrap())
        .collect();
    assert_eq!(ids.len(), pairs.len());
    assert_eq!(at_both(r#"{"a":"x","b":7}"#), ok("x|7"));
}

#[test]
fn a_join_needs_all_of_its_parts() {
    assert_eq!(at_both(r#"{"a":"x"}"#), Err(NoId::Absent));
    assert_eq!(at_both(r#"{"a":"x","b":" "}"#), Err(NoId::Blank));
    assert_eq!(at_both(r#"{"a":{},"b":"y"}"#), Err(NoId::WrongType));
    assert_eq!(at_both(r#"{"a":1,"b":1,"b":1}"#), Err(NoId::Ambiguous));
    assert_eq!(at_both("x"), Err(NoId::Malformed));
}

#[test]
fn an_optional_part_may_be_absent_which_differs_from_blank() {
    let id = || EventId::pointer("/a").and(EventId::pointer("/b").optional());
    let read = |body: &'static str| read(id(), post(body));
    let absent = read(r#"{"a":"x"}"#).unwrap();
    assert_eq!(read(r#"{"a":"x","b":null}"#).unwrap(), absent);
    let blank = read(r#"{"a":"x","b":""}"#).unwrap();
    let text = read(r#"{"a":"x","b":"-"}"#).unwrap();
    let escape = read(r#"{"a":"x","b":"\\-"}"#).unwrap();
    let ids = BTreeSet::from([&absent, &blank, &text, &escape]);
    assert_eq!(ids.len(), 4, "{ids:?}");
    // It may be absent, not wrong.
    assert_eq!(read(r#"{"a":"x","b":{}}"#), Err(NoId::WrongType));
    assert_eq!(read(r#"{"a":"x","b":1,"b":1}"#), Err(NoId::Ambiguous));
    assert_eq!(read(r#"{"b":"y"}"#), Err(NoId::Absent));
}

// R6
#[test]
fn a_join_of_nothing_is_no_id() {
    let id = || {
        let part = |pointer| EventId::pointer(pointer).optional();
        part("/a").and(part("/b"))
    };
    assert_eq!(read(id(), post("{}")), Err(NoId::Absent));
    assert_eq!(read(id(), post(r#"{"a":"","b":" "}"#)), Err(NoId::Absent));
    assert_eq!(read(id(), post(r#"{"a":"","b":null}"#)), Err(NoId::Absent));
    assert!(read(id(), post(r#"{"b":"y"}"#)).is_ok());
    assert_eq!(
        read(EventId::pointer("/a").optional(), post("{}")),
        Err(NoId::Absent)
    );
}

proptest! {
    #![proptest_config(property::config(512))]

    // R34
    #[test]
    fn joined_ids_are_equal_only_where_both_parts_are(
        pieces in prop::collection::vec("[a\\\\:-]{1,2}", 2..5),
        one in any::<Index>(),
        other in any::<Index>(),
    ) {
        // Without escapes, all ways to cut the same text would be one id.
        let cut = |at: Index| {
            let (a, b) = pieces.split_at(1 + at.index(pieces.len() - 1));
            (a.join("|"), b.join("|"))
        };
        let id = |(a, b): &(String, String)| {
            at_both(serde_json::json!({"a": a, "b": b}).to_string()).unwrap()
        };
        let (one, other) = (cut(one), cut(other));
        prop_assert_eq!(id(&one) == id(&other), one == other);
    }

    // R34
    #[test]
    fn optional_parts_that_are_absent_or_blank_or_text_never_meet(
        one in prop::array::uniform3(optional()),
        place in 0..3_usize,
        change in optional(),
    ) {
        let mut other = one;
        other[place] = change;
        let id = |[a, b, c]: [Option<&str>; 3]| {
            let body = serde_json::json!({"a": a, "b": b, "c": c}).to_string();
            let part = |pointer| EventId::pointer(pointer).optional();
            read(part("/a").and(part("/b")).and(part("/c")), post(body))
        };
        let nothing = |parts: [Option<&str>; 3]| parts.iter().flatten().all(|part| part.is_empty());
        let (first, second) = (id(one), id(other));
        prop_assert_eq!(first.is_err(), nothing(one));
        prop_assert_eq!(second.is_err(), nothing(other));
        if first.is_ok() || second.is_ok() {
            prop_assert_eq!(first == second, one == other);
        }
    }
}
