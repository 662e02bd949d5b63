//! Draining, and what must not slip past it.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use tokio::time::sleep;
use tower::{Layer, ServiceExt};
use tower_webhook_dedup::{DrainHandle, Drained, Entry, Operation, WebhookDedupLayer};

use http_support::{Events, Handler, by_id, e1, millis, poll_until, post, secs, send};
use stores::{Fault, Faulty};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

/// `C0` with events told by their id alone, so that a test can hold one from outside.
fn layer(store: &Faulty) -> WebhookDedupLayer<Faulty> {
    by_id(store.clone())
}

/// Axum reports its server stopped a moment before it drops its last connections.
#[tokio::test(start_paused = true)]
async fn draining_does_not_miss_a_run_whose_sender_hangs_up_just_then() {
    let (store, handler) = (Faulty::new(), Handler::first_then(secs(5), 200, 0));
    let layer = layer(&store);
    let service = layer.layer(handler.clone());
    let mut first = Box::pin(service.clone().oneshot(post("e1")));
    poll_until(&mut first, handler.began(1)).await;
    let drain = layer.drain_handle();
    let draining = tokio::spawn(async move { drain.drain(secs(60)).await });
    sleep(secs(1)).await;
    drop(first);
    assert!(draining.await.unwrap().is_complete());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(handler.runs(), 1);
}

/// Cloned with its request, as a promise is about to be made, it drains.
struct Drains(DrainHandle, Arc<Mutex<Vec<Option<Drained>>>>);

impl Clone for Drains {
    fn clone(&self) -> Self {
        let drained = self.0.drain(secs(1)).now_or_never();
        self.1.lock().unwrap().push(drained);
        Self(self.0.clone(), self.1.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn no_promise_is_made_behind_the_back_of_a_drain() {
    let store = Faulty::new();
    store.hold(&e1(), secs(60)).await;
    let layer = layer(&store);
    let service = layer.layer(Handler::ok());
    let drained = Arc::default();
    let mut request = post("e1");
    let drains = Drains(layer.drain_handle(), Arc::clone(&drained));
    request.extensions_mut().insert(drains);
    assert_eq!(send(&service, request).await.brief(), (503, "in-flight"));
    // It has to wait for the request, whatever becomes of that.
    let drained = drained.lock().unwrap();
    assert!(!drained.is_empty() && drained.iter().all(Option::is_none));
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_has_only_begun_tries_at_once_when_draining_begins() {
    let (store, handler) = (Faulty::new(), Handler::ok());
    let token = store.hold(&e1(), secs(60)).await;
    let layer = layer(&store);
    let service = layer.layer(handler.clone());
    send(&service, post("e1")).await;
    store.let_go(&e1(), token).await;
    let drained = layer.drain_handle().drain(millis(500)).await;
    assert!(drained.is_complete(), "{drained:?}");
    assert_eq!(handler.runs(), 1);
}

/// It answered, and the reply to its completion is not here yet.
#[tokio::test(start_paused = true)]
async fn an_event_that_a_standby_is_completing_at_the_limit_of_draining_is_not_lost() {
    for fault in [Fault::Delay(millis(250)), Fault::Hang, Fault::HangAfter] {
        let (store, events) = (
            Faulty::broken(Operation::Complete, fault),
            Events::default(),
        );
        let token = store.hold(&e1(), secs(60)).await;
        let layer = layer(&store).on_event(events.hook());
        let service = layer.layer(Handler::ok());
        send(&service, post("e1")).await;
        store.let_go(&e1(), token).await;
        let drain = layer.drain_handle();
        let draining = tokio::spawn(async move { drain.drain(millis(100)).await });
        store.called(Operation::Complete, 1).await;
        let drained = draining.await.unwrap();
        assert!(drained.lost().is_empty(), "{fault:?}: {drained:?}");
        assert!(!drained.is_complete());
        if !matches!(fault, Fault::HangAfter) {
            assert_eq!(drained.unwritten(), [e1()]);
        }
        store.heal();
        sleep(secs(3)).await;
        let entry = store.entry(&e1()).await;
        assert!(matches!(entry, Some(Entry::Done { .. })), "{fault:?}");
        assert!(events.lost().is_empty());
    }
}
