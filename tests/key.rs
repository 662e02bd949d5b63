//! Keys of different events are never equal, and no part of a key can pass for another.

use std::{collections::HashSet, convert::Infallible};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use proptest::{prelude::*, sample::Index};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{
    BodyHash, Delivery, EventId, Key, MissingId, RequestBody, WebhookDedupLayer,
};

use front::MemoryStore;

#[path = "support/front.rs"]
mod front;
#[path = "support/property.rs"]
mod property;

/// What a key is made of.
type Made = (String, String, Option<BodyHash>);

fn key((namespace, id, hash): &Made) -> Key {
    match hash {
        Some(hash) => Key::with_hash(namespace, id, *hash),
        None => Key::new(namespace, id),
    }
}

fn digest(text: &str) -> String {
    BodyHash::of(text.as_bytes()).to_string()
}

/// Text that is made to collide: separators, escapes, digests, and lengths around the longest part.
fn part() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ab:*=!%{}/.|~3A]{0,6}",
        "\\PC{0,12}",
        any::<String>(),
        "[a:]{198,203}",
        "[a\u{e9}]{30,70}",
        "[ab]{201,204}".prop_map(|long| digest(&long)),
        "[ab]{0,2}".prop_map(|short| format!("={}", digest(&short))),
        Just(String::new()),
    ]
}

fn hash() -> impl Strategy<Value = Option<BodyHash>> {
    prop::option::of("[ab]{0,2}".prop_map(|body| BodyHash::of(body.as_bytes())))
}

fn made() -> impl Strategy<Value = Made> {
    (part(), part(), hash())
}

/// Two that have much in common.
fn alike() -> impl Strategy<Value = (Made, Made)> {
    (made(), made(), 0..8_u8).prop_map(|(one, mut other, same)| {
        if same & 1 == 1 {
            other.0.clone_from(&one.0);
        }
        if same & 2 == 2 {
            other.1.clone_from(&one.1);
        }
        if same & 4 == 4 {
            other.2 = one.2;
        }
        (one, other)
    })
}

/// Moves the border between two parts.
fn shifted() -> impl Strategy<Value = (Made, Made)> {
    let border = prop::sample::select(vec![":", "|", "%3A", "/", "", "*", "=", "!"]);
    (
        "[ab:|%]{1,12}",
        any::<Index>(),
        any::<Index>(),
        border,
        hash(),
    )
        .prop_map(|(text, one, other, border, hash)| {
            let cut = |at: Index| {
                let (namespace, id) = text.split_at(at.index(text.len()));
                (format!("{namespace}{border}"), id.to_owned(), hash)
            };
            (cut(one), cut(other))
        })
}

proptest! {
    #![proptest_config(property::config(512))]

    #[test]
    fn keys_are_equal_only_where_namespace_id_and_hash_are((one, other) in alike()) {
        prop_assert_eq!(key(&one) == key(&other), one == other);
        prop_assert_eq!(key(&one).as_str() == key(&other).as_str(), one == other);
    }

    // R34
    #[test]
    fn where_one_part_ends_and_the_next_begins_is_part_of_the_key((one, other) in shifted()) {
        prop_assert_eq!(key(&one) == key(&other), one == other);
    }

    #[test]
    fn a_key_is_read_back_from_its_text(made in made()) {
        let key = key(&made);
        prop_assert_eq!(key.to_string().parse(), Ok(key.clone()));
        prop_assert_eq!(key.to_string(), key.as_str());
        let debug = format!("{key:?}");
        prop_assert!(debug.contains(key.as_str()));
    }

    // R35
    #[test]
    fn a_key_is_short_and_has_five_parts_of_plain_characters(made in made()) {
        let key = key(&made);
        let text = key.as_str();
        prop_assert!(text.len() < 512, "{} bytes", text.len());
        prop_assert!(text.bytes().all(
            |byte| byte.is_ascii_alphanumeric() || b"-._~%:=*".contains(&byte)
        ), "{}", text);
        let parts: Vec<_> = text.split(':').collect();
        prop_assert_eq!(parts.len(), 5);
        prop_assert_eq!(&parts[..2], &["webhook", "lock"]);
        prop_assert!(parts[2].len() <= 200 && parts[3].len() <= 200);
        match made.2 {
            Some(hash) => prop_assert_eq!(parts[4], hash.to_string()),
            None => prop_assert_eq!(parts[4], "*"),
        }
    }

    #[test]
    fn any_text_is_a_key_with_the_same_text_or_none(
        text in "webhook:lock:[a%3=!:*]{0,12}|webhook:lock:\\PC{0,12}|\\PC{0,24}",
    ) {
        if let Ok(key) = text.parse::<Key>() {
            prop_assert_eq!(key.as_str(), text);
        }
    }

    #[test]
    fn a_damaged_key_is_a_key_with_the_same_text_or_none(
        made in made(),
        at in any::<Index>(),
        to in any::<Index>(),
        character in any::<char>(),
    ) {
        let text = key(&made).to_string();
        let (at, to) = (at.index(text.len()), to.index(text.len()));
        let damaged = [
            format!("{}{character}{}", &text[..at], &text[at..]),
            format!("{}{character}{}", &text[..at], &text[at + 1..]),
            format!("{}{}", &text[..at.min(to)], &text[at.max(to)..]),
            format!("{}{}", &text[..at.max(to)], &text[at.min(to)..]),
        ];
        for text in damaged {
            if let Ok(key) = text.parse::<Key>() {
                prop_assert_eq!(key.as_str(), text);
            }
        }
    }
}

