//! Promise 2: which requests of an event are stood by for, and for how many there is room.

use std::sync::Arc;

use futures_util::FutureExt;
use tokio::{runtime::Builder, time::sleep};
use tower::Layer;
use tower_webhook_dedup::{Key, Limits, Refusal};

use http_support::{
    Events, Handler, Run, by_id, e1, millis, post, post_body, secs, send, send_later,
};
use standbys::{done, form, forms, signed};
use stores::{Faulty, MemoryStore};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/standby.rs"]
mod standbys;
#[path = "support/stores.rs"]
mod stores;

/// A handler that knows true forms of the event from forged ones.
fn verifying() -> Handler {
    Handler::new(|run: Run| async move {
        if run.request.headers().contains_key("x-signature") {
            200
        } else {
            401
        }
    })
}

/// R23: an unverified forgery must not take the only place, nor the last word.
#[tokio::test(start_paused = true)]
async fn a_forged_request_in_the_standby_does_not_keep_the_true_one_from_running() {
    for true_is_newest in [true, false] {
        let (store, events) = (Faulty::new(), Events::default());
        let handler = verifying();
        store.hold(&e1(), secs(2)).await;
        let service = by_id(store.clone())
            .on_event(events.hook())
            .layer(handler.clone());
        let (forged, truth) = (form(666), signed(form(1)));
        let order = if true_is_newest {
            [forged, truth]
        } else {
            [truth, forged]
        };
        for request in order {
            assert_eq!(send(&service, request).await.brief(), (200, "standby"));
        }
        sleep(secs(60)).await;
        assert!(done(&store, &e1()).await.is_some());
        let tried = if true_is_newest {
            vec![1]
        } else {
            vec![666, 1]
        };
        assert_eq!(forms(&handler), tried);
        assert!(events.lost().is_empty());
    }
}

/// R23: the forged request runs first, and the true one comes meanwhile.
#[tokio::test(start_paused = true)]
async fn a_true_request_that_meets_a_forged_run_completes_the_event() {
    let store = MemoryStore::new();
    let handler = Handler::new(|run: Run| async move {
        sleep(secs(1)).await;
        if run.request.headers().contains_key("x-signature") {
            200
        } else {
            401
        }
    });
    let service = by_id(store.clone()).layer(handler.clone());
    let forged = send_later(&service, form(666));
    handler.began(1).await;
    let answer = send(&service, signed(form(1))).await;
    assert_eq!(answer.brief(), (200, "standby"));
    assert_eq!(forged.await.unwrap().brief(), (401, "run"));
    sleep(secs(60)).await;
    assert!(done(&store, &e1()).await.is_some());
    assert_eq!(forms(&handler), [666, 1]);
}

#[tokio::test(start_paused = true)]
async fn up_to_four_requests_of_an_event_are_kept_and_the_newest_is_tried_first() {
    let (store, handler) = (Faulty::new(), Handler::statuses([500]));
    store.hold(&e1(), secs(2)).await;
    let service = by_id(store.clone()).layer(handler.clone());
    for n in 1..=5 {
        send(&service, form(n)).await;
    }
    handler.began(8).await;
    assert_eq!(forms(&handler)[..8], [5, 4, 3, 2, 5, 4, 3, 2]);
}

#[tokio::test(start_paused = true)]
async fn identical_requests_of_an_event_are_kept_once() {
    let (store, handler) = (Faulty::new(), Handler::statuses([500]));
    store.hold(&e1(), secs(2)).await;
    let service = by_id(store.clone()).layer(handler.clone());
    for n in [1, 2, 2, 2, 2, 2, 2] {
        send(&service, form(n)).await;
    }
    // It differs by a header.
    send(&service, signed(form(2))).await;
    handler.began(6).await;
    assert_eq!(forms(&handler)[..6], [2, 2, 1, 2, 2, 1]);
    let signed: Vec<_> = handler
        .seen()
        .iter()
        .map(|seen| seen.headers.contains_key("x-signature"))
        .collect();
    assert_eq!(signed[..3], [true, false, false]);
}

