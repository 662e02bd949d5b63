//! R70: runs that are dropped where there is no runtime, or by a panic.

use std::{
    future::{Future, pending},
    panic::{AssertUnwindSafe, catch_unwind},
};

use tokio::time::sleep;
use tower::{Layer, ServiceExt};

use crate::{
    http_support::{Events, Handler, by_id, millis, poll_until, post, secs, send},
    runtime::paused_runtime,
    stores::Faulty,
};

/// A request that is in its handler, on a runtime that has ended since.
fn orphan(store: &Faulty, events: &Events) -> impl Future + Send + use<> {
    let handler = Handler::new(|_| pending());
    let service = by_id(store.clone())
        .on_event(events.hook())
        .layer(handler.clone());
    let mut answer = Box::pin(service.oneshot(post("e1")));
    paused_runtime().block_on(poll_until(&mut answer, handler.began(1)));
    answer
}

/// R70
#[test]
fn a_run_that_is_dropped_outside_a_runtime_leaves_its_lease_to_run_out() {
    let (store, events) = (Faulty::new(), Events::default());
    let answer = orphan(&store, &events);
    std::thread::spawn(move || drop(answer)).join().unwrap();
    paused_runtime().block_on(async {
        // Another runtime's paused clock: the lease is two seconds long.
        sleep(secs(3)).await;
        let service = by_id(store.elsewhere()).layer(Handler::ok());
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    });
}

/// R70
#[test]
fn a_run_that_is_dropped_by_a_panic_outside_a_runtime_does_not_abort_the_process() {
    let answer = orphan(&Faulty::new(), &Events::default());
    let panicked = std::thread::spawn(move || {
        let _answer = answer;
        panic!("with a request in hand");
    });
    assert!(panicked.join().is_err());
}

/// R70
#[test]
fn a_run_that_is_dropped_by_a_panic_inside_a_runtime_goes_on() {
    paused_runtime().block_on(async {
        let (store, handler) = (Faulty::new(), Handler::first_then(secs(5), 200, 200));
        let service = by_id(store.clone()).layer(handler.clone());
        let mut answer = Box::pin(service.clone().oneshot(post("e1")));
        poll_until(&mut answer, handler.began(1)).await;
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _answer = answer;
            panic!("with a request in hand");
        }));
        assert!(panicked.is_err());
        handler.has_ended(1).await;
        sleep(millis(1)).await;
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    });
}