// R34
#[test]
fn parts_cannot_run_together() {
    let keys = [
        Key::new("a:b", "c"),
        Key::new("a", "b:c"),
        Key::new("a", "b"),
        Key::new("a%3Ab", "c"),
        Key::new("a", "b|c"),
        Key::new("a|b", "c"),
        Key::new("a\n", "b"),
        Key::new("a", "\nb"),
        Key::new("a\0", "b"),
        Key::new("a", "\0b"),
        Key::new("prod", "2"),
        Key::new("prod2", ""),
        Key::new("", "prod2"),
        Key::new("", ""),
        Key::new("", ":"),
        Key::new(":", ""),
        Key::new("*", "*"),
    ];
    let texts: HashSet<_> = keys.iter().map(Key::as_str).collect();
    assert_eq!(texts.len(), keys.len());
}

// R35, R60
#[test]
fn every_odd_character_is_encoded() {
    let odd = "{x}\r\n\0\u{7f} e\u{301}é:*=!%/\\|";
    assert_eq!(
        Key::new(odd, "Az09-._~").as_str(),
        "webhook:lock:%7Bx%7D%0D%0A%00%7F%20e%CC%81%C3%A9%3A%2A%3D%21%25%2F%5C%7C:Az09-._~:*"
    );
    assert_ne!(Key::new("n", "é"), Key::new("n", "e\u{301}"));
    assert_ne!(Key::new("n", "e1"), Key::new("n", "E1"));
    assert_ne!(Key::new("n", "e1"), Key::new("n", " e1"));
    assert_ne!(Key::new("n", "e1"), Key::new("n", "e1 "));
}

#[test]
fn a_hash_in_the_place_of_an_id_is_another_event() {
    let hash = BodyHash::of(b"{}");
    let id = hash.to_string();
    let keys = [
        Key::new("n", &id),
        Key::with_hash("n", &id, hash),
        Key::with_hash("n", "", hash),
        Key::new(&id, "n"),
        Key::with_hash("n", "*", hash),
        Key::with_hash("n", &id, BodyHash::of(id.as_bytes())),
    ];
    let texts: HashSet<_> = keys.iter().map(Key::as_str).collect();
    assert_eq!(texts.len(), keys.len());
}

#[test]
fn a_part_over_200_encoded_bytes_becomes_its_digest() {
    let longest = "a".repeat(200);
    assert_eq!(
        Key::new("n", &longest).as_str(),
        format!("webhook:lock:n:{longest}:*")
    );
    let longer = "a".repeat(201);
    assert_eq!(
        Key::new("n", &longer).as_str(),
        format!("webhook:lock:n:={}:*", digest(&longer))
    );
    // It is the encoded form that counts: 66 × 3 bytes and 2 are 200, one more is not.
    let encoded = format!("aa{}", ":".repeat(66));
    assert!(Key::new("n", &encoded).as_str().ends_with("%3A:*"));
    let encoded = format!("a{encoded}");
    assert!(Key::new("n", &encoded).as_str().contains(":="));
    // Cut at 200 bytes they would be the same.
    assert_ne!(
        Key::new("n", format!("{longer}b")),
        Key::new("n", format!("{longer}c"))
    );
    assert_ne!(Key::new(&longer, "i"), Key::new("i", &longer));
}

#[test]
fn the_longest_key_has_room() {
    let (longest, hash) = ("a".repeat(200), BodyHash::of(b"{}"));
    assert_eq!(
        Key::with_hash(&longest, &longest, hash).as_str(),
        format!("webhook:lock:{longest}:{longest}:{hash}")
    );
}

#[test]
fn an_id_that_is_the_digest_of_a_long_one_is_another_event() {
    let long = "a".repeat(201);
    let ids = [
        long.clone(),
        digest(&long),
        format!("={}", digest(&long)),
        format!("!{}", digest(&long)),
        format!("%3D{}", digest(&long)),
        format!("={}", digest(&long).to_uppercase()),
    ];
    let keys: HashSet<_> = ids.iter().map(|id| Key::new("n", id)).collect();
    assert_eq!(keys.len(), ids.len());
}

