//! The answers that are kept in memory for duplicates stay within their bytes, and no event is forgotten
//! for them.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, service_fn};
use tower_webhook_dedup::{
    Duplicate, Entry, Fallback, Key, KeyBy, LeaseStore, MemoryStore, Record, RequestBody, Token,
    WebhookDedupLayer,
};

use http_support::{c0, post, secs, send};
use stores::{Fault, Faulty};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

const BODY: usize = 10_000;
/// So many answers have room.
const KEPT: usize = 5;
const RETENTION: Duration = secs(3600);

fn store() -> MemoryStore {
    MemoryStore::with_capacity(100).max_answer_bytes(KEPT * (BODY + 1_000))
}

fn layer<St: LeaseStore>(store: St) -> WebhookDedupLayer<St> {
    c0(store)
        .key_by(KeyBy::Id)
        .lease(secs(60))
        .retention(RETENTION)
        .duplicate(Duplicate::Replay { max_body: 1 << 20 })
}

/// Sends each event for the first time; its answer has so many bytes.
async fn run<St: LeaseStore>(store: &St, events: impl IntoIterator<Item = usize>, bytes: usize) {
    let service =
        layer(store.clone()).layer(service_fn(move |_: Request<RequestBody<_>>| async move {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("x".repeat(bytes))))
        }));
    for event in events {
        let answer = send(&service, post(&id(event))).await;
        assert_eq!((answer.brief(), answer.body.len()), ((200, "run"), bytes));
    }
}

fn id(event: usize) -> String {
    format!("e{event}")
}

/// Which of the events have their answer; all are done.
async fn answered<St: LeaseStore>(
    store: &St,
    events: impl IntoIterator<Item = usize>,
) -> Vec<usize> {
    let mut answered = vec![];
    for event in events {
        let key = Key::new("t", id(event));
        match store.inspect(&key, Instant::now()).await.unwrap() {
            Some(Entry::Done { record, .. }) if record.answer().is_some() => answered.push(event),
            Some(Entry::Done { .. }) => {}
            other => panic!("{key}: {other:?}"),
        }
    }
    answered
}

