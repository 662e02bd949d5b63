//! What a layer does where nothing is set: the defaults that the README names.
//!
//! Those of policies are what the tests of each policy begin with. These are numbers, which most tests
//! set to some of their own.

use std::{future::pending, time::Duration};

use http::Request;
use http_body_util::Full;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::{Layer, Service};
use tower_webhook_dedup::{
    AfterWait, BodyHash, Entry, EventId, InFlight, Key, KeyBy, LeaseStore, LostReason, Operation,
    Record, Token, WebhookDedupLayer,
};

use http_support::{Events, Handler, is, millis, post, post_body, secs, send, send_later};
use stores::{Fault, Faulty, MemoryStore};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

const MIB: usize = 1024 * 1024;

/// A layer of which nothing is set.
fn unset<St: LeaseStore>(store: St) -> WebhookDedupLayer<St> {
    WebhookDedupLayer::new(store, EventId::pointer("/id"))
}

/// With keys that a test can hold from outside.
fn by_id<St: LeaseStore>(store: St) -> WebhookDedupLayer<St> {
    unset(store).namespace("t").key_by(KeyBy::Id)
}

/// An event whose body has this length.
fn of_length(id: &str, bytes: usize) -> Request<Full<bytes::Bytes>> {
    let (head, tail) = (format!(r#"{{"id":"{id}","x":""#), r#""}"#);
    let filling = "x".repeat(bytes - head.len() - tail.len());
    post_body(&format!("{head}{filling}{tail}"))
}

#[tokio::test(start_paused = true)]
async fn a_lease_lasts_30_seconds_and_is_renewed_every_10() {
    let (store, handler) = (Faulty::new(), Handler::first_then(secs(25), 200, 200));
    let service = unset(store.clone()).layer(handler.clone());
    let asked = Instant::now();
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    // Path, id and body make the key.
    let key = Key::with_hash("/hooks/x", "e1", BodyHash::of(br#"{"id":"e1","n":1}"#));
    let Some(Entry::Running { lease, .. }) = store.entry(&key).await else {
        panic!("not running");
    };
    assert_eq!(lease, secs(30));
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    let renewals = store.of(Operation::Renew);
    let at: Vec<_> = (renewals.iter())
        .map(|renewal| (renewal.at - asked).as_secs())
        .collect();
    assert_eq!(at, [10, 20]);
}

#[tokio::test(start_paused = true)]
async fn a_run_may_take_5_minutes() {
    for (takes, answer, after) in [(299, (200, "run"), 299), (301, (504, "run"), 300)] {
        let handler = Handler::first_then(secs(takes), 200, 200);
        let service = unset(MemoryStore::new()).layer(handler);
        let asked = Instant::now();
        assert_eq!(send(&service, post("e1")).await.brief(), answer);
        assert_eq!(asked.elapsed().as_secs(), after);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_call_may_take_300_milliseconds() {
    for (takes, answer, after) in [(299, (200, "run"), 299), (301, (503, "refused"), 300)] {
        let store = Faulty::broken(Operation::Acquire, Fault::Delay(millis(takes)));
        let service = unset(store).layer(Handler::ok());
        let asked = Instant::now();
        assert_eq!(send(&service, post("e1")).await.brief(), answer);
        assert_eq!(asked.elapsed().as_millis(), after);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_may_have_2_mib() {
    let service = unset(MemoryStore::new()).layer(Handler::ok());
    for (bytes, answer) in [(2 * MIB, (200, "run")), (2 * MIB + 1, (413, "refused"))] {
        let sent = send(&service, of_length("e1", bytes));
        assert_eq!(sent.await.brief(), answer);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_may_fail_as_often_as_it_comes() {
    let handler = Handler::statuses([500]);
    let service = unset(MemoryStore::new()).layer(handler.clone());
    for _ in 0..1_000 {
        assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
    }
    assert_eq!(handler.runs(), 1_000);
}

#[test]
fn no_body_is_recognised() {
    let layer = format!("{:?}", unset(MemoryStore::new()));
    assert!(layer.contains("recent_bodies: None"), "{layer}");
}

#[tokio::test(start_paused = true)]
async fn there_is_room_for_256_standbys() {
    let store = Faulty::new();
    let service = by_id(store.clone()).layer(Handler::ok());
    for n in 0..=256 {
        let id = format!("e{n}");
        store.hold(&Key::new("t", &id), secs(3600)).await;
        let answer = send(&service, post(&id)).await;
        let expected = if n < 256 {
            (200, "standby")
        } else {
            (503, "in-flight")
        };
        assert_eq!(answer.brief(), expected, "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_ends_after_24_hours() {
    const DAY: Duration = secs(24 * 3600);
    let (store, events) = (Faulty::new(), Events::default());
    let layer = by_id(store.clone()).on_event(events.hook());
    let service = layer.layer(Handler::statuses([500]));
    store.hold(&Key::new("t", "e1"), secs(1)).await;
    let answer = send(&service, post("e1")).await;
    assert_eq!(answer.brief(), (200, "standby"));
    sleep(DAY - secs(1)).await;
    assert!(events.lost().is_empty());
    sleep(secs(2)).await;
    let lost = events.lost();
    assert_eq!((lost.len(), lost[0].reason), (1, LostReason::TooOld));
}

#[tokio::test(start_paused = true)]
async fn there_is_room_for_1_024_that_wait() {
    let (max, then) = (secs(10), AfterWait::RetryLater);
    let store = Faulty::new();
    store.hold(&Key::new("t", "e1"), secs(60)).await;
    let layer = by_id(store).in_flight(InFlight::Wait { max, then });
    let service = layer.layer(Handler::ok());
    let (asked, mut sent) = (Instant::now(), JoinSet::new());
    for _ in 0..1_030 {
        let answer = send(&service, post("e1"));
        sent.spawn(async move {
            assert_eq!(answer.await.brief(), (503, "in-flight"));
            asked.elapsed().as_secs()
        });
    }
    let after = sent.join_all().await;
    let waited = after.iter().filter(|&&after| after == 10).count();
    assert_eq!(waited, 1_024);
    assert!(after.iter().all(|after| [0, 10].contains(after)));
}

#[tokio::test(start_paused = true)]
async fn there_is_room_for_1_024_runs_without_their_senders() {
    let (handler, events) = (Handler::new(|_| pending()), Events::default());
    let layer = unset(MemoryStore::new()).on_event(events.hook());
    let mut service = layer.layer(handler.clone());
    let mut sent: Vec<_> = (0..1_030)
        .map(|n| Box::pin(service.call(post(&format!("e{n}")))))
        .collect();
    for (n, answer) in sent.iter_mut().enumerate() {
        while handler.runs() <= n {
            assert!(futures_util::poll!(&mut *answer).is_pending());
            tokio::task::yield_now().await;
        }
    }
    drop(sent);
    let detached = events.count(is!(Detached));
    let refused = events.count(is!(DetachRefused));
    assert_eq!((detached, refused), (1_024, 6));
}

#[tokio::test(start_paused = true)]
async fn there_is_room_for_64_mib_of_requests() {
    let store = Faulty::new();
    let service = by_id(store.clone()).layer(Handler::ok());
    // A request takes a little more than its body does.
    let bodies = std::iter::repeat_n((2 * MIB, (200, "standby")), 31).chain([
        (2 * MIB, (503, "in-flight")),
        (2 * MIB - MIB / 8, (200, "standby")),
        (MIB / 8, (503, "in-flight")),
    ]);
    for (n, (bytes, expected)) in bodies.enumerate() {
        let id = format!("e{n}");
        store.hold(&Key::new("t", &id), secs(3600)).await;
        let answer = send(&service, of_length(&id, bytes)).await;
        assert_eq!(answer.brief(), expected, "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_memory_store_has_room_for_100_000_events() {
    let store = tower_webhook_dedup::MemoryStore::new();
    let (by, record) = (Instant::now(), Record::new(Some(200), None));
    for n in 0..130_000 {
        let (key, token) = (Key::new("t", n.to_string()), Token::random());
        store.acquire(&key, token, secs(30), by).await.unwrap();
        let completed = store.complete(&key, token, &record, secs(3600), by).await;
        assert!(completed.unwrap());
    }
    assert!((99_900..=100_000).contains(&store.len()), "{}", store.len());
}
