//! Requests that look like what they are not: no preset runs an event twice for them, nor takes two
//! events for one.

use std::io::Write;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{
    HeaderValue, Request,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use http_body_util::Full;
use tower::Layer;
use tower_webhook_dedup::{Preset, WebhookDedupLayer, providers};

use front::MemoryStore;

#[path = "support/front.rs"]
mod front;

use fixtures::{Fixture, fixture, fixtures};
use http_support::{Handler, send};

#[path = "support/fixtures.rs"]
mod fixtures;
#[path = "support/http.rs"]
mod http_support;

/// Each preset with each of its events. Zoom has no id that could be disguised.
fn events() -> impl Iterator<Item = (Preset, Fixture)> {
    providers::all().flat_map(|preset| {
        let name = preset.name().unwrap().to_owned();
        let mut events = fixtures();
        events.retain(|fixture| {
            fixture.presets.contains(&name)
                && !fixture.is_handshake()
                && fixture.same_as == "-"
                && name != "zoom"
        });
        events.into_iter().map(move |event| (preset.clone(), event))
    })
}

/// Whether a header has this part of the id.
fn is_in_header(event: &Fixture, part: &str) -> bool {
    event.headers.values().any(|value| value == part)
}

async fn has_no_id(preset: &Preset, request: Request<Full<Bytes>>, what: &str) {
    let (store, handler) = (MemoryStore::new(), Handler::ok());
    let service = WebhookDedupLayer::new(store.clone(), preset.clone()).layer(handler.clone());
    let answer = send(&service, request).await;
    let (status, outcome) = answer.brief();
    match outcome {
        "refused" => assert!(matches!(status, 400 | 503), "{what}: {status}"),
        outcome => assert_eq!((status, outcome), (200, "unprotected"), "{what}"),
    }
    assert_eq!(handler.runs(), usize::from(outcome == "unprotected"));
    assert!(store.is_empty(), "{what}");
}

#[tokio::test(start_paused = true)]
async fn a_part_of_an_id_that_is_there_twice_or_blank_makes_no_key() {
    let (mut headers, mut pointers) = (0, 0);
    for (preset, event) in events() {
        let id = event.id().to_owned();
        for part in id.split('|') {
            let what = format!("{}: {} {part}", preset.name().unwrap(), event.name);
            if is_in_header(&event, part) {
                let names = event.headers.iter().filter(|(_, value)| *value == part);
                let names: Vec<_> = names.map(|(name, _)| name.clone()).collect();
                for value in [part, "another", ""] {
                    let mut twice = event.request();
                    for name in &names {
                        twice
                            .headers_mut()
                            .append(name, HeaderValue::from_str(value).unwrap());
                    }
                    has_no_id(&preset, twice, &what).await;
                }
                for value in ["", " ", "\t"] {
                    let mut blank = event.request();
                    for name in &names {
                        blank
                            .headers_mut()
                            .insert(name, HeaderValue::from_str(value).unwrap());
                    }
                    has_no_id(&preset, blank, &what).await;
                }
                headers += 1;
                continue;
            }
            let body = str::from_utf8(&event.body).unwrap();
            let quoted = format!("\"{part}\"");
            let value = if body.contains(&quoted) {
                quoted
            } else {
                part.to_owned()
            };
            for other in ["\"\"", "\" \"", "null", "true", "[1]", "{}"] {
                let mut blank = event.clone();
                blank.body = body.replace(&value, other).into();
                has_no_id(&preset, blank.request(), &format!("{what} {other}")).await;
            }
            pointers += 1;
        }
    }
    assert!(headers >= 12 && pointers >= 12, "{headers}, {pointers}");
}

#[tokio::test(start_paused = true)]
async fn a_compressed_body_has_no_id_in_it_and_is_not_in_the_way_of_one_in_a_header() {
    for (preset, event) in events() {
        let what = format!("{}: {}", preset.name().unwrap(), event.name);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&event.body).unwrap();
        let mut compressed = event.clone();
        compressed.body = gzip.finish().unwrap().into();
        compressed
            .headers
            .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        if !event.id().split('|').all(|part| is_in_header(&event, part)) {
            has_no_id(&preset, compressed.request(), &what).await;
            continue;
        }
        let handler = Handler::ok();
        let layer = WebhookDedupLayer::new(MemoryStore::new(), preset);
        let service = layer.layer(handler.clone());
        for outcome in ["run", "duplicate"] {
            let answer = send(&service, compressed.request()).await;
            assert_eq!(answer.brief().1, outcome, "{what}");
        }
        assert_eq!(handler.bodies().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_content_type_says_makes_no_other_event() {
    for (preset, event) in events() {
        let what = format!("{}: {}", preset.name().unwrap(), event.name);
        let service = WebhookDedupLayer::new(MemoryStore::new(), preset).layer(Handler::ok());
        assert_eq!(
            send(&service, event.request()).await.brief().1,
            "run",
            "{what}"
        );
        for kind in [
            None,
            Some("text/plain"),
            Some("application/x-www-form-urlencoded"),
            Some("multipart/form-data; boundary=x"),
            Some("nonsense"),
        ] {
            let mut other = event.request();
            other.headers_mut().remove(CONTENT_TYPE);
            if let Some(kind) = kind {
                let kind = HeaderValue::from_static(kind);
                other.headers_mut().insert(CONTENT_TYPE, kind);
            }
            let answer = send(&service, other).await;
            assert_eq!(answer.brief().1, "duplicate", "{what} as {kind:?}");
        }
    }
}

// R40: neither header of a ping is signed.
#[tokio::test(start_paused = true)]
async fn a_ping_inside_the_text_of_an_event_is_none() {
    let mut event = fixture("github");
    let ping = "&payload=%7B%22zen%22:%22z%22,%22hook_id%22:1%7D&";
    let body = str::from_utf8(&event.body).unwrap();
    let start = body.find('{').unwrap() + 1;
    event.body = format!("{{\"message\":\"{ping}\",{}", &body[start..]).into();
    let handler = Handler::ok();
    let layer = WebhookDedupLayer::new(MemoryStore::new(), providers::github());
    let service = layer.layer(handler.clone());
    assert_eq!(send(&service, event.request()).await.brief().1, "run");
    let mut forged = event.request();
    for (name, value) in [
        ("x-github-event", "ping"),
        ("content-type", "application/x-www-form-urlencoded"),
    ] {
        let value = HeaderValue::from_static(value);
        forged.headers_mut().insert(name, value);
    }
    assert_eq!(send(&service, forged).await.brief().1, "duplicate");
    assert_eq!(handler.runs(), 1);
}
