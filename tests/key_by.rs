//! What of a body makes two requests the same event is what the user chose, and nothing else.

use std::{collections::BTreeMap, convert::Infallible, io::Write};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use proptest::{prelude::*, sample::Index};
use tokio::runtime::Runtime;
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{
    BodyHash, Delivery, EventId, JsonPointer, Key, KeyBy, MissingId, NoId, Outcome, Refusal,
    RequestBody, WebhookDedupLayer,
};

use front::MemoryStore;
use runtime::paused_runtime;

#[path = "support/front.rs"]
mod front;
#[path = "support/property.rs"]
mod property;
#[path = "support/runtime.rs"]
mod runtime;

thread_local! {
    static RUNTIME: Runtime = paused_runtime();
}

fn layer(key_by: &KeyBy) -> WebhookDedupLayer<MemoryStore> {
    WebhookDedupLayer::new(MemoryStore::with_capacity(1), EventId::header("x-id"))
        .namespace("t")
        .key_by(key_by.clone())
}

fn delivery(body: &[u8]) -> Request<Full<Bytes>> {
    Request::post("/hook")
        .header("x-id", "e1")
        .body(Full::from(body.to_vec()))
        .unwrap()
}

/// What the handler is told of the event, or why it never got it.
async fn send(
    layer: WebhookDedupLayer<MemoryStore>,
    body: &[u8],
) -> Result<(Key, BodyHash, bool), NoId> {
    let handler = service_fn(|request: Request<RequestBody<Full<Bytes>>>| async move {
        let delivery = request.extensions().get::<Delivery>().unwrap().clone();
        let mut response = Response::new(Full::<Bytes>::default());
        response.extensions_mut().insert(delivery);
        Ok::<_, Infallible>(response)
    });
    let response = layer.layer(handler).oneshot(delivery(body)).await.unwrap();
    match response.extensions().get::<Outcome>().unwrap() {
        Outcome::Refused(Refusal::NoEventId(why)) => {
            assert_eq!(response.status(), 400);
            Err(*why)
        }
        Outcome::Run { .. } => {
            let delivery = response.extensions().get::<Delivery>().unwrap();
            let key = delivery.key().clone();
            Ok((key, delivery.body_hash(), delivery.is_by_body()))
        }
        other => panic!("a fresh event became {other:?}"),
    }
}

/// The key of this body.
fn key(key_by: &KeyBy, body: impl AsRef<[u8]>) -> Result<Key, NoId> {
    let sent = send(layer(key_by), body.as_ref());
    let (key, hash, by_body) = RUNTIME.with(|runtime| runtime.block_on(sent))?;
    assert_eq!(hash, BodyHash::of(body.as_ref()), "the hash is the body's");
    assert!(!by_body);
    Ok(key)
}

#[track_caller]
fn same(key_by: &KeyBy, bodies: &[&str]) {
    let first = key(key_by, bodies[0]).unwrap();
    for body in bodies {
        assert_eq!(key(key_by, body).as_ref(), Ok(&first), "{body}");
    }
}

#[track_caller]
fn all_differ(key_by: &KeyBy, bodies: &[&str]) {
    let mut seen = BTreeMap::new();
    for body in bodies {
        let same = seen.insert(key(key_by, body).unwrap(), *body);
        assert_eq!(same, None, "one event with {body}");
    }
}

#[track_caller]
fn none(key_by: &KeyBy, why: NoId, bodies: &[&str]) {
    for body in bodies {
        assert_eq!(key(key_by, body), Err(why), "{body}");
    }
}

fn fields() -> KeyBy {
    KeyBy::id_and_fields(["/a", "/b/c"])
}

fn except() -> KeyBy {
    KeyBy::id_and_body_except(["/n", "/list/1", "/deep/er/n"])
}

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

/// The body around a value.
type Around = fn(&str) -> String;