/// The newcomer of a standby that is at work gets its turn.
#[tokio::test(start_paused = true)]
async fn a_request_that_joins_a_standby_between_its_runs_is_tried_next() {
    let (store, handler) = (Faulty::new(), verifying());
    store.hold(&e1(), millis(500)).await;
    let service = by_id(store.clone()).layer(handler.clone());
    send(&service, form(1)).await;
    handler.has_ended(3).await;
    // The event is free now and then, so hold it for the joiner to find.
    store.hold(&e1(), millis(10)).await;
    let joined = send(&service, signed(form(2))).await;
    assert_eq!(joined.brief(), (200, "standby"));
    handler.has_ended(4).await;
    sleep(millis(1)).await;
    assert_eq!(forms(&handler), [1, 1, 1, 2]);
    assert!(done(&store, &e1()).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn no_promise_is_made_beyond_the_number_of_standbys() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    for id in ["e1", "e2"] {
        store.hold(&Key::new("t", id), secs(2)).await;
    }
    let service = by_id(store.clone())
        .limits(Limits::default().standbys(1))
        .layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "standby"));
    let refused = send(&service, post("e2")).await;
    assert_eq!(refused.brief(), (503, "in-flight"));
    assert_eq!(refused.header("retry-after"), Some("2"));
    assert!(matches!(refused.refusal(), Refusal::NoRoom { .. }));
    // One more of the first event needs no other standby.
    assert_eq!(send(&service, form(2)).await.brief(), (200, "standby"));

    // And there is room again afterwards.
    handler.has_ended(1).await;
    sleep(secs(10)).await;
    store.hold(&Key::new("t", "e3"), secs(2)).await;
    assert_eq!(send(&service, post("e3")).await.brief(), (200, "standby"));
    sleep(secs(10)).await;
    assert_eq!(handler.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn no_promise_is_made_beyond_the_bytes_that_may_be_held() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    let service = by_id(store.clone())
        .limits(Limits::default().bytes(25_000))
        .layer(handler.clone());
    let big = |id: &str| post_body(&format!(r#"{{"id":"{id}","x":"{}"}}"#, "x".repeat(10_000)));
    for round in 0..3 {
        let ids = [1, 2, 3].map(|n| format!("e{round}{n}"));
        for id in &ids {
            store.hold(&Key::new("t", id), secs(2)).await;
        }
        for id in &ids[..2] {
            assert_eq!(send(&service, big(id)).await.brief(), (200, "standby"));
        }
        let refused = send(&service, big(&ids[2])).await;
        assert_eq!(refused.brief(), (503, "in-flight"));
        assert!(matches!(refused.refusal(), Refusal::NoRoom { .. }));
        assert!(refused.headers.contains_key("retry-after"));
        sleep(secs(60)).await;
        // The bytes are given back with the standbys.
        assert_eq!(handler.runs(), 2 * (round + 1));
    }
}

/// A request that was replaced gives its bytes back, too.
#[tokio::test(start_paused = true)]
async fn requests_of_one_event_do_not_use_up_the_bytes() {
    let store = Faulty::new();
    store.hold(&e1(), secs(3600)).await;
    let service = by_id(store)
        .limits(Limits::default().bytes(60_000))
        .layer(Handler::ok());
    for n in 0..100 {
        let body = format!(r#"{{"id":"e1","n":{n},"x":"{}"}}"#, "x".repeat(10_000));
        let answer = send(&service, post_body(&body)).await;
        assert_eq!(answer.brief(), (200, "standby"), "{n}");
    }
}

/// Nor does the same request, once more, need any room.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_stood_by_for_is_acknowledged_again_without_room() {
    let store = Faulty::new();
    store.hold(&e1(), secs(3600)).await;
    let service = by_id(store)
        .limits(Limits::default().bytes(1_500))
        .layer(Handler::ok());
    assert_eq!(send(&service, form(1)).await.brief(), (200, "standby"));
    let other = send(&service, form(2)).await;
    assert!(matches!(other.refusal(), Refusal::NoRoom { .. }));
    assert_eq!(send(&service, form(1)).await.brief(), (200, "standby"));
}

/// What it holds of the user's is dropped where that may come back to the layer.
#[test]
fn a_request_that_sends_another_when_it_is_replaced_does_not_lock_up() {
    struct OnDrop<F: FnMut()>(F);
    impl<F: FnMut()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let store = Faulty::new();
            store.hold(&e1(), secs(3600)).await;
            let service = by_id(store).layer(Handler::ok());
            let mut again = Some((service.clone(), ended));
            let on_drop = OnDrop(move || {
                let Some((service, ended)) = again.take() else {
                    return;
                };
                let answer = send(&service, form(5)).now_or_never().unwrap();
                ended.send(answer.status).unwrap();
            });
            let mut first = form(0);
            first.extensions_mut().insert(Arc::new(on_drop));
            send(&service, first).await;
            for n in 1..5 {
                send(&service, form(n)).await;
            }
        });
    });
    assert_eq!(end.recv_timeout(secs(10)), Ok(200));
}
