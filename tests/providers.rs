//! Each preset, on the requests of its sender.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Request,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body_util::Full;
use tokio::time::advance;
use tower::Layer;
use tower_webhook_dedup::{
    EventId, Key, KeyBy, MissingId, Operation, Preset, WebhookDedupLayer, providers,
};

use fixtures::{Fixture, fixture, fixtures};
use http_support::{Answer, Handler, Run, secs, send, send_later};
use stores::{Fault, Faulty, MemoryStore, remembered};

#[path = "support/fixtures.rs"]
mod fixtures;
#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

fn name(preset: &Preset) -> &'static str {
    preset.name().unwrap()
}

fn preset(wanted: &str) -> Preset {
    providers::all().find(|it| name(it) == wanted).unwrap()
}

/// The fixtures of this preset, in the manifest's order.
fn of(preset: &Preset) -> Vec<Fixture> {
    let mut all = fixtures();
    all.retain(|fixture| fixture.presets.iter().any(|it| it == name(preset)));
    all
}

/// Those of them that are events, each once.
fn events(preset: &Preset) -> Vec<Fixture> {
    let mut events = of(preset);
    events.retain(|fixture| !fixture.is_handshake() && fixture.same_as == "-");
    assert!(!events.is_empty(), "{}: no fixture", name(preset));
    events
}

/// The fixture as it is sent again: the retry that the manifest has, or the same.
fn again(fixture: &Fixture) -> Fixture {
    let all = fixtures();
    let retry = all.into_iter().find(|it| it.same_as == fixture.name);
    retry.unwrap_or_else(|| fixture.clone())
}

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

#[tokio::test(start_paused = true)]
async fn the_namespace_is_the_name_and_the_path() {
    let keys = |run: Run| async move {
        let key = run.delivery().key().clone();
        assert_eq!(
            key,
            Key::new("stripe/hooks/provider", "evt_1FxTurePaY0000000000001")
        );
        200
    };
    let layer = WebhookDedupLayer::new(MemoryStore::new(), providers::stripe());
    let answer = send(
        &layer.layer(Handler::new(keys)),
        fixture("stripe").request(),
    )
    .await;
    assert_eq!(answer.brief(), (200, "run"));
}

#[tokio::test(start_paused = true)]
async fn every_value_can_be_overridden() {
    let keys = |run: Run| async move {
        let key = run.delivery().key().as_str().to_owned();
        assert!(key.starts_with("webhook:lock:mine:"), "{key}");
        assert!(!key.ends_with(":*"), "the body is in the key: {key}");
        200
    };
    let store = MemoryStore::new();
    let layer = WebhookDedupLayer::new(store.clone(), providers::stripe())
        .namespace("mine")
        .key_by(KeyBy::IdAndBody)
        .retention(secs(3600));
    let service = layer.layer(Handler::new(keys));
    send(&service, fixture("stripe").request()).await;
    advance(secs(3601)).await;
    let answer = send(&service, fixture("stripe").request()).await;
    assert_eq!(answer.brief(), (200, "run"));

    // A handshake that is none any more.
    let layer = WebhookDedupLayer::new(store, providers::slack())
        .bypass(|_, _| false)
        .missing_id(MissingId::Refuse)
        .refuse_with(|_| {
            http::Response::builder()
                .status(418)
                .body(Bytes::new())
                .unwrap()
        });
    let service = layer.layer(Handler::ok());
    let answer = send(&service, fixture("slack_url_verification").request()).await;
    assert_eq!(answer.brief(), (418, "refused"));
}

// R40: handshakes, forged.

