//! `Cached`: what is done is remembered for a short while, and never for longer than it is true.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    time::{Duration, SystemTime},
};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_webhook_dedup::{
    Acquire, BodyHash, Cached, Entry, Key, LeaseStore, MemoryStore, Operation, Outcome, Record,
    Release, StoreErrorKind, Token,
};

use http_support::{Handler, c0, millis, post, secs, send};
use stores::{Fault, Faulty, Trouble};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn key<I: fmt::Display>(id: I) -> Key {
    Key::new("t", format!("{id}"))
}

fn by() -> Instant {
    Instant::now() + secs(100)
}

async fn acquire(store: &impl LeaseStore, key: &Key) -> Acquire {
    let acquired = store.acquire(key, Token::random(), secs(30), by()).await;
    acquired.unwrap()
}

async fn is_done(store: &impl LeaseStore, key: &Key) -> bool {
    matches!(acquire(store, key).await, Acquire::Done(_))
}

/// Runs the event and completes it.
async fn complete(store: &impl LeaseStore, key: &Key, retention: Duration) -> Record {
    let (token, record) = (Token::random(), Record::new(Some(200), None));
    let acquired = store.acquire(key, token, secs(30), by()).await.unwrap();
    assert_eq!(acquired, Acquire::Acquired { attempt: 1 });
    let completed = store.complete(key, token, &record, retention, by()).await;
    assert!(completed.unwrap());
    record
}

/// A record of an event that was completed so long ago.
fn completed_before(age: Duration) -> Record {
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let (token, at) = (Token::random(), (at.unwrap() - age).as_millis());
    let entry: Entry = format!("v1 done {token} {at} 200 -").parse().unwrap();
    match entry {
        Entry::Done { record, .. } => record,
        other => panic!("{other:?}"),
    }
}

