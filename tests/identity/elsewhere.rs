//! Ids that are not in a JSON body: headers, queries, forms, and what a closure finds.

use http::Request;
use http_body_util::Full;
use proptest::prelude::*;
use tower_webhook_dedup::{EventId, NoId};

use crate::{Hook, form, ok, post, property, query, read};

fn header(values: &[&[u8]]) -> Hook {
    let mut request = post("");
    for value in values {
        let value = http::HeaderValue::from_bytes(value).unwrap();
        request.headers_mut().append("x-id", value);
    }
    request
}

// R60
#[test]
fn a_header_is_taken_as_it_is_and_once() {
    let id = || EventId::header("X-Id");
    assert_eq!(read(id(), header(&[b"e1"])), ok("e1"));
    assert_eq!(read(id(), header(&[b"E1, e2"])), ok("E1, e2"));
    assert_eq!(read(id(), header(&["é".as_bytes()])), ok("é"));
    assert_eq!(read(id(), header(&[])), Err(NoId::Absent));
    assert_eq!(read(id(), header(&[b""])), Err(NoId::Blank));
    assert_eq!(read(id(), header(&[b" \t "])), Err(NoId::Blank));
    assert_eq!(read(id(), header(&[b"\xff"])), Err(NoId::WrongType));
    assert_eq!(read(id(), header(&[b"e1", b"e1"])), Err(NoId::Ambiguous));
    assert_eq!(read(id(), header(&[b"", b"e1"])), Err(NoId::Ambiguous));
}

#[test]
fn a_field_of_a_query_is_decoded_and_taken_once() {
    let id = || EventId::query("id");
    assert_eq!(read(id(), query("a=1&id=e1&b")), ok("e1"));
    assert_eq!(read(id(), query("id=a%2Bb+c%3D%C3%A9")), ok("a+b c=é"));
    assert_eq!(read(id(), query("id=a=b")), ok("a=b"));
    assert_eq!(read(id(), query("%69d=e1")), ok("e1"));
    assert_eq!(read(id(), query("id=100%")), ok("100%"));
    assert_eq!(read(id(), query("id=%zz")), ok("%zz"));
    assert_eq!(read(id(), query("")), Err(NoId::Absent));
    assert_eq!(read(id(), post("")), Err(NoId::Absent));
    assert_eq!(read(id(), query("ID=e1&xid=e2&idx=e3")), Err(NoId::Absent));
    assert_eq!(read(id(), query("id")), Err(NoId::Blank));
    assert_eq!(read(id(), query("id=")), Err(NoId::Blank));
    assert_eq!(read(id(), query("id=+%20")), Err(NoId::Blank));
    assert_eq!(read(id(), query("id=%FF")), Err(NoId::WrongType));
    assert_eq!(read(id(), query("id=1&id=1")), Err(NoId::Ambiguous));
    assert_eq!(read(id(), query("id=1&i%64=2")), Err(NoId::Ambiguous));
    assert_eq!(read(id(), query("id=1&id")), Err(NoId::Ambiguous));
}

#[test]
fn a_field_of_a_form_needs_the_content_type_of_a_form() {
    let id = || EventId::form("id");
    assert_eq!(read(id(), form("id=e1+x&n=1")), ok("e1 x"));
    assert_eq!(read(id(), form("n=1")), Err(NoId::Absent));
    assert_eq!(read(id(), form("id=e1&id=e1")), Err(NoId::Ambiguous));
    assert_eq!(read(id(), form("id=%FF")), Err(NoId::WrongType));
    assert_eq!(read(id(), post("id=e1")), Err(NoId::Absent));
    let mut other = form("id=e1");
    for content_type in [
        "application/x-www-form-urlencoded; charset=UTF-8",
        "Application/X-WWW-Form-Urlencoded",
        " application/x-www-form-urlencoded ;a=b",
    ] {
        other
            .headers_mut()
            .insert("content-type", content_type.parse().unwrap());
        assert_eq!(read(id(), other.clone()), ok("e1"), "{content_type}");
    }
    for content_type in ["application/json", "text/plain", "multipart/form-data"] {
        other
            .headers_mut()
            .insert("content-type", content_type.parse().unwrap());
        assert_eq!(read(id(), other.clone()), Err(NoId::Absent));
    }
}

#[test]
fn a_closure_may_read_the_id_from_anywhere() {
    let id = || {
        EventId::custom(|parts, body| {
            let kind = parts.headers.get("x-kind")?.to_str().ok()?;
            Some(format!("{kind}{}{}", parts.uri.path(), body.len()))
        })
    };
    let mut request = post("12345");
    request.headers_mut().insert("x-kind", "k".parse().unwrap());
    assert_eq!(read(id(), request), ok("k/hook5"));
    assert_eq!(read(id(), post("12345")), Err(NoId::Absent));
    let blank = EventId::custom(|_, _| Some(" \n".to_owned()));
    assert_eq!(read(blank, post("")), Err(NoId::Blank));
}

proptest! {
    #![proptest_config(property::config(512))]

    #[test]
    fn any_query_and_any_form_never_panic(text in "[a=&%+0-9x]{0,16}|\\PC{0,16}") {
        _ = read(EventId::form("a"), form(&text));
        if let Ok(uri) = format!("/hook?{text}").parse::<http::Uri>() {
            let request = Request::post(uri).body(Full::default()).unwrap();
            _ = read(EventId::query("a"), request);
        }
    }

    #[test]
    fn what_is_encoded_in_a_form_or_a_query_decodes_to_the_same_text(
        id in "\\PC{1,12}",
        plus in any::<bool>(),
    ) {
        prop_assume!(!id.trim().is_empty());
        let mut encoded: String = id.bytes().map(|byte| format!("%{byte:02X}")).collect();
        if plus {
            encoded = encoded.replace("%20", "+");
        }
        prop_assert_eq!(read(EventId::form("a"), form(&format!("a={encoded}"))), Ok(id.clone()));
        prop_assert_eq!(read(EventId::query("a"), query(&format!("%61={encoded}"))), Ok(id));
    }
}