#[tokio::test(start_paused = true)]
async fn an_event_with_the_headers_of_a_handshake_is_still_an_event() {
    for preset in providers::all() {
        for handshake in of(&preset).iter().filter(|fixture| fixture.is_handshake()) {
            for event in events(&preset) {
                let what = format!("{} as {}", event.name, handshake.name);
                let service = WebhookDedupLayer::new(MemoryStore::new(), preset.clone());
                let service = service.layer(Handler::ok());
                assert_eq!(send(&service, event.request()).await.brief().1, "run");
                let mut forged = event.request();
                // All of its headers but those that name the event, and in its own form.
                for (name, value) in &handshake.headers {
                    let is_id = ["id", "delivery"]
                        .iter()
                        .any(|id| name.as_str().ends_with(id));
                    if !is_id && name != CONTENT_TYPE {
                        forged.headers_mut().insert(name, value.clone());
                    }
                }
                let answer = send(&service, forged).await;
                assert_eq!(answer.brief().1, "duplicate", "{what}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_handshake_without_its_header_is_none() {
    for (name, header) in [
        ("github_ping", "x-github-event"),
        ("aws_sns_subscription", "x-amz-sns-message-type"),
        ("aws_sns_unsubscribe", "x-amz-sns-message-type"),
        ("twitch_verification", "twitch-eventsub-message-type"),
    ] {
        let fixture = fixture(name);
        let service = WebhookDedupLayer::new(MemoryStore::new(), preset(&fixture.presets[0]));
        let service = service.layer(Handler::ok());
        let mut request = fixture.request();
        request.headers_mut().remove(header).unwrap();
        assert_eq!(send(&service, request).await.brief().1, "run", "{name}");
        // Nor with the header twice.
        let mut request = fixture.request();
        let value = request.headers()[header].clone();
        request.headers_mut().append(header, value);
        assert_eq!(
            send(&service, request).await.brief().1,
            "duplicate",
            "{name}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_looks_like_a_handshake_in_part_is_an_event() {
    for (preset, body) in [
        // The words of a handshake, in an event.
        (
            providers::slack(),
            r#"{"type":"url_verification","challenge":"c","event_id":"e"}"#,
        ),
        (
            providers::slack(),
            r#"{"type":"event_callback","challenge":"c","event_id":"e"}"#,
        ),
        (
            providers::discord_interactions(),
            r#"{"type":1,"id":"e","data":{"name":"a"}}"#,
        ),
        (providers::discord_interactions(), r#"{"type":11,"id":"e"}"#),
        (
            providers::notion(),
            r#"{"verification_token":"t","id":"e"}"#,
        ),
        (
            providers::zoom(),
            r#"{"event":"endpoint.url_validation","payload":{"object":"o","plainToken":"t"}}"#,
        ),
        (
            providers::zoom(),
            r#"{"event":"meeting.ended","payload":{"plainToken":"t"}}"#,
        ),
    ] {
        let name = name(&preset);
        let service = WebhookDedupLayer::new(MemoryStore::new(), preset).layer(Handler::ok());
        let request = || Request::post("/").body(Full::from(body)).unwrap();
        for outcome in ["run", "duplicate"] {
            let answer = send(&service, request()).await;
            assert_eq!(answer.brief().1, outcome, "{name}: {body}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_handshake_of_event_grid_can_be_let_pass() {
    let layer = |store| {
        WebhookDedupLayer::new(store, EventId::pointer("/0/id"))
            .bypass(providers::is_event_grid_validation)
    };
    let (validation, event) = (
        fixture("azure_event_grid_validation"),
        fixture("azure_event_grid"),
    );
    let store = MemoryStore::new();
    let service = layer(store.clone()).layer(Handler::ok());
    for _ in 0..2 {
        assert_eq!(
            send(&service, validation.request()).await.brief(),
            (200, "")
        );
    }
    assert!(store.is_empty());
    // The header alone is nothing, nor is the body.
    let mut forged = event.request();
    let kind = &validation.headers["aeg-event-type"];
    forged.headers_mut().insert("aeg-event-type", kind.clone());
    let mut bare = validation.request();
    bare.headers_mut().remove("aeg-event-type");
    // Nor are several events, whatever stands between them.
    let mut more = validation.clone();
    let events = str::from_utf8(&more.body).unwrap().trim_end();
    let events = events.strip_suffix(']').unwrap();
    more.body = format!("{events},null,{{\"id\":\"e\"}}]").into();
    for request in [forged, bare, more.request()] {
        let service = layer(MemoryStore::new()).layer(Handler::ok());
        assert_eq!(send(&service, request).await.brief(), (200, "run"));
    }
}

// Ids that only one place of two may carry.

#[tokio::test(start_paused = true)]
async fn an_id_that_no_signature_covers_does_not_stand_in_for_the_signed_one() {
    // SNS signs the id in the body; a header can be added to what was signed under the other name.
    for (name, header, status) in [
        ("aws_sns", "x-amz-sns-message-id", 503),
        ("svix_clerk", "webhook-id", 400),
        ("standard_webhooks", "svix-id", 400),
    ] {
        let fixture = fixture(name);
        for preset_name in &fixture.presets {
            let handler = Handler::ok();
            let service = WebhookDedupLayer::new(MemoryStore::new(), preset(preset_name));
            let service = service.layer(handler.clone());
            let mut replayed = fixture.request();
            replayed
                .headers_mut()
                .insert(header, HeaderValue::from_static("another"));
            let answer = send(&service, replayed).await;
            assert_eq!(answer.brief(), (status, "refused"), "{name}");
            // Both, and the same, are well.
            let mut both = fixture.request();
            let id = HeaderValue::try_from(fixture.id()).unwrap();
            both.headers_mut().insert(header, id);
            assert_eq!(send(&service, both).await.brief().1, "run", "{name}");
            assert_eq!(handler.runs(), 1);
        }
    }
}

fn cloud_event(content_type: &str, headers: &[(&str, &str)], body: &str) -> Request<Full<Bytes>> {
    let mut request = Request::post("/").header("content-type", content_type);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::from(body.to_owned())).unwrap()
}

#[tokio::test(start_paused = true)]
async fn cloud_events_are_told_by_their_mode() {
    let ce = [("ce-source", "/s"), ("ce-id", "1")];
    let structured = "application/cloudevents+json; charset=utf-8";
    let body = r#"{"source":"/s","id":"1","data":{}}"#;
    let service = WebhookDedupLayer::new(MemoryStore::new(), providers::cloudevents());
    let service = service.layer(Handler::ok());
    for (request, brief) in [
        (
            cloud_event("application/json", &ce, r#"{"id":"x"}"#),
            (200, "run"),
        ),
        (cloud_event(structured, &[], body), (204, "duplicate")),
        // Headers do not count beside a structured body: they could make the event another one.
        (
            cloud_event(structured, &[("ce-source", "/s"), ("ce-id", "2")], body),
            (204, "duplicate"),
        ),
        // As Auth0 sends them.
        (
            cloud_event("application/json", &[], body),
            (204, "duplicate"),
        ),
        // The same id from another source.
        (
            cloud_event(structured, &[], r#"{"source":"/t","id":"1"}"#),
            (200, "run"),
        ),
        // The data of a binary event has no say.
        (
            cloud_event("application/json", &[("ce-id", "1")], body),
            (400, "refused"),
        ),
        (cloud_event(structured, &ce, "[]"), (400, "refused")),
    ] {
        let what = format!("{request:?}");
        assert_eq!(send(&service, request).await.brief(), brief, "{what}");
    }
    // R29: in batch mode there is no single event.
    let batch = fixture("cloudevents_batch");
    let answer = send(&service, batch.request()).await;
    assert_eq!(answer.brief(), (400, "refused"));
}

// R29
#[tokio::test(start_paused = true)]
async fn several_items_of_adyen_are_no_single_event() {
    let item = |reference: &&str| {
        format!(r#"{{"NotificationRequestItem":{{"eventCode":"C","pspReference":"{reference}"}}}}"#)
    };
    let request = |items: &[&str]| {
        let items: Vec<_> = items.iter().map(item).collect();
        let body = format!(
            r#"{{"live":"false","notificationItems":[{}]}}"#,
            items.join(",")
        );
        Request::post("/").body(Full::from(body)).unwrap()
    };
    let (store, handler) = (MemoryStore::new(), Handler::ok());
    let service = WebhookDedupLayer::new(store.clone(), providers::adyen()).layer(handler.clone());
    for _ in 0..2 {
        let answer = send(&service, request(&["1", "2"])).await;
        assert_eq!(answer.brief(), (200, "unprotected"));
    }
    let gap = r#"{"notificationItems":[ITEM,null,ITEM]}"#.replace("ITEM", &item(&"1"));
    let gap = Request::post("/").body(Full::from(gap)).unwrap();
    assert_eq!(send(&service, gap).await.brief(), (200, "unprotected"));
    assert!(store.is_empty());
    for outcome in ["run", "duplicate"] {
        assert_eq!(send(&service, request(&["1"])).await.brief().1, outcome);
    }
    assert_eq!(handler.runs(), 4);
}

// What the layer answers by itself.

#[tokio::test(start_paused = true)]
async fn duplicates_get_what_the_sender_takes_for_success() {
    for (name, status, body) in [
        ("telegram", 200, ""),
        ("pubsub", 204, ""),
        ("cloudevents_structured", 204, ""),
        (
            "stripe",
            200,
            r#"{"status":"success","message":"Duplicate request ignored."}"#,
        ),
    ] {
        let fixture = fixture(name);
        let service = WebhookDedupLayer::new(MemoryStore::new(), preset(&fixture.presets[0]));
        let service = service.layer(Handler::ok());
        send(&service, fixture.request()).await;
        let answer = send(&service, fixture.request()).await;
        assert_eq!(answer.brief(), (status, "duplicate"), "{name}");
        assert_eq!(answer.body, body, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_takes_4xx_for_the_end_gets_503() {
    for preset in providers::all() {
        let lenient = ["gitlab", "sns"].contains(&name(&preset));
        let layer = WebhookDedupLayer::new(MemoryStore::new(), preset.clone());
        let layer = layer.missing_id(MissingId::Refuse);
        let request = || Request::post("/").body(Full::from("")).unwrap();
        let answer = send(&layer.layer(Handler::ok()), request()).await;
        let status = if lenient { 503 } else { 400 };
        assert_eq!(answer.brief(), (status, "refused"), "{}", name(&preset));
        assert!(
            answer.body.contains(&format!(r#""status":{status}"#)),
            "{}",
            answer.body
        );
        let layer = WebhookDedupLayer::new(MemoryStore::new(), preset.clone()).max_body(1);
        let long = Request::post("/").body(Full::from("long")).unwrap();
        let status = if lenient { 503 } else { 413 };
        let answer = send(&layer.layer(Handler::ok()), long).await;
        assert_eq!(answer.brief(), (status, "refused"), "{}", name(&preset));
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_retry_is_served_unprotected_when_the_store_fails() {
    for preset in providers::all() {
        let never_retries = ["discord_interactions", "github", "twilio"].contains(&name(&preset));
        let broken = Fault::UNREACHABLE;
        let store = Faulty::broken(Operation::Acquire, broken);
        let service = WebhookDedupLayer::new(store, preset.clone()).layer(Handler::ok());
        let answer = send(&service, events(&preset)[0].request()).await;
        let brief = if never_retries {
            (200, "unprotected")
        } else {
            (503, "refused")
        };
        assert_eq!(answer.brief(), brief, "{}", name(&preset));
    }
}

#[tokio::test(start_paused = true)]
async fn requests_without_an_id_are_refused_or_forwarded_as_the_sender_bears() {
    for preset in providers::all() {
        let request = || Request::post("/").body(Full::from("[1]")).unwrap();
        let store = MemoryStore::new();
        let service = WebhookDedupLayer::new(store.clone(), preset.clone()).layer(Handler::ok());
        let expected = match name(&preset) {
            "adyen" | "twilio" => ["unprotected", "unprotected"],
            "zoom" => ["run", "duplicate"],
            _ => ["refused", "refused"],
        };
        for outcome in expected {
            let answer = send(&service, request()).await;
            assert_eq!(answer.brief().1, outcome, "{}", name(&preset));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_of_a_running_event_waits_where_the_answer_counts() {
    for preset in providers::all() {
        let waits = ["discord_interactions", "twilio"].contains(&name(&preset));
        let event = events(&preset).remove(0);
        let handler = Handler::first_then(secs(1), 200, 200);
        let service = WebhookDedupLayer::new(MemoryStore::new(), preset.clone());
        let service = service.layer(handler.clone());
        let first = send_later(&service, event.request());
        handler.began(1).await;
        let answer = send(&service, again(&event).request()).await;
        let outcome = if waits { "duplicate" } else { "standby" };
        assert_eq!(answer.brief().1, outcome, "{}", event.name);
        assert_eq!(first.await.unwrap().brief(), (200, "run"));
        assert_eq!(handler.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_answer_counts_duplicates_get_the_first_one() {
    for preset in providers::all() {
        let replays = ["discord_interactions", "twilio"].contains(&name(&preset));
        let event = events(&preset).remove(0);
        let service = WebhookDedupLayer::new(MemoryStore::new(), preset.clone());
        let service = service.layer(Handler::statuses([201]));
        let first = send(&service, event.request()).await;
        let duplicate = send(&service, event.request()).await;
        let answers = |it: &Answer| {
            (
                it.status,
                it.body.clone(),
                it.headers.get("x-handler").cloned(),
            )
        };
        let same = answers(&first) == answers(&duplicate);
        assert_eq!(same, replays, "{}", name(&preset));
    }
}

#[tokio::test(start_paused = true)]
async fn github_may_send_25_mib() {
    const LIMIT: usize = 25 * 1024 * 1024;
    let github = fixture("github");
    let service = WebhookDedupLayer::new(MemoryStore::new(), providers::github());
    let service = service.layer(Handler::ok());
    for (length, brief) in [(LIMIT, (200, "run")), (LIMIT + 1, (413, "refused"))] {
        // What is declared is believed, before it is read.
        let mut request = github.request();
        request.headers_mut().insert(CONTENT_LENGTH, length.into());
        assert_eq!(send(&service, request).await.brief(), brief, "{length}");
    }
}

// What is written about them.

fn source(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/providers");
    fs::read_to_string(folder.join(file)).unwrap()
}

#[test]
fn every_function_is_one_of_all_by_its_own_name() {
    let mut functions = BTreeSet::new();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/providers")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("pub fn "));
        let presets = lines.filter_map(|line| line.strip_suffix("() -> Preset {"));
        functions.extend(presets.map(ToOwned::to_owned));
    }
    let all: Vec<_> = providers::all().map(|preset| name(&preset)).collect();
    assert!(all.is_sorted(), "{all:?}");
    assert_eq!(functions, all.into_iter().map(ToOwned::to_owned).collect());
}

/// `36 hours`, `4 days`.
fn duration(text: &str) -> Duration {
    let (n, unit) = text.split_once(' ').unwrap();
    let hours = match unit {
        "hour" | "hours" => 1,
        "day" | "days" => 24,
        other => panic!("{other}"),
    };
    secs(3600 * hours * n.parse::<u64>().unwrap())
}

#[test]
fn the_table_in_the_docs_says_what_the_presets_do() {
    let text = source("mod.rs");
    let rows: Vec<Vec<_>> = text
        .lines()
        .filter_map(|line| line.strip_prefix("//! | [`"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let presets: Vec<_> = providers::all().collect();
    assert_eq!(rows.len(), presets.len());
    for (row, preset) in rows.iter().zip(presets) {
        let what = name(&preset);
        let [title, id, key, kept, _caveats, ""] = row[..] else {
            panic!("{row:?}");
        };
        assert_eq!(title, format!("{what}`]"));
        assert_eq!(id, format!("`{}`", preset.event_id()), "{what}");
        let key_by = if key == "alone" {
            KeyBy::Id
        } else {
            KeyBy::IdAndBody
        };
        assert!(["alone", "and body"].contains(&key), "{what}");
        assert_eq!(*preset.key_by(), key_by, "{what}");
        assert_eq!(Some(duration(kept)), preset.retention(), "{what}");
    }
}

#[test]
fn every_preset_names_its_sources_and_how_long_it_keeps_events() {
    for preset in providers::all() {
        let what = name(&preset);
        let function = format!("pub fn {what}() -> Preset {{");
        let files = ["payments.rs", "people.rs", "standards.rs", "work.rs"].map(source);
        let file = files.iter().find(|file| file.contains(&function)).unwrap();
        let before = &file[..file.find(&function).unwrap()];
        let docs: Vec<_> = before
            .lines()
            .rev()
            .take_while(|line| line.starts_with("///"))
            .collect();
        assert!(
            docs.iter().any(|line| line.contains("]: https://")),
            "{what}"
        );
        assert!(docs.iter().any(|line| line.contains("kept")), "{what}");
    }
}
