//! The answers of records that could not be written yet.

use tower::Layer;
use tower_webhook_dedup::{Limits, Operation};

use crate::{
    answering, assert_plain, assert_replayed,
    http_support::{post, secs, send},
    record, replaying,
    stores::{Fault, Faulty},
    twiml,
};

#[tokio::test(start_paused = true)]
async fn a_record_that_is_not_written_yet_has_its_answer() {
    let fault = Fault::UNREACHABLE;
    let store = Faulty::broken(Operation::Complete, fault);
    let layer = replaying(store.clone());
    let service = layer.layer(answering(twiml));
    assert_eq!(send(&service, post("e1")).await.brief(), (201, "run"));
    assert_replayed(&send(&service, post("e1")).await);
    store.heal();
    assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    assert!(record(&layer).await.answer().is_some());
    assert_replayed(&send(&service, post("e1")).await);
}

#[tokio::test(start_paused = true)]
async fn without_room_for_its_answer_a_record_is_written_later_without() {
    let fault = Fault::UNREACHABLE;
    let store = Faulty::broken(Operation::Complete, fault);
    let layer = replaying(store.clone()).limits(Limits::default().bytes(600));
    let service = layer.layer(answering(|_| twiml(1)));
    // There is room for one.
    for (id, replayed) in [("e2", true), ("e1", false)] {
        assert_eq!(send(&service, post(id)).await.brief(), (201, "run"));
        let answer = send(&service, post(id)).await;
        if replayed {
            assert_replayed(&answer);
        } else {
            assert_plain(&answer);
        }
    }
    store.heal();
    assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    assert!(record(&layer).await.answer().is_none());
    // The room is given back.
    store.breaks(Operation::Complete, fault);
    assert_eq!(send(&service, post("e3")).await.brief(), (201, "run"));
    assert_replayed(&send(&service, post("e3")).await);
}