#[test]
fn what_no_key_looks_like_is_refused() {
    let hash = digest("");
    let not_keys = [
        String::new(),
        "webhook:lock:".into(),
        "webhook:lock:n:i".into(),
        "webhook:lock:n:i:".into(),
        "webhook:lock:n:i:**".into(),
        "webhook:lock:n:i:*:".into(),
        "webhook:lock:n:i:*:*".into(),
        "webhook:lock:n:i:* ".into(),
        " webhook:lock:n:i:*".into(),
        "Webhook:lock:n:i:*".into(),
        "webhook:lock:{n}:i:*".into(),
        "webhook:lock:n:é:*".into(),
        "webhook:lock:n:%7b:*".into(),
        "webhook:lock:n:%41:*".into(),
        "webhook:lock:n:%4:*".into(),
        "webhook:lock:n:%:*".into(),
        "webhook:lock:n:=:*".into(),
        "webhook:lock:n:!:*".into(),
        "webhook:lock:n:i\n:*".into(),
        format!("webhook:lock:n:i:{}", &hash[1..]),
        format!("webhook:lock:n:i:{hash}0"),
        format!("webhook:lock:n:i:{}", hash.to_uppercase()),
        format!("webhook:lock:n:={}:*", hash.to_uppercase()),
        format!("webhook:lock:!{hash}:i:*"),
        format!("webhook:lock:n:{}:*", "a".repeat(201)),
    ];
    for text in not_keys {
        assert!(text.parse::<Key>().is_err(), "{text}");
    }
    for text in [
        "webhook:lock:::*".to_owned(),
        format!("webhook:lock:={hash}:={hash}:{hash}"),
        format!("webhook:lock:n:!{hash}:{hash}"),
    ] {
        assert_eq!(text.parse::<Key>().unwrap().as_str(), text);
    }
}

/// The key of a request without an id, whose body stands for it.
async fn by_body(request: Request<Full<Bytes>>) -> Key {
    let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"))
        .namespace("n")
        .missing_id(MissingId::UseBodyHash);
    let handler = service_fn(|request: Request<RequestBody<Full<Bytes>>>| async move {
        let delivery = request.extensions().get::<Delivery>().unwrap();
        assert!(delivery.is_by_body());
        assert_eq!(delivery.event_id(), delivery.body_hash().to_string());
        let mut response = Response::new(Full::<Bytes>::default());
        response.extensions_mut().insert(delivery.key().clone());
        Ok::<_, Infallible>(response)
    });
    let response = layer.layer(handler).oneshot(request).await.unwrap();
    response.extensions().get::<Key>().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_id_has_a_key_that_no_id_gives() {
    let request = || Request::post("/hook?a=1");
    let body = || Full::from("ping");
    let key = by_body(request().body(body()).unwrap()).await;
    assert_eq!(key.as_str().parse(), Ok(key.clone()));
    let id = key.as_str().split(':').nth(3).unwrap();
    assert!(id.starts_with('!'));
    for forged in [id, &id[1..], &digest("ping")] {
        assert_ne!(Key::with_hash("n", forged, BodyHash::of(b"ping")), key);
    }

    // Each thing that tells it from others does.
    let others = [
        Request::post("/hook").body(body()),
        Request::post("/hook?").body(body()),
        Request::post("/hook?a=2").body(body()),
        Request::post("/other?a=1").body(body()),
        request().header("content-type", "").body(body()),
        request().header("content-type", "text/plain").body(body()),
        request().body(Full::from("pong")),
    ];
    let mut keys = HashSet::from([key.clone()]);
    for other in others {
        let other = by_body(other.unwrap()).await;
        assert!(keys.insert(other.clone()), "{other:?}");
    }
    // Other headers differ between attempts.
    let retry = request().header("x-attempt", "2").body(body()).unwrap();
    assert_eq!(by_body(retry).await, key);
}

#[test]
fn a_key_and_a_hash_are_the_same_wherever_they_are_shown() {
    let hash = BodyHash::of(b"x");
    let key = Key::with_hash("n", "e1", hash);
    let text = format!("webhook:lock:n:e1:{}", digest("x"));
    assert_eq!((key.as_ref(), key.to_string()), (&*text, text.clone()));
    assert_eq!(format!("{key:?}"), format!("Key({text})"));
    assert_eq!(format!("{hash:?}"), format!("BodyHash({})", digest("x")));
    let error = "webhook:lock:n".parse::<Key>().unwrap_err();
    assert!(error.to_string().contains(", or *}"), "{error}");
}

#[test]
fn keys_are_ordered_as_their_texts() {
    let mut keys = ["c", "a", "d", "b"].map(|id| Key::new("t", id));
    keys.sort();
    assert_eq!(keys, ["a", "b", "c", "d"].map(|id| Key::new("t", id)));
    assert!(keys[0] < keys[1] && keys[1] <= keys[1]);
}
