//! As a sender sees an outage.

use tokio::time::{Instant, sleep};
use tower::Layer;

use crate::{
    GONE,
    http_support::{Handler, millis, post, secs, send, send_later},
    process,
    stores::Fault,
};

/// R28, local
#[tokio::test(start_paused = true)]
async fn deliveries_run_once_while_the_store_is_away_and_after() {
    for fault in [GONE, Fault::Hang] {
        let (process, handler) = (process(), Handler::ok());
        process.primary.plan(move |_| fault);
        let service = process.layer().layer(handler.clone());
        for outcome in ["run", "duplicate"] {
            let asked = Instant::now();
            let answer = send(&service, post("e1")).await;
            assert_eq!(answer.brief(), (200, outcome));
            assert!(asked.elapsed() <= millis(300));
        }
        process.come_back().await;
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
        assert_eq!(handler.runs(), 1);
    }
}

/// A standing run across both switches, as a sender sees it.
#[tokio::test(start_paused = true)]
async fn a_request_in_flight_across_the_switches_is_answered_as_ever() {
    let process = process();
    let handler = Handler::first_then(secs(12), 200, 500);
    let service = process.layer().layer(handler.clone());
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    process.fail();
    sleep(secs(5)).await;
    assert!(process.store.is_degraded());
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    process.come_back().await;
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(handler.runs(), 1);
}
