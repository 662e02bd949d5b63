//! A store that panics has failed, and ends no work but its own call.

use tokio::time::sleep;
use tower::Layer;
use tower_webhook_dedup::{Entry, Key, Operation};

use crate::{
    http_support::{Handler, e1, post, refusing, secs, send},
    stores::{Fault, Faulty},
};

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_is_a_store_that_failed() {
    for operation in [Operation::Acquire, Operation::Complete, Operation::Release] {
        let status = if operation == Operation::Release {
            500
        } else {
            200
        };
        let store = Faulty::with(move |call| {
            if call.operation == operation && call.n == 1 {
                Fault::Panic
            } else {
                Fault::None
            }
        });
        let handler = Handler::statuses([status, 200]);
        let layer = refusing(store.clone()).lease(secs(3600));
        let service = layer.layer(handler.clone());
        let first = match operation {
            Operation::Acquire => (503, "refused"),
            _ => (status, "run"),
        };
        assert_eq!(send(&service, post("e1")).await.brief(), first);
        sleep(secs(2)).await;
        let brief = match operation {
            Operation::Complete => (200, "duplicate"),
            _ => (200, "run"),
        };
        assert_eq!(send(&service, post("e1")).await.brief(), brief);
        assert!(layer.drain_handle().drain(secs(20)).await.is_complete());
        assert!(matches!(store.entry(&e1()).await, Some(Entry::Done { .. })));
    }
}

/// A background task that dies of a panic is started again by the next in need of it.
#[tokio::test(start_paused = true)]
async fn a_panic_in_the_background_does_not_end_background_work() {
    let store = Faulty::with(|call| match call.operation {
        Operation::Complete if call.n == 2 => Fault::Panic,
        Operation::Complete if call.n < 6 => Fault::UNREACHABLE,
        _ => Fault::None,
    });
    let layer = refusing(store.clone());
    let service = layer.layer(Handler::ok());
    send(&service, post("e1")).await;
    sleep(secs(10)).await;
    send(&service, post("e2")).await;
    sleep(secs(30)).await;
    for id in ["e1", "e2"] {
        let entry = store.entry(&Key::new("t", id)).await;
        assert!(matches!(entry, Some(Entry::Done { .. })), "{id}");
    }
}
