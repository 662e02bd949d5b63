//! The event id of a request is exactly what its sender wrote, or none.

use std::{collections::BTreeSet, convert::Infallible};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use proptest::{prelude::*, sample::Index};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use tokio::runtime::Runtime;
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{
    Delivery, EventId, JsonPointer, KeyBy, MissingId, NoId, Outcome, Refusal, RequestBody,
    Unprotected, WebhookDedupLayer,
};

use front::MemoryStore;
use runtime::paused_runtime;

#[path = "support/front.rs"]
mod front;
#[path = "support/property.rs"]
mod property;
#[path = "support/runtime.rs"]
mod runtime;

const FORM: &str = "application/x-www-form-urlencoded";

type Hook = Request<Full<Bytes>>;

/// What the layer made of one request.
#[derive(Debug)]
struct Seen {
    id: Result<String, NoId>,
    outcome: String,
    /// What the handler got, if it ran.
    body: Option<Bytes>,
}

async fn send(layer: &WebhookDedupLayer<MemoryStore>, request: Hook) -> Seen {
    let handler = service_fn(|request: Request<RequestBody<Full<Bytes>>>| async move {
        let (mut parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let mut response = Response::new(Full::new(body));
        if let Some(delivery) = parts.extensions.remove::<Delivery>() {
            response.extensions_mut().insert(delivery);
        }
        response.extensions_mut().insert(Ran);
        Ok::<_, Infallible>(response)
    });
    let response = layer.layer(handler).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let id = match parts.extensions.get::<Outcome>().unwrap() {
        Outcome::Refused(Refusal::NoEventId(why))
        | Outcome::Unprotected(Unprotected::NoEventId(why)) => Err(*why),
        Outcome::Run { .. } => {
            let delivery = parts.extensions.get::<Delivery>().unwrap();
            Ok(delivery.event_id().to_owned())
        }
        other => Err(panic_on(other)),
    };
    let ran = parts.extensions.get::<Ran>().is_some();
    let outcome = parts.headers["webhook-dedup"].to_str().unwrap().to_owned();
    let body = body.collect().await.unwrap().to_bytes();
    Seen {
        id,
        outcome,
        body: ran.then_some(body),
    }
}

#[derive(Clone)]
struct Ran;

#[track_caller]
fn panic_on(outcome: &Outcome) -> NoId {
    panic!("a fresh event became {outcome:?}")
}

thread_local! {
    static RUNTIME: Runtime = paused_runtime();
}

/// The id that a layer of its own reads from the request; what it refuses has no id.
fn read(event_id: EventId, request: Hook) -> Result<String, NoId> {
    let store = MemoryStore::with_capacity(1);
    let layer = WebhookDedupLayer::new(store.clone(), event_id);
    let seen = RUNTIME.with(|runtime| runtime.block_on(send(&layer, request)));
    let stored = usize::from(seen.id.is_ok());
    assert_eq!(store.len(), stored, "a request without an id has no key");
    assert_eq!(seen.body.is_some(), seen.id.is_ok());
    seen.id
}

fn post(body: impl Into<Bytes>) -> Hook {
    Request::post("/hook").body(Full::new(body.into())).unwrap()
}

/// The id at a JSON pointer of a body.
fn at(pointer: &str, body: impl Into<Bytes>) -> Result<String, NoId> {
    read(EventId::pointer(pointer), post(body))
}

fn form(body: &str) -> Hook {
    let mut request = post(body.to_owned());
    request
        .headers_mut()
        .insert("content-type", FORM.parse().unwrap());
    request
}

fn header(values: &[&[u8]]) -> Hook {
    let mut request = post("");
    for value in values {
        let value = http::HeaderValue::from_bytes(value).unwrap();
        request.headers_mut().append("x-id", value);
    }
    request
}

fn query(query: &str) -> Hook {
    let uri = format!("/hook?{query}");
    Request::post(uri).body(Full::default()).unwrap()
}

fn ok(id: &str) -> Result<String, NoId> {
    Ok(id.to_owned())
}

// Any JSON, any pointer.

/// Few characters, so that keys meet pointers; those with a meaning in either are among them.
fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ab/~01]{0,3}",
        "\\PC{0,4}",
        Just("id".to_owned()),
        Just("-".to_owned()),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["\\PC{0,12}", "\\s{0,3}", any::<String>()]
}

fn json() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    scalar.prop_recursive(5, 48, 6, |inner| {
        let objects = prop::collection::vec((key(), inner.clone()), 0..6)
            .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>()));
        prop_oneof![
            prop::collection::vec(inner, 0..6).prop_map(Value::from),
            objects,
        ]
    })
}

fn escaped(token: &str) -> String {
    token.replace('~', "~0").replace('/', "~1")
}

