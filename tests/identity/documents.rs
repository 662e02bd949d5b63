//! What of a body has to be JSON, and what is left to the handler.

use tower_webhook_dedup::{EventId, NoId, WebhookDedupLayer};

use crate::{at, form, front::MemoryStore, ok, post, read, runtime::block_on, send};

// R60
#[test]
fn a_key_that_occurs_twice_is_ambiguous() {
    let twice = [
        r#"{"id":"e1","id":"e1"}"#,
        r#"{"id":"e1","n":1,"id":"e2"}"#,
        r#"{"id":"e1","i\u0064":"e2"}"#,
        r#"{"i\u0064":null,"\u0069d":null}"#,
        r#"{"id":{},"id":"e1","id":"e2"}"#,
    ];
    for body in twice {
        assert_eq!(at("/id", body), Err(NoId::Ambiguous), "{body}");
    }
    // Above the id, too; elsewhere it is the handler's business.
    let body = r#"{"data":{"id":"e1"},"data":{}}"#;
    assert_eq!(at("/data/id", body), Err(NoId::Ambiguous));
    let body = r#"{"data":{},"data":{"id":"e1"}}"#;
    assert_eq!(at("/data/id", body), Err(NoId::Ambiguous));
    assert_eq!(at("/id", r#"{"n":1,"n":2,"id":"e1"}"#), ok("e1"));
    assert_eq!(at("/id", r#"{"n":{"id":1,"id":2},"id":"e1"}"#), ok("e1"));
}

// R27
#[test]
fn a_byte_order_mark_is_skipped_for_the_id_and_kept_for_the_handler() {
    let body = "\u{feff}{ \"id\" : \"e1\" }\n";
    assert_eq!(at("/id", body), ok("e1"));
    let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"));
    let seen = block_on(send(&layer, post(body)));
    assert_eq!(seen.body.unwrap(), body);
    assert_eq!(
        at("/id", "\u{feff}\u{feff}{\"id\":1}"),
        Err(NoId::Malformed)
    );
    assert_eq!(at("/id", "\u{feff}"), Err(NoId::Malformed));
}

#[test]
fn what_is_not_one_json_document_is_malformed() {
    let bodies = [
        "",
        " ",
        r#"{"id":"e1"}x"#,
        r#"{"id":"e1"}{}"#,
        r#"{"id":"e1"},"#,
        r#"{"id":"e1""#,
        r#"{"id":"e1",}"#,
        r#"{'id':'e1'}"#,
        r#"{id:"e1"}"#,
        r#"{"id":01}"#,
        r#"{"id":.5}"#,
        r#"{"id":1.}"#,
        r#"{"id":NaN}"#,
        r#"{"id":"e1","n":tru}"#,
        r#"{"id":"e1","n":"\x"}"#,
        "{\"id\":\"a\nb\"}",
        "id=e1",
        "<id>e1</id>",
    ];
    for body in bodies {
        assert_eq!(at("/id", body), Err(NoId::Malformed), "{body}");
    }
    let bytes: [&[u8]; 3] = [
        b"{\"id\":\"\xff\"}",
        b"{\"\xff\":1,\"id\":\"e1\"}",
        b"\xff\xfe{\0}\0",
    ];
    for body in bytes {
        assert_eq!(at("/id", body), Err(NoId::Malformed), "{body:?}");
    }
    // Trailing white space is part of no document.
    assert_eq!(at("/id", "{\"id\":\"e1\"}\r\n\t "), ok("e1"));
}

#[test]
fn what_is_not_on_the_path_is_left_to_the_handler() {
    assert_eq!(
        at("/id", b"{\"n\":\"\xff\",\"id\":\"e1\"}".as_slice()),
        ok("e1")
    );
    assert_eq!(at("/id", r#"{"n":1e999,"id":"e1"}"#), ok("e1"));
    assert_eq!(at("/id", r#"{"n":"\ud800","id":"e1"}"#), ok("e1"));
}

#[test]
fn deep_nesting_overflows_nothing() {
    const DEEP: usize = 200_000;
    let (open, close) = ("[".repeat(DEEP), "]".repeat(DEEP));
    let arrays = format!("{open}{close}");
    let objects = format!(r#"{}1{}"#, r#"{"id":"#.repeat(DEEP), "}".repeat(DEEP));
    let beside = format!(r#"{{"n":{arrays},"id":"e1","m":{objects}}}"#);
    assert_eq!(at("/id", beside), ok("e1"));
    assert_eq!(at("/id", arrays.clone()), Err(NoId::Absent));
    assert_eq!(at("/id", objects.clone()), Err(NoId::WrongType));
    assert_eq!(
        at("/id", format!(r#"{{"id":{arrays}}}"#)),
        Err(NoId::WrongType)
    );
    assert_eq!(at("", arrays.clone()), Err(NoId::WrongType));
    assert_eq!(at("/id", open), Err(NoId::Malformed));
    // No sender nests its id this deep; it must only not take the process down.
    assert!(at(&"/0".repeat(DEEP), arrays).is_err());
    assert!(at(&"/id".repeat(DEEP), objects).is_err());
}

#[test]
fn a_pointer_reads_the_body_whatever_the_content_type_says() {
    let mut request = form(r#"{"id":"e1"}"#);
    assert_eq!(read(EventId::pointer("/id"), request.clone()), ok("e1"));
    request
        .headers_mut()
        .insert("content-type", "text/plain".parse().unwrap());
    assert_eq!(read(EventId::pointer("/id"), request), ok("e1"));
}
