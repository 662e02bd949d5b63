//! Where in a document a pointer leads.

use tower_webhook_dedup::{EventId, JsonPointer, NoId};

use crate::{at, ok};

// R29
#[test]
fn an_array_of_events_has_no_id_unless_an_index_says_which() {
    for body in [
        r#"[{"id":"1"},{"id":"2"}]"#,
        r#"[{"id":"2"},{"id":"3"}]"#,
        "[]",
    ] {
        assert_eq!(at("/id", body), Err(NoId::Absent));
    }
    assert_eq!(at("/0/id", r#"[{"id":"1"},{"id":"9"}]"#), ok("1"));
    assert_eq!(at("/1/id", r#"[{"id":"1"},{"id":"9"}]"#), ok("9"));
    assert_eq!(at("/2/id", r#"[{"id":"1"},{"id":"9"}]"#), Err(NoId::Absent));
}

#[test]
fn array_indices_are_digits_without_leading_zeros() {
    let body = r#"["a","b","c"]"#;
    assert_eq!(at("/0", body), ok("a"));
    assert_eq!(at("/2", body), ok("c"));
    let none = [
        "/3", "/00", "/01", "/-", "/-1", "/+1", "/ 1", "/1 ", "/", "/a", "/1/0",
    ];
    for pointer in none
        .iter()
        .chain(&["/18446744073709551616", "/99999999999999999999999"])
    {
        assert_eq!(at(pointer, body), Err(NoId::Absent), "{pointer}");
    }
    // In an object they are keys like others.
    assert_eq!(at("/01", r#"{"01":"x","1":"y"}"#), ok("x"));
    assert_eq!(at("/-", r#"{"-":"x"}"#), ok("x"));
    assert_eq!(at("/", r#"{"":"x"}"#), ok("x"));
}

#[test]
fn an_empty_pointer_means_the_whole_document() {
    assert_eq!(at("", r#" "e1" "#), ok("e1"));
    assert_eq!(at("", "17"), ok("17"));
    assert_eq!(at("", r#"{"id":"e1"}"#), Err(NoId::WrongType));
    assert_eq!(at("", "null"), Err(NoId::Absent));
    assert_eq!(at("", ""), Err(NoId::Malformed));
}

#[test]
fn pointers_undo_their_own_escapes_once() {
    let body = r#"{"a/b":"slash","m~n":"tilde","~1":"both","~01":"deep","a%2Fb":"percent"}"#;
    assert_eq!(at("/a~1b", body), ok("slash"));
    assert_eq!(at("/m~0n", body), ok("tilde"));
    assert_eq!(at("/~01", body), ok("both"));
    assert_eq!(at("/~001", body), ok("deep"));
    assert_eq!(at("/a%2Fb", body), ok("percent"));
    for pointer in ["id", "/~", "/~2", "/a~", "/~x", "a/b", " /id"] {
        assert!(pointer.parse::<JsonPointer>().is_err(), "{pointer}");
    }
}

#[test]
#[should_panic(expected = "not a JSON pointer")]
fn a_malformed_pointer_panics_where_it_is_configured() {
    _ = EventId::pointer("id");
}

#[test]
fn keys_are_compared_after_their_escapes() {
    assert_eq!(at("/id", r#"{"\u0069\u0064":"e1"}"#), ok("e1"));
    assert_eq!(at("/a\"b", r#"{"a\"b":"e1"}"#), ok("e1"));
    assert_eq!(at("/é", r#"{"\u00e9":"e1"}"#), ok("e1"));
    assert_eq!(at("/e\u{301}", r#"{"é":"e1"}"#), Err(NoId::Absent));
    assert_eq!(at("/ID", r#"{"id":"e1"}"#), Err(NoId::Absent));
}
