//! What the layer answers by itself: what the sender takes it for.

use http::Request;
use http_body_util::Full;
use tower::Layer;
use tower_webhook_dedup::{MissingId, Operation, WebhookDedupLayer, providers};

use crate::{
    again, events,
    fixtures::fixture,
    http_support::{Answer, Handler, secs, send, send_later},
    name, preset,
    stores::{Fault, Faulty, MemoryStore},
};

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