/// Completed by another process, so long ago.
async fn completed_elsewhere(store: &Faulty, key: &Key, age: Duration) {
    let (token, record) = (Token::random(), completed_before(age));
    let completed = store.inner.complete(key, token, &record, DAY, by()).await;
    assert!(completed.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_remembered_duplicate_makes_no_store_call() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    let service = c0(Cached::new((*store).clone())).layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    let calls = store.calls().len();
    assert_eq!(calls, 2, "acquire and complete");
    for _ in 0..100 {
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (200, "duplicate"));
        sleep(millis(590)).await;
    }
    assert_eq!(store.calls().len(), calls);
    // After a minute the store is asked once, and the answer remembered again.
    sleep(secs(1)).await;
    for _ in 0..10 {
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (200, "duplicate"));
    }
    assert_eq!(store.calls().len(), calls + 1);
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_is_the_whole_record() {
    let store = Cached::new((*Faulty::new()).clone());
    let service = c0(store.clone()).layer(Handler::statuses([207]));
    assert_eq!(send(&service, post("e1")).await.brief(), (207, "run"));
    let Outcome::Duplicate { record, .. } = send(&service, post("e1")).await.outcome() else {
        panic!("no duplicate");
    };
    let hash = BodyHash::of(br#"{"id":"e1","n":1}"#);
    assert_eq!(
        (record.status(), record.body_hash()),
        (Some(207), Some(hash))
    );
    let entry = store.inspect(&Key::with_hash("t", "e1", hash), by()).await;
    match entry.unwrap() {
        Some(Entry::Done { record: kept, .. }) => assert_eq!(kept, record),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn another_body_of_the_same_id_is_another_event() {
    let handler = Handler::ok();
    let service = c0(Cached::new(MemoryStore::new())).layer(handler.clone());
    for (n, outcome) in [(1, "run"), (1, "duplicate"), (2, "run"), (2, "duplicate")] {
        let request = http_support::post_body(&format!(r#"{{"id":"e1","n":{n}}}"#));
        assert_eq!(send(&service, request).await.brief(), (200, outcome));
    }
    assert_eq!(handler.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_remembered_for_the_ttl() {
    for ttl in [Duration::ZERO, millis(10), secs(7), secs(60)] {
        let store = Faulty::new();
        let cached = Cached::new((*store).clone()).ttl(ttl);
        complete(&cached, &key("a"), DAY).await;
        sleep(ttl.saturating_sub(millis(1))).await;
        let calls = |expected: usize, when| {
            assert_eq!(store.count(Operation::Acquire), expected, "{ttl:?}, {when}");
        };
        assert!(is_done(&cached, &key("a")).await);
        calls(if ttl.is_zero() { 2 } else { 1 }, "shortly before");
        sleep(millis(1)).await;
        assert!(is_done(&cached, &key("a")).await);
        calls(if ttl.is_zero() { 3 } else { 2 }, "after");
    }
}

#[test]
#[should_panic(expected = "for a minute at most")]
fn an_event_is_not_remembered_for_more_than_a_minute() {
    _ = Cached::new(MemoryStore::new()).ttl(millis(60_001));
}

/// R39 of a short retention: the event runs again as soon as the store has forgotten it.
#[tokio::test(start_paused = true)]
async fn an_event_is_not_remembered_for_longer_than_it_is_retained() {
    // The reply may take its time: the record lives from when it was written.
    for fault in [Fault::None, Fault::DelayAfter(secs(1))] {
        let store = Faulty::broken(Operation::Complete, fault);
        let cached = Cached::new((*store).clone());
        let begun = Instant::now();
        complete(&cached, &key("a"), secs(5)).await;
        sleep(millis(4_999) - begun.elapsed()).await;
        assert!(is_done(&cached, &key("a")).await);
        assert_eq!(store.count(Operation::Acquire), 1);
        sleep(millis(1)).await;
        assert!(!is_done(&cached, &key("a")).await);
    }
}

#[tokio::test(start_paused = true)]
async fn what_others_completed_is_remembered_once_this_process_knows_for_how_long() {
    let store = Faulty::new();
    let cached = Cached::new((*store).clone());
    completed_elsewhere(&store, &key("a"), secs(10)).await;
    for n in 1..=3 {
        assert!(is_done(&cached, &key("a")).await);
        assert_eq!(store.count(Operation::Acquire), n, "it might end any time");
    }
    complete(&cached, &key("b"), DAY).await;
    for _ in 0..10 {
        assert!(is_done(&cached, &key("a")).await);
    }
    assert_eq!(store.count(Operation::Acquire), 5, "asked once more");
}

#[tokio::test(start_paused = true)]
async fn what_others_completed_is_not_remembered_when_it_may_end_soon() {
    let (ttl, retention) = (secs(60), secs(3600));
    let ages = [
        (0, 1),
        (3360, 1),
        (3481, 4),
        (3550, 4),
        (3600, 4),
        (9999, 4),
    ];
    for (age, asked) in ages {
        let store = Faulty::new();
        let cached = Cached::new((*store).clone()).ttl(ttl);
        complete(&cached, &key("b"), retention).await;
        complete(&cached, &key("c"), DAY).await;
        completed_elsewhere(&store, &key("a"), secs(age)).await;
        let before = store.count(Operation::Acquire);
        for _ in 0..4 {
            assert!(is_done(&cached, &key("a")).await);
        }
        assert_eq!(store.count(Operation::Acquire) - before, asked, "{age}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_what_is_done_is_remembered() {
    let store = Faulty::new();
    let cached = Cached::new((*store).clone());
    let (key, token, failed) = (key("a"), Token::random(), Release::Failed { status: None });
    let acquired = cached.acquire(&key, token, secs(30), by()).await.unwrap();
    assert_eq!(acquired, Acquire::Acquired { attempt: 1 });
    for n in 2..5 {
        let acquired = acquire(&cached, &key).await;
        assert!(matches!(acquired, Acquire::InFlight { .. }));
        assert_eq!(store.count(Operation::Acquire), n);
    }
    assert!(cached.renew(&key, token, secs(30), by()).await.unwrap());
    let released = cached.release(&key, token, failed, DAY, by()).await;
    assert!(released.unwrap());
    let again = acquire(&cached, &key).await;
    assert_eq!(again, Acquire::Acquired { attempt: 2 });
    // A completion that the store refused.
    let record = Record::new(None, None);
    let late = cached.complete(&key, token, &record, DAY, by());
    assert!(!late.await.unwrap());
    assert!(!is_done(&cached, &key).await);
    assert!(cached.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_failed_is_not_remembered() {
    for fault in [
        Fault::Before(StoreErrorKind::TimedOut),
        Fault::After(StoreErrorKind::TimedOut),
    ] {
        let store = Faulty::broken(Operation::Complete, fault);
        let (cached, key, record) = (
            Cached::new((*store).clone()),
            key("a"),
            Record::new(None, None),
        );
        let completed = cached.complete(&key, Token::random(), &record, DAY, by());
        completed.await.unwrap_err();
        assert!(cached.is_empty(), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn duplicates_are_answered_while_the_store_is_away() {
    let store = Faulty::new();
    let service = c0(Cached::new((*store).clone())).layer(Handler::ok());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    store.plan(|_| Fault::UNREACHABLE);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(send(&service, post("e2")).await.brief(), (503, "refused"));
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_forgotten_here_runs_again_at_once() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    let layer = c0(Cached::new((*store).clone()));
    let service = layer.layer(handler.clone());
    let hash = BodyHash::of(br#"{"id":"e1","n":1}"#);
    for runs in 1..=3 {
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
        assert_eq!(handler.runs(), runs);
        let key = Key::with_hash("t", "e1", hash);
        assert!(layer.dedup().forget(&key, false).await.unwrap());
    }
}

/// Whatever was asked before the event was forgotten, and answered after.
#[tokio::test(start_paused = true)]
async fn a_reply_from_before_an_event_was_forgotten_is_not_remembered() {
    for operation in [Operation::Acquire, Operation::Complete] {
        let store = Faulty::new();
        let cached = Cached::new((*store).clone());
        complete(&cached, &key("b"), DAY).await;
        completed_elsewhere(&store, &key("a"), secs(0)).await;
        let token = match store.entry(&key("a")).await {
            Some(entry) => entry.token(),
            None => panic!("it is done"),
        };
        store.plan(move |call| match call.operation {
            it if it == operation => Fault::DelayAfter(secs(2)),
            _ => Fault::None,
        });
        let late = cached.clone();
        let asked = tokio::spawn(async move {
            if operation == Operation::Acquire {
                return is_done(&late, &key("a")).await;
            }
            let (key, record) = (key("a"), Record::new(None, None));
            let completed = late.complete(&key, token, &record, DAY, by());
            completed.await.unwrap()
        });
        store.called(operation, store.count(operation) + 1).await;
        sleep(secs(1)).await;
        assert!(cached.forget(&key("a"), false, by()).await.unwrap());
        assert!(asked.await.unwrap(), "{operation:?} saw the old record");
        store.heal();
        assert!(!is_done(&cached, &key("a")).await, "{operation:?}");
    }
}

/// What is asked and answered before the store has forgotten.
#[tokio::test(start_paused = true)]
async fn what_is_seen_while_an_event_is_being_forgotten_is_not_remembered() {
    let store = Faulty::broken(Operation::Forget, Fault::Delay(secs(2)));
    let cached = Cached::new((*store).clone());
    complete(&cached, &key("a"), DAY).await;
    let other = cached.clone();
    let forgotten =
        tokio::spawn(async move { other.forget(&key("a"), false, by()).await.unwrap() });
    store.called(Operation::Forget, 1).await;
    sleep(secs(1)).await;
    assert!(is_done(&cached, &key("a")).await, "not yet forgotten");
    assert!(forgotten.await.unwrap());
    assert!(!is_done(&cached, &key("a")).await);
}

/// As the docs say: what another process forgets does not reach here.
#[tokio::test(start_paused = true)]
async fn an_event_that_another_process_forgets_stays_done_here_for_the_ttl() {
    let store = Faulty::new();
    let cached = Cached::new((*store).clone()).ttl(secs(10));
    complete(&cached, &key("a"), DAY).await;
    assert!(store.inner.forget(&key("a"), false, by()).await.unwrap());
    sleep(millis(9_999)).await;
    assert!(is_done(&cached, &key("a")).await);
    sleep(millis(1)).await;
    assert!(!is_done(&cached, &key("a")).await);
}

/// Which of these are remembered: not asked for in the store.
async fn remembered(cached: &Cached<Trouble>, store: &Faulty, ids: usize) -> Vec<usize> {
    let mut remembered = Vec::new();
    // What is asked for now could displace what is asked for next.
    store.plan(|_| Fault::UNREACHABLE);
    for id in 0..ids {
        let key = key(id);
        let acquired = cached.acquire(&key, Token::random(), secs(30), by());
        if acquired.await.is_ok() {
            remembered.push(id);
        }
    }
    store.heal();
    remembered
}

#[tokio::test(start_paused = true)]
async fn at_the_cap_of_entries_the_oldest_goes() {
    for (cap, expected) in [(0, vec![]), (1, vec![9]), (3, vec![7, 8, 9])] {
        let store = Faulty::new();
        let cached = Cached::new((*store).clone()).max_entries(cap);
        for id in 0..10 {
            complete(&cached, &key(id), DAY).await;
            sleep(millis(10)).await;
        }
        assert_eq!(remembered(&cached, &store, 10).await, expected);
        assert_eq!(cached.len(), cap);
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_cap_of_bytes_the_oldest_goes() {
    let store = Faulty::new();
    // Some 290 bytes each.
    let cached = Cached::new((*store).clone())
        .max_entries(100)
        .max_bytes(1_500);
    for id in 0..10 {
        complete(&cached, &key(id), DAY).await;
        sleep(millis(10)).await;
    }
    let remembered = remembered(&cached, &store, 10).await;
    assert!((3..=6).contains(&remembered.len()), "{remembered:?}");
    let newest: Vec<_> = (10 - remembered.len()..10).collect();
    assert_eq!(remembered, newest);
    assert_eq!(cached.len(), newest.len());

    let nothing = Cached::new((*store).clone()).max_bytes(0);
    complete(&nothing, &key("other"), DAY).await;
    assert!(nothing.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_kept_for_duplicates_counts() {
    let store = Faulty::new();
    let cached = Cached::new((*store).clone()).max_bytes(10_000);
    // In one shard, and each of more than 4 000 bytes.
    let cached = cached.max_entries(100);
    let (token, request) = (Token::random(), BodyHash::of(b"POST /"));
    let body = "a".repeat(4_000);
    let entry: Entry = format!("v1 done {token} 0 200 - request={request} body={body}")
        .parse()
        .unwrap();
    let Entry::Done { record, .. } = entry else {
        panic!("{entry:?}");
    };
    assert!(record.answer().is_some());
    for id in 0..5 {
        let key = key(id);
        let completed = cached.complete(&key, token, &record, DAY, by());
        assert!(completed.await.unwrap());
    }
    assert_eq!(remembered(&cached, &store, 5).await, [3, 4]);
    let again = acquire(&cached, &key(4)).await;
    assert_eq!(again, Acquire::Done(record), "with its answer");
}

/// Of an event that another process completed, and whose duplicates all come before the first reply.
#[tokio::test(start_paused = true)]
async fn a_storm_of_one_event_displaces_no_other() {
    let store = Faulty::new();
    let cached = Cached::new((*store).clone()).max_entries(1_000);
    for id in 0..500 {
        complete(&cached, &key(id), DAY).await;
    }
    completed_elsewhere(&store, &key("storm"), secs(0)).await;
    store.plan(|_| Fault::DelayAfter(millis(5)));
    let storm = (0..1_000).map(|_| async { is_done(&cached, &key("storm")).await });
    assert!(join_all(storm).await.into_iter().all(|is_done| is_done));
    assert_eq!(cached.len(), 501);
    assert_eq!(remembered(&cached, &store, 500).await.len(), 500);
}

/// Room for twenty, in one shard, which what comes and goes uses over and over.
#[tokio::test(start_paused = true)]
async fn whatever_comes_and_goes_only_what_is_true_is_remembered() {
    struct Done {
        record: Record,
        until: Instant,
        forgotten: bool,
    }
    let mut random = fastrand::Rng::with_seed(7);
    let store = Faulty::new();
    let cached = Cached::new((*store).clone()).max_entries(20);
    let keys: Vec<_> = (0..60)
        .map(|id: usize| key(format!("{id}{}", "x".repeat(id * 31 % 190))))
        .collect();
    let mut done: HashMap<usize, Done> = HashMap::new();
    let mut latest = VecDeque::new();
    let (mut right, mut over) = (0, 0);
    for n in 0..20_000 {
        let id = random.usize(..keys.len());
        let key = &keys[id];
        match random.u8(..10) {
            0..3 => {
                cached.forget(key, false, by()).await.unwrap();
                let (token, record) = (Token::random(), Record::new(Some(n % 600), None));
                let retention = if random.bool() { DAY } else { secs(40) };
                let until = Instant::now() + retention.min(secs(60));
                cached.acquire(key, token, secs(30), by()).await.unwrap();
                let completed = cached.complete(key, token, &record, retention, by());
                assert!(completed.await.unwrap());
                let forgotten = false;
                done.insert(
                    id,
                    Done {
                        record,
                        until,
                        forgotten,
                    },
                );
                latest.push_back(id);
                if latest.len() > 10 {
                    latest.pop_front();
                }
            }
            3 => {
                cached.forget(key, false, by()).await.unwrap();
                if let Some(done) = done.get_mut(&id) {
                    done.forgotten = true;
                }
            }
            4 => sleep(millis(random.u64(..8_000))).await,
            _ => {
                store.plan(|_| Fault::UNREACHABLE);
                let known = cached.acquire(key, Token::random(), secs(30), by()).await;
                store.heal();
                let known = known.ok().map(|acquired| match acquired {
                    Acquire::Done(record) => record,
                    other => panic!("{other:?}"),
                });
                let is_true = |it: &&Done| !it.forgotten && Instant::now() < it.until;
                let truth = done.get(&id).filter(is_true).map(|it| it.record.clone());
                right += usize::from(known.is_some());
                over += usize::from(done.contains_key(&id) && truth.is_none());
                if latest.contains(&id) || known.is_some() {
                    assert_eq!(known, truth, "{n}: {id}");
                }
            }
        }
    }
    assert!(right > 1_000 && over > 1_000, "{right}, {over}");
}

/// What is forgotten makes room, and what is over goes by itself.
#[tokio::test(start_paused = true)]
async fn room_is_used_again() {
    let store = Faulty::new();
    let cached = Cached::new((*store).clone()).max_entries(1000);
    for round in 0..20 {
        for id in 0..500 {
            complete(&cached, &key(id), secs(30)).await;
        }
        assert!((500..=1000).contains(&cached.len()), "{round}");
        for id in 0..250 {
            assert!(cached.forget(&key(id), false, by()).await.unwrap());
        }
        assert!(cached.len() <= 750, "{round}: {}", cached.len());
        sleep(secs(31)).await;
    }
    for id in 10_000..10_200 {
        complete(&cached, &key(id), secs(30)).await;
    }
    assert_eq!(cached.len(), 200, "the old ones are gone");
}

#[tokio::test(start_paused = true)]
async fn clones_share_what_is_remembered() {
    let store = Faulty::new();
    let cached = Cached::new((*store).clone());
    complete(&cached.clone(), &key("a"), DAY).await;
    assert!(is_done(&cached, &key("a")).await);
    assert_eq!(store.count(Operation::Acquire), 1);
    assert!(cached.clone().forget(&key("a"), false, by()).await.unwrap());
    assert!(!is_done(&cached, &key("a")).await);
    assert_eq!(format!("{cached:?}"), "Cached { ttl: 60s, len: 0, .. }");
}
