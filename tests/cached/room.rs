//! How much is remembered, and what goes when there is no more room.

use std::collections::{HashMap, VecDeque};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower_webhook_dedup::{Acquire, BodyHash, Cached, Entry, LeaseStore, Record, Token};

use crate::{
    DAY, acquire, by, complete, completed_elsewhere,
    http_support::{millis, secs},
    is_done, key,
    stores::{Fault, Faulty, Trouble},
};

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
