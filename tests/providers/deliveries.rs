//! One run for each event of its sender, however often and in what form it is delivered.

use std::collections::BTreeSet;

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;
use tokio::time::advance;
use tower::Layer;
use tower_webhook_dedup::{KeyBy, WebhookDedupLayer, providers};

use crate::{
    again, events,
    fixtures::Fixture,
    http_support::{Handler, Run, secs, send},
    name, of,
    stores::{MemoryStore, remembered},
};

#[tokio::test(start_paused = true)]
async fn every_fixture_runs_once_for_each_event_and_handshakes_each_time() {
    let (mut runs, mut duplicates, mut handshakes) = (0, 0, 0);
    for preset in providers::all() {
        let preset_name = name(&preset);
        let (store, handler) = (MemoryStore::new(), Handler::ok());
        let service = WebhookDedupLayer::new(store.clone(), preset.clone()).layer(handler.clone());
        let mut seen = BTreeSet::new();
        // All of it twice.
        for fixture in of(&preset).iter().chain(&of(&preset)) {
            let what = format!("{preset_name}: {}", fixture.name);
            let (before, kept) = (handler.runs(), store.len());
            let answer = send(&service, fixture.request()).await;
            let ran = handler.runs() - before;
            if fixture.is_handshake() {
                assert_eq!((answer.brief(), ran), ((200, ""), 1), "{what}");
                assert_eq!(answer.body, "from the handler", "{what}");
                assert_eq!(store.len(), kept, "{what}");
                handshakes += 1;
                continue;
            }
            let event = match fixture.same_as.as_str() {
                "-" => fixture.name.clone(),
                other => other.to_owned(),
            };
            if seen.insert(event) {
                assert_eq!((answer.brief(), ran), ((200, "run"), 1), "{what}");
                let last = handler.seen().pop().unwrap();
                assert_eq!(last.body, fixture.body, "{what}");
                runs += 1;
            } else {
                let (status, outcome) = answer.brief();
                assert_eq!((outcome, ran), ("duplicate", 0), "{what}");
                assert!((200..300).contains(&status), "{what}: {status}");
                duplicates += 1;
            }
        }
        assert_eq!(store.len(), seen.len(), "{preset_name}");
    }
    // So that nothing is left out by mistake.
    assert!(
        runs >= 33 && duplicates >= 61 && handshakes >= 18,
        "{runs}, {duplicates}, {handshakes}"
    );
}

#[tokio::test(start_paused = true)]
async fn handlers_are_told_the_id_that_the_manifest_has() {
    for preset in providers::all() {
        for fixture in of(&preset) {
            if fixture.is_handshake() {
                continue;
            }
            let expected = fixture.id().to_owned();
            let what = fixture.name.clone();
            let handler = Handler::new(move |run: Run| {
                let delivery = run.delivery();
                if delivery.is_by_body() {
                    assert_eq!(what, "zoom");
                } else {
                    // Shopify's is joined with topic and shop.
                    let id = delivery.event_id();
                    let id = if what == "shopify" {
                        id.split('|').next().unwrap()
                    } else {
                        id
                    };
                    assert_eq!(id, expected, "{what}");
                }
                async { 200 }
            });
            let layer = WebhookDedupLayer::new(MemoryStore::new(), preset.clone());
            let answer = send(&layer.layer(handler), fixture.request()).await;
            assert_eq!(answer.brief(), (200, "run"), "{}", fixture.name);
        }
    }
}

// R24
#[tokio::test(start_paused = true)]
async fn a_failed_first_attempt_runs_again_and_the_third_is_a_duplicate() {
    for preset in providers::all() {
        for first in events(&preset) {
            let what = &first.name;
            let handler = Handler::statuses([500, 200]);
            let layer = WebhookDedupLayer::new(MemoryStore::new(), preset.clone());
            let service = layer.layer(handler.clone());
            let retry = again(&first);
            let answer = send(&service, first.request()).await;
            assert_eq!(answer.brief(), (500, "run"), "{what}");
            let answer = send(&service, retry.request()).await;
            assert_eq!(answer.brief(), (200, "run"), "{what}");
            for third in [&retry, &first] {
                let answer = send(&service, third.request()).await;
                assert_eq!(answer.brief().1, "duplicate", "{what}");
            }
            assert_eq!(handler.runs(), 2, "{what}");
        }
    }
}