/// The pointers of everything in the value.
fn pointers(value: &Value, here: &str, all: &mut Vec<String>) {
    all.push(here.to_owned());
    match value {
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                pointers(item, &format!("{here}/{n}"), all);
            }
        }
        Value::Object(fields) => {
            for (key, field) in fields {
                pointers(field, &format!("{here}/{}", escaped(key)), all);
            }
        }
        _ => {}
    }
}

fn pointer() -> impl Strategy<Value = String> {
    let token = prop_oneof![key(), "[0-9]{1,2}", "[+-]?[0-9]{0,3}"];
    prop::collection::vec(token, 0..5)
        .prop_map(|tokens| tokens.iter().map(|t| format!("/{}", escaped(t))).collect())
}

/// What the reference says: the id, or that there is none.
fn expected(value: &Value, pointer: &str) -> Option<String> {
    match value.pointer(pointer)? {
        Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Damages a text: cuts, overwrites or inserts.
#[derive(Clone, Debug)]
enum Damage {
    Cut(Index),
    Set(Index, u8),
    Insert(Index, u8),
    Twice(Index, Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let byte = prop_oneof![any::<u8>(), prop::sample::select(b"{}[]\",:\\u0-".to_vec())];
    prop_oneof![
        any::<Index>().prop_map(Damage::Cut),
        (any::<Index>(), byte.clone()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (any::<Index>(), byte).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        any::<(Index, Index)>().prop_map(|(from, to)| Damage::Twice(from, to)),
    ]
}

fn damaged(mut text: Vec<u8>, damage: &Damage) -> Vec<u8> {
    let at = |index: &Index| index.index(text.len());
    match damage {
        Damage::Cut(index) => text.truncate(at(index)),
        Damage::Set(index, byte) => {
            let at = at(index);
            text[at] = *byte;
        }
        Damage::Insert(index, byte) => text.insert(at(index), *byte),
        Damage::Twice(from, to) => {
            let (from, to) = (at(from), at(to));
            let piece = text[from.min(to)..from.max(to)].to_vec();
            text.splice(from..from, piece);
        }
    }
    text
}

/// A string as JSON, each character plain or escaped as the mask says.
fn quoted(text: &str, escapes: u64) -> String {
    let mut quoted = String::from('"');
    for (n, character) in text.chars().enumerate() {
        let must = character < ' ' || matches!(character, '"' | '\\');
        if must || escapes >> (n % 64) & 1 == 1 {
            for unit in character.encode_utf16(&mut [0; 2]) {
                quoted += &format!("\\u{unit:04x}");
            }
        } else {
            quoted.push(character);
        }
    }
    quoted + "\""
}

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

proptest! {
    #![proptest_config(property::config(512))]

    #[test]
    fn any_pointer_into_any_json_reads_what_the_reference_reads(
        value in json(),
        any in pointer(),
        pick in any::<Index>(),
        exists in any::<bool>(),
        pretty in any::<bool>(),
    ) {
        let mut all = Vec::new();
        pointers(&value, "", &mut all);
        let pointer = if exists { pick.get(&all) } else { &any };
        let body = if pretty {
            serde_json::to_string_pretty(&value)
        } else {
            serde_json::to_string(&value)
        };
        let id = at(pointer, body.unwrap());
        prop_assert_eq!(id.clone().ok(), expected(&value, pointer));
        let why = match value.pointer(pointer) {
            None | Some(Value::Null) => Some(NoId::Absent),
            Some(Value::String(_)) => Some(NoId::Blank),
            Some(_) => Some(NoId::WrongType),
        };
        prop_assert!(id.is_ok() || id.err() == why);
    }

    #[test]
    fn damaged_json_never_panics_and_never_yields_an_id_that_is_not_there(
        value in json(),
        any in pointer(),
        pick in any::<Index>(),
        exists in any::<bool>(),
        damage in damage(),
    ) {
        let mut all = Vec::new();
        pointers(&value, "", &mut all);
        let pointer = if exists { pick.get(&all) } else { &any };
        let body = damaged(serde_json::to_vec(&value).unwrap(), &damage);
        let id = at(pointer, body.clone());
        if serde_json::from_slice::<IgnoredAny>(&body).is_err() {
            prop_assert_eq!(id, Err(NoId::Malformed));
        } else if let Ok(value) = serde_json::from_slice::<Value>(&body) {
            // A damage may have made a key occur twice, of which the reference takes the last.
            let found = value.pointer(pointer);
            match (&id, found) {
                (Ok(id), Some(Value::Number(number))) => {
                    let read: Value = serde_json::from_str(id).unwrap();
                    prop_assert_eq!(read, Value::Number(number.clone()));
                }
                (Ok(id), _) => prop_assert_eq!(Some(id.clone()), expected(&value, pointer)),
                (Err(why), _) => prop_assert!(
                    expected(&value, pointer).is_none() || *why == NoId::Ambiguous
                ),
            }
        }
    }

    #[test]
    fn any_bytes_never_panic(body in any::<Vec<u8>>(), pointer in pointer()) {
        let id = at(&pointer, body.clone());
        if serde_json::from_slice::<IgnoredAny>(&body).is_err() {
            prop_assert_eq!(id, Err(NoId::Malformed));
        }
    }

    #[test]
    fn a_number_keeps_its_exact_source_text(
        number in "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?",
        space in "[ \t\r\n]{0,3}",
    ) {
        let body = format!(r#"{{"a":[{space}{number}{space},"x"]}}"#);
        prop_assert_eq!(at("/a/0", body), ok(&number));
        prop_assert_eq!(at("", format!("{space}{number}{space}")), ok(&number));
    }

    #[test]
    fn escapes_in_strings_and_keys_make_no_difference(
        key in text(),
        id in "\\PC{1,12}",
        key_escapes in any::<u64>(),
        id_escapes in any::<u64>(),
    ) {
        prop_assume!(!id.trim().is_empty());
        let (quoted_key, quoted_id) = (quoted(&key, key_escapes), quoted(&id, id_escapes));
        let body = format!("{{{quoted_key}:{quoted_id}}}");
        prop_assert_eq!(at(&format!("/{}", escaped(&key)), body), Ok(id));
    }

    #[test]
    fn a_key_twice_on_the_path_is_never_an_id(
        key in text(),
        first in json(),
        second in json(),
        escapes in any::<(u64, u64)>(),
        below in pointer(),
    ) {
        let (one, other) = (quoted(&key, escapes.0), quoted(&key, escapes.1));
        let body = format!("{{{one}:{first},{other}:{second}}}");
        let pointer = format!("/{}{below}", escaped(&key));
        prop_assert_eq!(at(&pointer, body), Err(NoId::Ambiguous));
    }

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

    #[test]
    fn any_text_parses_as_a_pointer_and_back_or_is_refused(text in "[/~012a]{0,8}|\\PC{0,8}") {
        match text.parse::<JsonPointer>() {
            Ok(pointer) => prop_assert_eq!(pointer.to_string(), text),
            Err(_) => prop_assert!(
                !text.is_empty() && !text.starts_with('/')
                    || text.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1']))
            ),
        }
    }

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

fn at_both(body: impl Into<Bytes>) -> Result<String, NoId> {
    let both = EventId::pointer("/a").and(EventId::pointer("/b"));
    read(both, post(body))
}

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
    paused_runtime().block_on(async {
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
        let seen = paused_runtime().block_on(send(&layer, post(*body)));
        assert_eq!(seen.outcome, "unprotected");
        assert_eq!(seen.body.unwrap(), *body);
    }
    assert!(store.is_empty());
}

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

// R27
#[test]
fn a_byte_order_mark_is_skipped_for_the_id_and_kept_for_the_handler() {
    let body = "\u{feff}{ \"id\" : \"e1\" }\n";
    assert_eq!(at("/id", body), ok("e1"));
    let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"));
    let seen = paused_runtime().block_on(send(&layer, post(body)));
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
fn a_pointer_reads_the_body_whatever_the_content_type_says() {
    let mut request = form(r#"{"id":"e1"}"#);
    assert_eq!(read(EventId::pointer("/id"), request.clone()), ok("e1"));
    request
        .headers_mut()
        .insert("content-type", "text/plain".parse().unwrap());
    assert_eq!(read(EventId::pointer("/id"), request), ok("e1"));
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

#[test]
fn where_an_id_is_read_and_why_there_is_none_can_be_logged() {
    let everywhere = EventId::pointer("/a~1b")
        .or(EventId::header("x-id"))
        .or(EventId::form("id"))
        .and(EventId::query("id").optional())
        .and(EventId::custom(|_, _| None));
    let shown = format!("{everywhere:?}");
    let sources = [
        "pointer(/a~1b)",
        "header(x-id)",
        "form(id)",
        "optional(query(id))",
        "custom",
    ];
    let mut from = 0;
    for source in sources {
        let found = shown[from..].find(source);
        from += found.unwrap_or_else(|| panic!("{source} is not in {shown}"));
    }
    let pointer: JsonPointer = "/a~1b".parse().unwrap();
    assert_eq!(format!("{pointer:?}"), "JsonPointer(/a~1b)");

    let reasons = [
        NoId::Absent,
        NoId::Blank,
        NoId::Ambiguous,
        NoId::WrongType,
        NoId::Malformed,
    ];
    let texts: BTreeSet<_> = reasons.iter().map(NoId::to_string).collect();
    assert_eq!(texts.len(), reasons.len());
    assert!(!texts.contains(""));
}
