//! Ids that only one place of two may carry, and requests that are no single event.

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;
use tower::Layer;
use tower_webhook_dedup::{WebhookDedupLayer, providers};

use crate::{
    fixtures::fixture,
    http_support::{Handler, send},
    preset,
    stores::MemoryStore,
};

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
