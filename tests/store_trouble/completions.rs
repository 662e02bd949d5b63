//! R19: a completion that cannot be written is kept, and written later.

use tokio::time::{Instant, sleep};
use tower::Layer;
use tower_webhook_dedup::{DedupEvent, Entry, Key, OnDisconnect, Operation, StoreErrorKind};

use crate::{
    AT_MOST,
    http_support::{Events, Handler, e1, is, millis, post, refusing, secs, send, send_later},
    stores::{Fault, Faulty},
};

/// R19
#[tokio::test(start_paused = true)]
async fn a_completion_that_cannot_be_written_is_kept_and_written_later() {
    let (store, events) = (
        Faulty::broken(Operation::Complete, Fault::FULL),
        Events::default(),
    );
    let handler = Handler::first_then(millis(300), 200, 500);
    let layer_here = refusing(store.clone()).on_event(events.hook());
    let here = layer_here.layer(handler.clone());
    let elsewhere = refusing(store.elsewhere()).layer(handler.clone());

    let asked = Instant::now();
    assert_eq!(send(&here, post("e1")).await.brief(), (200, "run"));
    assert!(asked.elapsed() <= millis(300) + AT_MOST);
    for _ in 0..30 {
        sleep(secs(1)).await;
        let acquires = store.count(Operation::Acquire);
        let answer = send(&here, post("e1")).await;
        assert_eq!(answer.brief(), (200, "duplicate"));
        assert_eq!(store.count(Operation::Acquire), acquires, "known here");
        // The lease is two seconds long, and goes on being renewed.
        let answer = send(&elsewhere, post("e1")).await;
        assert_eq!(answer.brief(), (503, "in-flight"));
    }
    store.heal();
    sleep(secs(6)).await;
    assert_eq!(
        send(&elsewhere, post("e1")).await.brief(),
        (200, "duplicate")
    );
    assert_eq!(send(&here, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(handler.runs(), 1);
    assert_eq!(store.count(Operation::Release), 0);
    assert_eq!(
        (
            events.count(is!(CompletionPending)),
            events.count(is!(Completed))
        ),
        (1, 1)
    );
    assert!(layer_here.drain_handle().drain(secs(1)).await.is_complete());
}

/// R19: the reply was lost, and the record is there.
#[tokio::test(start_paused = true)]
async fn a_completion_whose_reply_was_lost_is_written_once() {
    let (store, events) = (Faulty::new(), Events::default());
    store.plan(|call| match call.operation {
        Operation::Complete if call.n < 3 => Fault::After(StoreErrorKind::Unreachable),
        _ => Fault::None,
    });
    let layer = refusing(store.clone()).on_event(events.hook());
    let service = layer.layer(Handler::ok());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert!(layer.drain_handle().drain(secs(20)).await.is_complete());
    assert!(matches!(store.entry(&e1()).await, Some(Entry::Done { .. })));
    assert_eq!(events.count(is!(LeaseLost)), 0);
}

/// R19: another process ran the event meanwhile; its record stands.
#[tokio::test(start_paused = true)]
async fn a_pending_completion_gives_way_to_another_owner() {
    let (store, events) = (Faulty::new(), Events::default());
    store.plan(|call| match call.operation {
        Operation::Complete | Operation::Renew => Fault::UNREACHABLE,
        _ => Fault::None,
    });
    let layer_here = refusing(store.clone()).on_event(events.hook());
    let here = layer_here.layer(Handler::ok());
    send(&here, post("e1")).await;
    sleep(secs(3)).await;
    let elsewhere = refusing(store.elsewhere()).layer(Handler::statuses([202]));
    assert_eq!(send(&elsewhere, post("e1")).await.brief(), (202, "run"));
    store.heal();
    sleep(secs(10)).await;
    let Some(Entry::Done { record, .. }) = store.entry(&e1()).await else {
        panic!("not done");
    };
    assert_eq!(record.status(), Some(202));
    assert_eq!(events.count(is!(LeaseLost)), 1);
    assert!(layer_here.drain_handle().drain(secs(1)).await.is_complete());
}

/// R19: if it never lands, that is reported.
#[tokio::test(start_paused = true)]
async fn a_completion_that_is_never_written_is_dropped_with_a_report_after_ten_minutes() {
    let (store, events) = (
        Faulty::broken(Operation::Complete, Fault::FULL),
        Events::default(),
    );
    let layer = refusing(store.clone()).on_event(events.hook());
    let service = layer.layer(Handler::ok());
    send(&service, post("e1")).await;
    sleep(secs(595)).await;
    assert_eq!(events.count(is!(CompletionDropped)), 0);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    sleep(secs(15)).await;
    assert_eq!(events.count(is!(CompletionDropped)), 1);
    assert_eq!(store.count(Operation::Release), 0);
    assert!(layer.drain_handle().drain(millis(1)).await.is_complete());
}

/// R19
#[tokio::test(start_paused = true)]
async fn beyond_4096_pending_completions_the_oldest_is_dropped_with_a_report() {
    let (store, events) = (
        Faulty::broken(Operation::Complete, Fault::FULL),
        Events::default(),
    );
    let handler = Handler::ok();
    let service = refusing(store.clone())
        .on_event(events.hook())
        .layer(handler.clone());
    for n in 0..4_098 {
        send(&service, post(&format!("e{n}"))).await;
        if n < 3 {
            sleep(millis(1)).await;
        }
    }
    let gone: Vec<_> = events
        .all()
        .into_iter()
        .filter_map(|(_, event)| match event {
            DedupEvent::CompletionDropped { key } => Some(key),
            _ => None,
        })
        .collect();
    assert_eq!(gone, ["e0", "e1"].map(|id| Key::new("t", id)));
    assert_eq!(handler.runs(), 4_098);
}

/// R19
#[tokio::test(start_paused = true)]
async fn an_event_whose_future_is_dropped_while_completing_is_never_released() {
    for policy in [OnDisconnect::Finish, OnDisconnect::Cancel] {
        let store = Faulty::broken(Operation::Complete, Fault::Hang);
        let layer = refusing(store.clone()).on_disconnect(policy);
        let service = layer.layer(Handler::ok());
        let answer = send_later(&service, post("e1"));
        store.called(Operation::Complete, 1).await;
        answer.abort();
        sleep(secs(60)).await;
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
        store.heal();
        assert!(layer.drain_handle().drain(secs(20)).await.is_complete());
        assert!(matches!(store.entry(&e1()).await, Some(Entry::Done { .. })));
        assert_eq!(store.count(Operation::Release), 0);
    }
}

/// R63 meets R19.
#[tokio::test(start_paused = true)]
async fn a_pending_completion_can_be_forgotten() {
    let store = Faulty::broken(Operation::Complete, Fault::FULL);
    let layer = refusing(store.clone());
    let handler = Handler::ok();
    let service = layer.layer(handler.clone());
    send(&service, post("e1")).await;
    assert!(layer.dedup().forget(&e1(), true).await.unwrap());
    store.heal();
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(handler.runs(), 2);
}
