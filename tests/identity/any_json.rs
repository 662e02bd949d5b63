//! Any JSON, whole or damaged, and any pointer: as the reference reads it, or not at all.

use proptest::{prelude::*, sample::Index};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use tower_webhook_dedup::{JsonPointer, NoId};

use crate::{at, ok, property};

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
}
