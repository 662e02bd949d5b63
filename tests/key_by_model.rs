//! What `KeyBy` makes of a JSON text, beside what serde_json makes of it: also where the text is cut
//! or damaged anywhere.

use std::{collections::BTreeMap, convert::Infallible, fmt};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use proptest::{prelude::*, sample::Index};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{Delivery, EventId, Key, KeyBy, RequestBody, WebhookDedupLayer};

use front::MemoryStore;
use runtime::block_on;

#[path = "support/front.rs"]
mod front;
#[path = "support/property.rs"]
mod property;
#[path = "support/runtime.rs"]
mod runtime;

/// The key of this body; `None` where it has none.
fn key(key_by: &KeyBy, body: &[u8]) -> Option<Key> {
    let handler = service_fn(|request: Request<RequestBody<Full<Bytes>>>| async move {
        let mut response = Response::new(Full::<Bytes>::default());
        let delivery = request.extensions().get::<Delivery>().unwrap();
        response.extensions_mut().insert(delivery.clone());
        Ok::<_, Infallible>(response)
    });
    let layer = WebhookDedupLayer::new(MemoryStore::with_capacity(1), EventId::header("x-id"))
        .namespace("t")
        .key_by(key_by.clone());
    let request = Request::post("/hook").header("x-id", "e1");
    let request = request.body(Full::from(body.to_vec())).unwrap();
    let answer = layer.layer(handler).oneshot(request);
    let answer = block_on(answer).unwrap();
    let delivery = answer.extensions().get::<Delivery>();
    delivery.map(|delivery| delivery.key().clone())
}

/// A value as the docs say that it is compared.
#[derive(Debug, PartialEq)]
enum Model {
    /// A number by its text, `true`, `false` or `null`.
    Plain(String),
    Text(String),
    Array(Vec<Option<Self>>),
    Object(BTreeMap<String, Self>),
}

/// The members of an object in the order that they stand in.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(object: D) -> Result<Self, D::Error> {
        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        object.deserialize_map(All)
    }
}

impl Model {
    /// Of the value, but for what stands at a path below it. `None` where it has no key.
    fn of(value: &RawValue, except: &[&str]) -> Option<Self> {
        let text = value.get();
        Some(match text.as_bytes()[0] {
            b'"' => Self::Text(serde_json::from_str(text).ok()?),
            b'[' => {
                let elements: Vec<&RawValue> = serde_json::from_str(text).ok()?;
                let mut array = Vec::new();
                for (n, element) in elements.into_iter().enumerate() {
                    array.push(match except {
                        [last] if *last == n.to_string() => None,
                        [next, rest @ ..] if *next == n.to_string() => {
                            Some(Self::of(element, rest)?)
                        }
                        _ => Some(Self::of(element, &[])?),
                    });
                }
                Self::Array(array)
            }
            b'{' => {
                let Members(members) = serde_json::from_str(text).ok()?;
                let mut object = BTreeMap::new();
                let mut left_out = 0;
                for (key, value) in members {
                    let value = match except {
                        [last] if *last == key => {
                            left_out += 1;
                            continue;
                        }
                        [next, rest @ ..] if *next == key => Self::of(value, rest)?,
                        _ => Self::of(value, &[])?,
                    };
                    if object.insert(key, value).is_some() {
                        return None;
                    }
                }
                if left_out > 1 {
                    return None;
                }
                Self::Object(object)
            }
            _ => Self::Plain(text.to_owned()),
        })
    }

    fn of_body(body: &[u8], except: &[&str]) -> Option<Self> {
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        Self::of(serde_json::from_slice(body).ok()?, except)
    }
}

/// JSON in which all that is hard stands close together.
fn json() -> impl Strategy<Value = String> {
    let text = prop::sample::select(vec![
        r#""""#,
        r#""a""#,
        r#""n""#,
        r#""\u006e""#,
        r#""\u006E""#,
        r#""\n""#,
        r#""\\""#,
        r#""\"""#,
        r#""\/""#,
        r#""/""#,
        r#""\ud83d\ude00""#,
        r#""😀""#,
        r#""\ud800""#,
        r#""\udc00\ud800""#,
        r#""\u0000""#,
        r#""{[,:""#,
        "\"\u{fffd}\"",
    ]);
    let plain = prop::sample::select(vec![
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1",
        "1.0",
        "1e5",
        "1E5",
        "1e+5",
        "1e400",
        "-1e-400",
        "18446744073709551616",
        "0.10",
        "123456789012345678901234567890",
    ]);
    let space = || prop::sample::select(vec!["", "", " ", "\t\r\n"]);
    let leaf = prop_oneof![text.clone(), plain].prop_map(str::to_owned);
    leaf.prop_recursive(4, 32, 4, move |inner| {
        let member = (text.clone(), space(), inner.clone());
        let member = member.prop_map(|(key, space, value)| format!("{key}{space}:{value}"));
        let elements = (prop::collection::vec(inner, 0..4), space());
        let members = (prop::collection::vec(member, 0..4), space());
        prop_oneof![
            elements.prop_map(|(all, space)| format!("[{space}{}{space}]", all.join(","))),
            members.prop_map(|(all, space)| format!("{{{space}{}{space}}}", all.join(","))),
        ]
    })
}

/// A byte is changed, removed or put in.
fn damaged(text: &[u8], at: Index, how: usize, byte: u8) -> Vec<u8> {
    let mut text = text.to_vec();
    let at = at.index(text.len());
    match how {
        0 => text[at] = byte,
        1 => _ = text.remove(at),
        _ => text.insert(at, byte),
    }
    text
}

fn bytes() -> impl Strategy<Value = u8> {
    let hard = b"{}[]\",:\\/ \t\n\x0b\x0c\x00\x1f\x7f\x80\xc3\xed\xff\xefu-+.eE019anDd".to_vec();
    prop::sample::select(hard)
}

proptest! {
    #![proptest_config(property::config(512))]

    #[test]
    fn two_texts_have_one_key_where_serde_json_reads_the_same(
        one in json(),
        at in any::<Index>(),
        how in 0..3_usize,
        byte in bytes(),
    ) {
        let one = one.into_bytes();
        let other = damaged(&one, at, how, byte);
        for except in [&["n"][..], &["1"], &["n", "n"], &["0", "n", "1"], &["none"]] {
            let key_by = KeyBy::id_and_body_except([format!("/{}", except.join("/")).as_str()]);
            let models = [&one, &other].map(|body| Model::of_body(body, except));
            let keys = [&one, &other].map(|body| key(&key_by, body));
            for (model, key) in models.iter().zip(&keys) {
                prop_assert_eq!(model.is_some(), key.is_some(), "{:?}", model);
            }
            if let [Some(model), Some(_)] = &models {
                prop_assert_eq!(keys[0] == keys[1], models[1].as_ref() == Some(model));
            }
        }
    }
}