/// The fixture with each occurrence of a text replaced.
fn with(fixture: &Fixture, text: &str, by: &str) -> Fixture {
    let mut changed = fixture.clone();
    let body = str::from_utf8(&fixture.body).unwrap().replace(text, by);
    changed.body = body.into();
    for value in changed.headers.values_mut() {
        *value = HeaderValue::try_from(value.to_str().unwrap().replace(text, by)).unwrap();
    }
    changed
}

#[tokio::test(start_paused = true)]
async fn another_id_is_another_event() {
    for preset in providers::all() {
        for first in events(&preset) {
            let what = &first.name;
            // Zoom has no id; this is the time in its body.
            let id = if what == "zoom" {
                "1764201600077"
            } else {
                first.id()
            };
            for part in id.split('|') {
                let handler = Handler::ok();
                let layer = WebhookDedupLayer::new(MemoryStore::new(), preset.clone());
                let service = layer.layer(handler.clone());
                let other = with(&first, part, &format!("{part}1"));
                for _ in 0..2 {
                    for request in [first.request(), other.request()] {
                        send(&service, request).await;
                    }
                }
                assert_eq!(handler.runs(), 2, "{what}: {part}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_body_is_another_event_only_where_the_body_is_in_the_key() {
    for preset in providers::all() {
        for first in events(&preset) {
            let what = &first.name;
            let service = WebhookDedupLayer::new(MemoryStore::new(), preset.clone());
            let service = service.layer(Handler::ok());
            let mut other = first.clone();
            // Means the same, in JSON, and is a field more of a form.
            let more = if first.body.starts_with(b"{") {
                " "
            } else {
                "&a=b"
            };
            other.body = Bytes::from([&first.body[..], more.as_bytes()].concat());
            send(&service, first.request()).await;
            let outcome = match preset.key_by() {
                KeyBy::Id => "duplicate",
                KeyBy::IdAndBody => "run",
                other => panic!("{other:?}"),
            };
            let answer = send(&service, other.request()).await;
            assert_eq!(answer.brief().1, outcome, "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn events_are_kept_as_long_as_the_preset_says() {
    for preset in providers::all() {
        let first = events(&preset).remove(0);
        let retention = preset.retention().unwrap();
        let service = WebhookDedupLayer::new(MemoryStore::new(), preset.clone());
        let service = service.layer(Handler::ok());
        send(&service, first.request()).await;
        advance(retention - secs(1)).await;
        let answer = send(&service, first.request()).await;
        assert_eq!(answer.brief().1, "duplicate", "{}", first.name);
        advance(secs(2) + remembered()).await;
        let answer = send(&service, first.request()).await;
        assert_eq!(answer.brief().1, "run", "{}", first.name);
    }
}

#[tokio::test(start_paused = true)]
async fn presets_on_one_store_do_not_swallow_each_others_events() {
    let store = MemoryStore::new();
    let same_id = || {
        Request::post("/hook")
            .header("webhook-id", "e1")
            .body(Full::from(r#"{"id":"e1","event_id":"e1","type":2}"#))
            .unwrap()
    };
    let mut presets = 0;
    for preset in providers::all() {
        let text = preset.event_id().to_string();
        if ["/id", "/event_id", "header webhook-id or header svix-id"].contains(&text.as_str()) {
            let service = WebhookDedupLayer::new(store.clone(), preset).layer(Handler::ok());
            for outcome in ["run", "duplicate"] {
                assert_eq!(send(&service, same_id()).await.brief().1, outcome);
            }
            presets += 1;
        }
    }
    assert!(presets > 8, "{presets}");
    assert_eq!(store.len(), presets);
}
