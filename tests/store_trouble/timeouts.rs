//! A store that hangs holds nobody up for longer than its timeout.

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::Layer;
use tower_webhook_dedup::{Key, Operation, StoreErrorKind};

use crate::{
    AT_MOST,
    http_support::{Handler, e1, post, refusing, secs, send},
    store_error,
    stores::{Fault, Faulty},
};

/// R28, R47
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_refused_within_its_timeout() {
    let handler = Handler::ok();
    let store = Faulty::with(|_| Fault::Hang);
    let service = refusing(store.clone()).layer(handler.clone());
    for _ in 0..2 {
        let asked = Instant::now();
        let answer = send(&service, post("e1")).await;
        assert!(asked.elapsed() <= AT_MOST, "{:?}", asked.elapsed());
        assert_eq!(answer.brief(), (503, "refused"));
        assert_eq!(answer.header("retry-after"), Some("1"));
        let error = store_error(&answer);
        assert_eq!(error.kind(), StoreErrorKind::TimedOut);
        assert_eq!(error.operation(), Operation::Acquire);
    }
    assert_eq!(handler.runs(), 0);
    // And for the very events that were refused meanwhile.
    store.heal();
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
}

/// R47
#[tokio::test(start_paused = true)]
async fn five_hundred_requests_of_a_store_that_hangs_are_answered_within_its_timeout() {
    let store = Faulty::with(|_| Fault::Late(secs(3)));
    let service = refusing(store.clone()).layer(Handler::ok());
    let asked = Instant::now();
    let mut answers = JoinSet::new();
    for n in 0..500 {
        answers.spawn(send(&service, post(&format!("e{n}"))));
    }
    let answers = answers.join_all().await;
    assert!(asked.elapsed() <= AT_MOST, "{:?}", asked.elapsed());
    assert!(answers.iter().all(|it| it.brief() == (503, "refused")));
    // None of their late keys outlives a lease.
    store.heal();
    sleep(secs(3 + 2)).await;
    for n in 0..500 {
        let entry = store.entry(&Key::new("t", format!("e{n}"))).await;
        assert!(entry.is_none());
    }
}

/// The engine's own deadline: what is not reached by the store's timeout.
#[tokio::test(start_paused = true)]
async fn a_handlers_answer_waits_for_a_hanging_store_no_longer_than_its_timeout() {
    for (status, operation) in [
        (200, Operation::Complete),
        (500, Operation::Release),
        (200, Operation::Renew),
    ] {
        for fault in [Fault::Hang, Fault::HangAfter] {
            let store = Faulty::broken(operation, fault);
            let handler = Handler::first_then(secs(1), status, status);
            let service = refusing(store).layer(handler);
            let asked = Instant::now();
            let answer = send(&service, post("e1")).await;
            assert_eq!(answer.brief(), (status, "run"));
            assert!(asked.elapsed() <= secs(1) + AT_MOST);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn looking_at_an_event_fails_within_the_timeout_of_its_store() {
    let dedup = refusing(Faulty::with(|_| Fault::Hang)).dedup();
    let asked = Instant::now();
    let error = dedup.inspect(&e1()).await.unwrap_err();
    assert_eq!(error.operation(), Operation::Inspect);
    let error = dedup.forget(&e1(), true).await.unwrap_err();
    assert_eq!(error.operation(), Operation::Forget);
    assert_eq!(error.kind(), StoreErrorKind::TimedOut);
    assert!(asked.elapsed() <= AT_MOST * 2);
}

/// Store calls are dropped at their deadline, not left behind.
#[tokio::test(start_paused = true)]
async fn a_process_whose_store_hangs_drains_all_the_same() {
    let store = Faulty::new();
    let layer = refusing(store.clone());
    let service = layer.layer(Handler::statuses([500]));
    store.plan(|call| match call.operation {
        Operation::Acquire => Fault::None,
        _ => Fault::Hang,
    });
    send(&service, post("e1")).await;
    let begun = Instant::now();
    assert!(layer.drain_handle().drain(secs(20)).await.is_complete());
    assert!(begun.elapsed() <= secs(3));
}
