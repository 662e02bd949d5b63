//! What becomes of a duplicate that has another body, where the id alone makes the event.

use std::time::Duration;

use tower::Layer;
use tower_webhook_dedup::{
    AfterWait, BodyChanged, BodyHash, DedupEvent, EventId, InFlight, Key, KeyBy, Outcome, Refusal,
    WebhookDedupLayer,
};

use front::MemoryStore;

#[path = "support/front.rs"]
mod front;

use http_support::{Answer, Events, Handler, by_id, post_body, secs, send, send_later};

#[path = "support/http.rs"]
mod http_support;

const FIRST: &str = r#"{"id":"e1","createdAt":"10:00","attempt":1}"#;
const SECOND: &str = r#"{"id":"e1","createdAt":"10:05","attempt":2}"#;

/// Whether the body is said to have changed; `None` where it is no duplicate.
fn changed(answer: &Answer) -> Option<bool> {
    match answer.outcome() {
        Outcome::Duplicate { body_changed, .. } => Some(body_changed),
        _ => None,
    }
}

fn counted(events: &Events, changed: bool) -> usize {
    events.count(|event| {
        matches!(event, DedupEvent::Duplicate { body_changed, .. } if *body_changed == changed)
    })
}

// R24
#[tokio::test(start_paused = true)]
async fn a_retry_with_another_body_is_a_duplicate_and_counted() {
    let (handler, events) = (Handler::ok(), Events::default());
    let layer = by_id(MemoryStore::new()).on_event(events.hook());
    let service = layer.layer(handler.clone());
    assert_eq!(send(&service, post_body(FIRST)).await.brief(), (200, "run"));

    let retry = send(&service, post_body(SECOND)).await;
    assert_eq!(retry.brief(), (200, "duplicate"));
    assert_eq!(changed(&retry), Some(true));
    let Outcome::Duplicate { record, .. } = retry.outcome() else {
        unreachable!()
    };
    assert_eq!(
        record.body_hash(),
        Some(BodyHash::of(FIRST.as_bytes())),
        "which body was handled"
    );
    let same = send(&service, post_body(FIRST)).await;
    assert_eq!(
        (same.brief(), changed(&same)),
        ((200, "duplicate"), Some(false))
    );

    assert_eq!(handler.runs(), 1);
    assert_eq!((counted(&events, true), counted(&events, false)), (1, 1));
}

