//! Which parts of a body are chosen, and which are left out.

use tower_webhook_dedup::{JsonPointer, KeyBy, NoId};

use crate::{all_differ, except, fields, key, none, same};

// R24
#[test]
fn only_chosen_fields_count() {
    same(
        &fields(),
        &[
            r#"{"a":1,"b":{"c":"x"}}"#,
            r#"{"b":{"c":"x","d":2},"a":1}"#,
            "\u{feff} {\n \"b\" : { \"c\" : \"\\u0078\" } ,\t\"\\u0061\" : 1 , \"z\":[{}] }\r\n",
        ],
    );
    all_differ(
        &fields(),
        &[
            r#"{"a":1,"b":{"c":"x"}}"#,
            r#"{"a":2,"b":{"c":"x"}}"#,
            r#"{"a":1,"b":{"c":"y"}}"#,
            r#"{"a":"x","b":{"c":1}}"#,
            r#"{"a":1}"#,
            r#"{"b":{"c":"x"}}"#,
            r#"{"b":{"c":1}}"#,
            "{}",
        ],
    );
    // A pointer leads into arrays, and to whole values.
    let fields = KeyBy::id_and_fields(["/list/1"]);
    same(
        &fields,
        &[
            r#"{"list":[0,{"p":1,"q":[2,3]}]}"#,
            r#"{"list":["x",{"q":[2,3],"p":1},4]}"#,
        ],
    );
    all_differ(
        &fields,
        &[
            r#"{"list":[0,{"p":1,"q":[2,3]}]}"#,
            r#"{"list":[0,{"p":1,"q":[3,2]}]}"#,
            r#"{"list":[0]}"#,
        ],
    );
}

// R24
#[test]
fn what_is_left_out_does_not_count_and_all_else_does() {
    same(
        &except(),
        &[
            r#"{"a":1,"n":1,"list":[0,1,2],"deep":{"er":{"n":1,"m":[]}}}"#,
            r#"{"n":{"any":[1,{}]},"list":[0,{"x":"}]\"\\"},2],"deep":{"er":{"m":[],"n":"]"}},"a":1}"#,
            r#"{"a":1,"list":[0,null,2],"deep":{"er":{"m":[]}}}"#,
            // Inside of what is left out, even a key that is there twice is nothing.
            r#"{"a":1,"n":{"k":1,"k":2},"list":[0,[],2],"deep":{"er":{"m":[]}}}"#,
        ],
    );
    all_differ(
        &except(),
        &[
            r#"{"a":1,"n":1}"#,
            r#"{"a":2,"n":1}"#,
            r#"{"a":1,"m":{"n":1}}"#,
            r#"{"a":1,"list":[0,1]}"#,
            r#"{"a":1,"list":[0]}"#,
            r#"{"a":1,"list":[0,1,2]}"#,
            r#"{"a":1,"list":{"1":1}}"#,
            r#"{"a":1,"list":{"2":1}}"#,
            r#"{"a":1,"deep":{"er":1}}"#,
            r#"{"a":1,"deep":{"er":{}}}"#,
            r#"{"a":1,"deep":[]}"#,
            "1",
        ],
    );
    // Left out or never there, it is the same; an element of an array leaves a hole.
    same(&except(), &[r#"{"list":{"1":1}}"#, r#"{"list":{}}"#]);
    // All of it is left out: the id alone counts, of JSON at least.
    let nothing = KeyBy::id_and_body_except([""]);
    same(&nothing, &["{}", "1", r#"{"a":[1]}"#]);
    none(&nothing, NoId::Malformed, &["", "{"]);
    let everything = KeyBy::id_and_body_except([]);
    all_differ(&everything, &["1", "[1]", "{}", "[]", r#"{"1":1}"#]);
}

#[test]
fn the_ways_to_choose_never_meet() {
    let body = r#"{"a":1}"#;
    let ways = [
        KeyBy::Id,
        KeyBy::IdAndBody,
        KeyBy::id_and_fields(["/a"]),
        KeyBy::id_and_fields(["/a", "/b"]),
        KeyBy::id_and_fields(["/b", "/a"]),
        KeyBy::id_and_body_except(["/a"]),
        KeyBy::id_and_body_except([]),
    ];
    let keys: Vec<_> = ways.iter().map(|way| key(way, body).unwrap()).collect();
    for (n, key) in keys.iter().enumerate() {
        assert!(!keys[..n].contains(key), "{:?}", ways[n]);
    }
}

#[test]
fn pointers_are_checked_where_they_are_written() {
    let pointers = vec!["/a".parse::<JsonPointer>().unwrap()];
    assert_eq!(
        KeyBy::id_and_fields(["/a"]),
        KeyBy::IdAndFields(pointers.clone())
    );
    assert_eq!(
        KeyBy::id_and_body_except(["/a"]),
        KeyBy::IdAndBodyExcept(pointers)
    );
    for make in [
        (|| KeyBy::id_and_fields(["/a", "b"])) as fn() -> KeyBy,
        || KeyBy::id_and_body_except(["/~"]),
    ] {
        let panic = std::panic::catch_unwind(make).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains("not a JSON pointer"), "{message}");
    }
}
