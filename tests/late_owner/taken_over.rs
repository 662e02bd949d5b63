//! R8, R9: once another owner has the event, the end of a late one changes nothing.

use std::collections::HashSet;

use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_webhook_dedup::{Entry, LeaseStore, Operation, Record, Release, Token};

use crate::{
    engine::acquired,
    holder,
    http_support::{Events, Handler, e1, is, millis, post, refusing, secs, send, send_later},
    stores::{Fault, Faulty},
};

/// R9: the first owner's lease runs out, a second one takes over, and the first ends late.
async fn a_late_end(status: u16) {
    let (store, events) = (
        Faulty::broken(Operation::Renew, Fault::UNREACHABLE),
        Events::default(),
    );
    let late = Handler::first_then(secs(4), status, 0);
    let next = Handler::first_then(secs(4), 200, 0);
    let first = refusing(store.clone())
        .on_event(events.hook())
        .layer(late.clone());
    let second = refusing(store.elsewhere()).layer(next.clone());

    let first_answer = send_later(&first, post("e1"));
    late.began(1).await;
    let first_token = holder(&store).await.unwrap();
    sleep(millis(2_500)).await;
    let second_answer = send_later(&second, post("e1"));
    next.began(1).await;
    let second_token = holder(&store).await.unwrap();
    assert_ne!(first_token, second_token);

    let first_answer = first_answer.await.unwrap();
    assert_eq!(first_answer.brief(), (status, "run"));
    assert_eq!(
        events.count(is!(LeaseLost)),
        1,
        "at the deadline, and not again"
    );
    assert_eq!(holder(&store).await, Some(second_token));
    for service in [&first, &second] {
        assert_eq!(send(service, post("e1")).await.brief(), (503, "in-flight"));
    }
    assert_eq!(second_answer.await.unwrap().brief(), (200, "run"));
    match store.entry(&e1()).await {
        Some(Entry::Done { token, .. }) => assert_eq!(token, second_token),
        other => panic!("{other:?}"),
    }
    assert_eq!((late.runs(), next.runs()), (1, 1));
}

/// R9
#[tokio::test(start_paused = true)]
async fn a_late_release_leaves_the_next_owners_lease_alone() {
    a_late_end(500).await;
}

/// R9
#[tokio::test(start_paused = true)]
async fn a_late_completion_leaves_the_next_owners_lease_alone() {
    a_late_end(200).await;
}

/// R9: a late completion after the next owner completed, or failed.
#[tokio::test(start_paused = true)]
async fn a_late_completion_counts_only_if_nobody_else_completed() {
    for status in [200, 500] {
        let store = Faulty::broken(Operation::Renew, Fault::UNREACHABLE);
        let late = Handler::first_then(secs(5), 200, 0);
        let first = refusing(store.clone()).layer(late.clone());
        let second = refusing(store.elsewhere()).layer(Handler::statuses([status]));
        let answer = send_later(&first, post("e1"));
        late.began(1).await;
        let token = holder(&store).await.unwrap();
        sleep(secs(3)).await;
        assert_eq!(send(&second, post("e1")).await.brief(), (status, "run"));
        assert_eq!(answer.await.unwrap().brief(), (200, "run"));
        match store.entry(&e1()).await {
            Some(Entry::Done { token: by, .. }) => assert_eq!(by == token, status == 500),
            other => panic!("{other:?}"),
        }
    }
}

/// R8 and R9 for those who hold leases themselves.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_taken_away_neither_completes_nor_releases() {
    let store = Faulty::new();
    let dedup = refusing(store.clone()).dedup();
    for complete in [true, false] {
        let lease = acquired(&dedup, &e1()).await;
        assert!(dedup.forget(&e1(), true).await.unwrap());
        let other = store.hold(&e1(), secs(60)).await;
        if complete {
            assert!(!lease.complete(Record::new(None, None)).await);
        } else {
            lease.release(Release::Abandoned).await;
        }
        assert_eq!(holder(&store).await, Some(other));
        let by = Instant::now();
        store.inner.forget(&e1(), true, by).await.unwrap();
    }
}

#[test]
fn no_two_attempts_have_the_same_token_whatever_threads_make_them() {
    const THREADS: usize = 8;
    const TOKENS: usize = 5_000;
    // The half without the time, which hides what else repeats.
    let half = |token: Token| (u128::from_ne_bytes(*token.as_bytes()) >> 64) as u64;
    let draw = move || -> Vec<_> { (0..TOKENS).map(|_| half(Token::random())).collect() };
    let threads: Vec<_> = (0..THREADS).map(|_| std::thread::spawn(draw)).collect();
    let drawn = threads.into_iter().flat_map(|it| it.join().unwrap());
    let different: HashSet<_> = drawn.collect();
    assert_eq!(different.len(), THREADS * TOKENS);
}