// R24
#[tokio::test(start_paused = true)]
async fn a_duplicate_that_waited_is_counted_too() {
    let handler = Handler::first_then(secs(1), 200, 200);
    let events = Events::default();
    let layer = by_id(MemoryStore::new())
        .in_flight(InFlight::Wait {
            max: secs(60),
            then: AfterWait::RetryLater,
        })
        .on_event(events.hook());
    let service = layer.layer(handler.clone());
    let first = send_later(&service, post_body(FIRST));
    handler.began(1).await;
    let waiting = send(&service, post_body(SECOND)).await;
    assert_eq!(
        (waiting.brief(), changed(&waiting)),
        ((200, "duplicate"), Some(true))
    );
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    assert_eq!((counted(&events, true), counted(&events, false)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn each_body_runs_once_where_that_is_chosen() {
    let handler = Handler::ok();
    let layer = by_id(MemoryStore::new()).body_changed(BodyChanged::Run);
    let service = layer.layer(handler.clone());
    for (body, outcome) in [
        (FIRST, "run"),
        (SECOND, "run"),
        (FIRST, "duplicate"),
        (SECOND, "duplicate"),
    ] {
        let answer = send(&service, post_body(body)).await;
        assert_eq!(answer.brief(), (200, outcome));
        assert_ne!(changed(&answer), Some(true));
    }
    assert_eq!(handler.bodies(), [FIRST, SECOND]);
}

#[tokio::test(start_paused = true)]
async fn another_body_is_refused_where_that_is_chosen() {
    let (handler, events) = (Handler::ok(), Events::default());
    let layer = by_id(MemoryStore::new())
        .body_changed(BodyChanged::Refuse)
        .on_event(events.hook());
    let service = layer.layer(handler.clone());
    assert_eq!(send(&service, post_body(FIRST)).await.brief(), (200, "run"));

    let refused = send(&service, post_body(SECOND)).await;
    assert_eq!(refused.brief(), (422, "refused"));
    assert_eq!(
        refused.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(
        refused.header("retry-after"),
        None,
        "it will not get better"
    );
    let is_e1 = |refusal: &Refusal| matches!(refusal, Refusal::BodyChanged { key } if *key == Key::new("t", "e1"));
    assert!(matches!(refused.outcome(), Outcome::Refused(refusal) if is_e1(&refusal)));
    let reported =
        events.count(|event| matches!(event, DedupEvent::Refused { refusal } if is_e1(refusal)));
    assert_eq!(reported, 1);

    let same = send(&service, post_body(FIRST)).await;
    assert_eq!(
        (same.brief(), changed(&same)),
        ((200, "duplicate"), Some(false))
    );
    assert_eq!(counted(&events, true), 0);
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_was_refused_while_waiting_never_ran() {
    let handler = Handler::first_then(secs(1), 200, 200);
    let layer = by_id(MemoryStore::new())
        .body_changed(BodyChanged::Refuse)
        .in_flight(InFlight::Wait {
            max: secs(60),
            then: AfterWait::RetryLater,
        });
    let service = layer.layer(handler.clone());
    let first = send_later(&service, post_body(FIRST));
    handler.began(1).await;
    let waiting = send(&service, post_body(SECOND)).await;
    assert_eq!(waiting.brief(), (422, "refused"));
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    assert_eq!(handler.bodies(), [FIRST]);
}

#[tokio::test(start_paused = true)]
async fn another_body_after_a_failed_run_is_an_attempt_like_others() {
    for choice in [
        BodyChanged::Duplicate,
        BodyChanged::Run,
        BodyChanged::Refuse,
    ] {
        let handler = Handler::statuses([500, 200]);
        let service = by_id(MemoryStore::new())
            .body_changed(choice)
            .layer(handler.clone());
        assert_eq!(send(&service, post_body(FIRST)).await.status, 500);
        let retry = send(&service, post_body(SECOND)).await;
        assert_eq!(retry.brief(), (200, "run"), "{choice:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_known_has_not_changed() {
    let store = MemoryStore::new();
    let layer = by_id(store).body_changed(BodyChanged::Refuse);
    // Completed without HTTP: there was no body.
    let key = Key::new("t", "e1");
    let work = || async { Ok::<_, std::io::Error>(()) };
    layer.dedup().run(&key, work).await.unwrap();
    let answer = send(&layer.layer(Handler::ok()), post_body(FIRST)).await;
    assert_eq!(
        (answer.brief(), changed(&answer)),
        ((200, "duplicate"), Some(false))
    );
}

#[tokio::test(start_paused = true)]
async fn where_more_than_the_id_counts_it_decides_alone() {
    let attempts = KeyBy::id_and_body_except(["/attempt", "/createdAt"]);
    for (key_by, body, outcome) in [
        (KeyBy::IdAndBody, SECOND, "run"),
        (KeyBy::id_and_fields(["/attempt"]), SECOND, "run"),
        // That the body is another one is expected here, and told all the same.
        (attempts.clone(), SECOND, "duplicate"),
        (attempts, r#"{"id":"e1","amount":2}"#, "run"),
    ] {
        let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"))
            .retention(Duration::from_secs(3600))
            .body_changed(BodyChanged::Refuse)
            .key_by(key_by);
        let service = layer.layer(Handler::ok());
        assert_eq!(send(&service, post_body(FIRST)).await.brief(), (200, "run"));
        let answer = send(&service, post_body(body)).await;
        assert_eq!(answer.brief(), (200, outcome));
        assert_eq!(changed(&answer), (outcome == "duplicate").then_some(true));
    }
}