/// For a value that counts as a whole, however it is chosen.
fn ways() -> [(KeyBy, Around); 3] {
    [
        (KeyBy::id_and_fields(["/v"]), |v| format!(r#"{{"v":{v}}}"#)),
        (KeyBy::id_and_fields([""]), |v| format!("[{v}]")),
        (KeyBy::id_and_body_except(["/n"]), |v| {
            format!(r#"{{"n":1,"x":[{v}]}}"#)
        }),
    ]
}

// R30, R60
#[test]
fn values_are_compared_by_what_they_mean() {
    for (key_by, body) in ways() {
        let bodies = |values: &[&str]| values.iter().map(|v| body(v)).collect::<Vec<_>>();
        let differ = [
            "null",
            "true",
            "false",
            "0",
            "\"\"",
            "\"null\"",
            "\"true\"",
            "\"0\"",
            "\" \"",
            "[]",
            "{}",
            "[null]",
            "[[]]",
            "[0,1]",
            "[1,0]",
            "[[0],1]",
            "[[0,1]]",
            "[\"0,1\"]",
            r#"{"a":null}"#,
            r#"{"a":0}"#,
            r#"{"a":{"b":0}}"#,
            r#"{"a":0,"b":0}"#,
            r#"{"a":"","b":0}"#,
            r#"{"":0}"#,
            r#"{"b":0}"#,
            // Numbers count by their text: what a double makes of it is not known.
            "-0",
            "0.0",
            "1",
            "1.0",
            "1e0",
            "1E0",
            "9007199254740993",
            "9007199254740992",
            "18446744073709551616",
            "18446744073709551617",
            "1e999",
            // Text is not normalised.
            "\"\u{e9}\"",
            "\"e\u{301}\"",
            "\"\\u0000\"",
        ];
        let differ = bodies(&differ);
        all_differ(
            &key_by,
            &differ.iter().map(String::as_str).collect::<Vec<_>>(),
        );
        for alike in [
            &[
                r#"{"a":[1,2],"b":{"c":3,"d":4}}"#,
                "{ \"b\" : {\"d\":4 ,\n\"c\":3} , \"a\"\t:[ 1,2\r] }",
            ][..],
            &[
                "\"a/\u{e9}\u{1F600}\\n\"",
                r#""\u0061\/\u00E9\ud83d\ude00\u000a""#,
            ],
            &[r#"{"a":0}"#, r#"{"\u0061":0}"#],
            &["[]", "[ ]"],
            &["{}", "{\n}"],
        ] {
            let alike = bodies(alike);
            same(
                &key_by,
                &alike.iter().map(String::as_str).collect::<Vec<_>>(),
            );
        }
    }
}

// R60
#[test]
fn a_key_twice_in_what_counts_makes_no_id() {
    let twice = [
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"b":2,"\u0061":2}"#,
        r#"[0,{"x":{"a":1,"a":2}}]"#,
    ];
    for (key_by, body) in ways() {
        for value in twice {
            none(&key_by, NoId::Ambiguous, &[&body(value)]);
        }
    }
    // On the way to what counts, or to what does not.
    none(
        &fields(),
        NoId::Ambiguous,
        &[
            r#"{"a":1,"a":1}"#,
            r#"{"b":{"c":1},"b":{}}"#,
            r#"{"b":{"c":1,"c":1}}"#,
        ],
    );
    none(
        &except(),
        NoId::Ambiguous,
        &[
            r#"{"n":1,"n":2}"#,
            r#"{"deep":{"er":1},"deep":{"er":2}}"#,
            r#"{"deep":{"er":{"n":1,"n":1}}}"#,
        ],
    );
    // Elsewhere it is nothing to us.
    key(&fields(), r#"{"z":1,"z":2,"a":1}"#).unwrap();
}

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

#[test]
fn many_keys_are_no_trouble() {
    let members = |numbers: &mut dyn Iterator<Item = usize>| {
        let members: Vec<_> = numbers.map(|n| format!("\"k{n}\":{n}")).collect();
        format!("{{{}}}", members.join(","))
    };
    let (up, down) = (members(&mut (0..50_000)), members(&mut (0..50_000).rev()));
    same(&except(), &[&up, &down]);
    none(
        &except(),
        NoId::Ambiguous,
        &[&up.replace("\"k49999\"", "\"k0\"")],
    );
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
        RUNTIME.with(|runtime| {
            runtime.block_on(async {
                let answer = forwarding.oneshot(delivery(&gzip)).await.unwrap();
                let outcome = answer.extensions().get::<Outcome>().unwrap();
                assert!(matches!(outcome, Outcome::Unprotected(_)), "{outcome:?}");
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(body, gzip);
            });
        });
    }
}

#[test]
fn without_a_readable_part_the_policy_decides() {
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let not_json = b"a=1";
            let refusing = layer(&fields());
            assert_eq!(send(refusing.clone(), not_json).await, Err(NoId::Malformed));
            let by_body = refusing.missing_id(MissingId::UseBodyHash);
            let (_, hash, is_by_body) = send(by_body, not_json).await.unwrap();
            assert!(is_by_body);
            assert_eq!(hash, BodyHash::of(not_json));
        });
    });
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

// Any JSON, in any spelling.

/// JSON whose numbers are text, and whose keys have no order.
#[derive(Clone, Debug, PartialEq)]
enum Json {
    Plain(String),
    Text(String),
    Array(Vec<Self>),
    Object(BTreeMap<String, Self>),
}