async fn forget<St: LeaseStore>(store: &St, event: usize) -> bool {
    let key = Key::new("t", id(event));
    store
        .forget(&key, false, Instant::now() + secs(1))
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn beyond_its_bytes_the_oldest_answers_go_and_their_events_stay_done() {
    let store = store();
    for event in 0..50 {
        run(&store, [event], BODY).await;
        let kept = (event + 1).saturating_sub(KEPT)..=event;
        assert_eq!(answered(&store, 0..=event).await, Vec::from_iter(kept));
        advance(secs(1)).await;
    }
    let service = layer(store.clone()).layer(service_fn(|_: Request<RequestBody<_>>| async {
        Err::<Response<Full<Bytes>>, _>("done, and run again")
    }));
    for event in 0..50 {
        let answer = send(&service, post(&id(event))).await;
        assert_eq!(answer.brief(), (200, "duplicate"));
        let replayed = answer.body.len() == BODY;
        assert_eq!(replayed, event >= 50 - KEPT, "{event}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_room_of_an_answer_is_free_again_when_its_event_goes() {
    let store = store();
    run(&store, 0..KEPT, BODY).await;
    for event in 0..KEPT {
        assert!(forget(&store, event).await);
    }
    run(&store, 10..10 + KEPT, BODY).await;
    assert_eq!(
        answered(&store, 10..10 + KEPT).await.len(),
        KEPT,
        "forgotten"
    );

    // Displaced: 100 events fill the store, most of them without a body.
    run(&store, 100..200, 0).await;
    run(&store, 20..20 + KEPT, BODY).await;
    assert_eq!(
        answered(&store, 20..20 + KEPT).await.len(),
        KEPT,
        "displaced"
    );

    advance(RETENTION + secs(1)).await;
    run(&store, 30..30 + KEPT, BODY).await;
    assert_eq!(answered(&store, 30..30 + KEPT).await.len(), KEPT, "run out");
}

#[tokio::test(start_paused = true)]
async fn an_answer_for_which_there_is_no_room_at_all_displaces_none() {
    let store = store();
    run(&store, 0..KEPT, BODY).await;
    run(&store, [KEPT], BODY * 10).await;
    assert_eq!(answered(&store, 0..=KEPT).await, Vec::from_iter(0..KEPT));

    let none = store.max_answer_bytes(0);
    run(&none, 0..3, 1).await;
    assert!(answered(&none, 0..3).await.is_empty());
}

/// What a [`Fallback`] keeps for its primary.
#[tokio::test(start_paused = true)]
async fn what_is_carried_back_has_the_latest_answers() {
    // 64 MiB, with the headers of each; and as many as there are completions.
    for (completions, kept) in [(100, 63), (50, 50)] {
        let (primary, store) = out();
        let store = store.completions(completions);
        run(&store, 0..200, LARGE).await;
        back(&primary, &store).await;
        let answered = answered(&primary, 200 - completions..200).await;
        assert_eq!(answered, Vec::from_iter(200 - kept..200));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_forgotten_before_it_is_carried_back_leaves_its_room_to_others() {
    let (primary, store) = out();
    run(&store, 0..60, LARGE).await;
    for event in 0..60 {
        assert!(forget(&store, event).await);
    }
    run(&store, 60..120, LARGE).await;
    back(&primary, &store).await;
    assert_eq!(answered(&primary, 60..120).await.len(), 60);
}

/// As a caller does that has not heard that it was done.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_told_once_more_has_to_find_room_again() {
    let (primary, store) = out();
    // Done without an answer at first, or with one that had to go since.
    for bytes in [0, LARGE, LARGE] {
        for event in 0..100 {
            let key = Key::new("t", id(event));
            let record = record((bytes > 0).then(|| "x".repeat(bytes)));
            let by = Instant::now() + secs(1);
            let completed = store.complete(&key, token(event), &record, RETENTION, by);
            assert!(completed.await.unwrap());
        }
    }
    back(&primary, &store).await;
    assert_eq!(answered(&primary, 0..100).await, Vec::from_iter(37..100));
}

/// Told again and again, the answers are counted once.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_told_again_takes_the_place_of_the_one_before() {
    let (primary, carried) = out();
    let kept = store();
    for n in 0..100 {
        for event in 0..KEPT {
            let key = Key::new("t", id(event));
            let record = record((n % 3 > 0).then(|| "x".repeat(BODY + n)));
            for completed in [
                kept.complete(&key, token(event), &record, RETENTION, Instant::now())
                    .await
                    .unwrap(),
                carried
                    .complete(
                        &key,
                        token(event),
                        &record,
                        RETENTION,
                        Instant::now() + secs(1),
                    )
                    .await
                    .unwrap(),
            ] {
                assert!(completed);
            }
        }
        let all = if n % 3 > 0 { KEPT } else { 0 };
        assert_eq!(answered(&kept, 0..KEPT).await.len(), all);
    }
    back(&primary, &carried).await;
    assert_eq!(answered(&primary, 0..KEPT).await.len(), 0);
    run(&kept, 10..10 + KEPT, BODY).await;
    assert_eq!(answered(&kept, 10..10 + KEPT).await.len(), KEPT);
}

/// The primary had them before it went away, and they found no room here.
#[tokio::test(start_paused = true)]
async fn what_is_carried_back_takes_no_answer_away() {
    let (primary, store) = out();
    primary.heal();
    run(&store, 0..100, LARGE).await;
    assert_eq!(answered(&primary, 0..100).await.len(), 100);
    primary.plan(|_| Fault::UNREACHABLE);
    run(&store, 100..200, LARGE).await;
    back(&primary, &store).await;
    let (before, since) = (0..100, 137..200);
    assert_eq!(
        answered(&primary, 0..200).await,
        Vec::from_iter(before.chain(since))
    );
}

fn token(event: usize) -> Token {
    format!("{event:032x}").parse().unwrap()
}

/// The record of an event that was answered so.
fn record(answer: Option<String>) -> Record {
    let hash = "0".repeat(64);
    let answer = answer.map(|body| format!(" request={hash} body={body}"));
    let entry = format!(
        "v1 done {} 0 200 {hash}{}",
        token(0),
        answer.unwrap_or_default()
    );
    match entry.parse() {
        Ok(Entry::Done { record, .. }) => record,
        other => panic!("{other:?}"),
    }
}

const LARGE: usize = 1 << 20;

/// A store whose primary is away, and whose secondary keeps no answers.
fn out() -> (Faulty, Fallback<Faulty, MemoryStore>) {
    let primary = Faulty::to(MemoryStore::new().max_answer_bytes(1 << 40));
    primary.plan(|_| Fault::UNREACHABLE);
    let secondary = MemoryStore::new().max_answer_bytes(0);
    let store = Fallback::new(primary.clone(), secondary);
    (primary, store)
}

async fn back(primary: &Faulty, store: &Fallback<Faulty, MemoryStore>) {
    assert!(store.is_degraded());
    primary.heal();
    while store.is_degraded() {
        sleep(secs(1)).await;
    }
}
