//! R40: what is a handshake, and what is only forged as one.

use http::{Request, header::CONTENT_TYPE};
use http_body_util::Full;
use tower::Layer;
use tower_webhook_dedup::{EventId, WebhookDedupLayer, providers};

use crate::{
    events,
    fixtures::fixture,
    http_support::{Handler, send},
    name, of, preset,
    stores::MemoryStore,
};

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