fn json() -> impl Strategy<Value = Json> {
    let plain = prop_oneof![
        prop::sample::select(vec!["null", "true", "false"]).prop_map(str::to_owned),
        "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,3})?",
    ];
    let leaf = prop_oneof![
        plain.prop_map(Json::Plain),
        "[ab]{0,2}|\\PC{0,6}".prop_map(Json::Text),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::Array),
            prop::collection::btree_map("[ab]{0,2}|\\PC{0,3}", inner, 0..4).prop_map(Json::Object),
        ]
    })
}

/// Small numbers, one after the other, that a seed stands for.
struct Choices(u64);

impl Choices {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % end
    }
}

/// One of the many spellings.
fn spell(json: &Json, choices: &mut Choices, out: &mut String) {
    let space = |choices: &mut Choices, out: &mut String| {
        out.push_str(["", " ", "\n\t", "\r"][choices.below(4)]);
    };
    space(choices, out);
    match json {
        Json::Plain(text) => out.push_str(text),
        Json::Text(text) => spell_text(text, choices, out),
        Json::Array(elements) => {
            out.push('[');
            for (n, element) in elements.iter().enumerate() {
                out.push_str(if n > 0 { "," } else { "" });
                spell(element, choices, out);
            }
            space(choices, out);
            out.push(']');
        }
        Json::Object(members) => {
            out.push('{');
            let mut members: Vec<_> = members.iter().collect();
            for n in 0..members.len() {
                out.push_str(if n > 0 { "," } else { "" });
                space(choices, out);
                let (key, value) = members.swap_remove(choices.below(members.len()));
                spell_text(key, choices, out);
                space(choices, out);
                out.push(':');
                spell(value, choices, out);
            }
            space(choices, out);
            out.push('}');
        }
    }
    space(choices, out);
}

fn spell_text(text: &str, choices: &mut Choices, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        let must = matches!(character, '"' | '\\') || character < ' ';
        if must || choices.below(4) == 0 {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(character);
        }
    }
    out.push('"');
}

fn spelled(json: &Json, seed: u64) -> String {
    let mut out = String::new();
    spell(json, &mut Choices(seed), &mut out);
    out
}

/// Changes something, here or below.
fn change(json: &mut Json, pick: Index) {
    let below = |len: usize| (len > 0).then(|| pick.index(len));
    match json {
        Json::Plain(text) => text.push('0'),
        Json::Text(text) => text.push('a'),
        Json::Array(elements) => match below(elements.len()) {
            Some(n) => change(&mut elements[n], pick),
            None => elements.push(Json::Array(Vec::new())),
        },
        Json::Object(members) => match below(members.len()) {
            Some(n) => change(members.values_mut().nth(n).unwrap(), pick),
            None => {
                members.insert(String::new(), Json::Array(Vec::new()));
            }
        },
    }
}

proptest! {
    #![proptest_config(property::config(128))]

    #[test]
    fn any_spelling_is_the_same_event_and_any_change_another(
        value in json(),
        other in json(),
        seeds in any::<(u64, u64)>(),
        pick in any::<Index>(),
    ) {
        for (key_by, body) in ways() {
            let key = |json: &Json, seed| key(&key_by, body(&spelled(json, seed)));
            let first = key(&value, seeds.0).unwrap();
            prop_assert_eq!(key(&value, seeds.1), Ok(first.clone()));
            prop_assert_eq!(key(&other, seeds.1) == Ok(first.clone()), value == other);
            let mut changed = value.clone();
            change(&mut changed, pick);
            if serde_json::from_str::<serde::de::IgnoredAny>(&spelled(&changed, 0)).is_ok() {
                prop_assert_ne!(key(&changed, seeds.0), Ok(first));
            }
        }
    }

    #[test]
    fn what_is_left_out_may_be_anything(
        members in prop::collection::btree_map("[a-c]", json(), 0..4),
        hidden in json(),
        seeds in any::<(u64, u64)>(),
    ) {
        let key_by = KeyBy::id_and_body_except(["/n"]);
        let without = key(&key_by, spelled(&Json::Object(members.clone()), seeds.0)).unwrap();
        let mut with = members;
        with.insert("n".to_owned(), hidden);
        prop_assert_eq!(key(&key_by, spelled(&Json::Object(with), seeds.1)), Ok(without));
    }

    #[test]
    fn any_bytes_never_panic(body in prop_oneof![
        any::<Vec<u8>>(),
        "[\\[\\]{}\",:\\\\u0d8 a1-]{0,24}".prop_map(String::into_bytes),
    ]) {
        for key_by in [fields(), except(), KeyBy::id_and_fields([""])] {
            let key = key(&key_by, &body);
            if serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_err() {
                prop_assert_eq!(key, Err(NoId::Malformed));
            }
        }
    }
}
