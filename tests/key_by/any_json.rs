//! Any JSON, in any spelling.

use std::collections::BTreeMap;

use proptest::{prelude::*, sample::Index};
use tower_webhook_dedup::{KeyBy, NoId};

use crate::{except, fields, key, property, ways};

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
