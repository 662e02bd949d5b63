//! No run takes longer than its limit.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::time::sleep;
use tower::Layer;
use tower_webhook_dedup::Entry;

use crate::{
    http_support::{Events, Handler, Run, by_id, e1, is, poll_until, post, secs, send, send_later},
    stores::Faulty,
};

struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_never_returns_is_dropped_at_the_run_limit() {
    let (store, events) = (Faulty::new(), Events::default());
    let dropped = Arc::new(AtomicBool::new(false));
    let handler = Handler::new({
        let dropped = dropped.clone();
        move |run: Run| {
            let flag = Flag(dropped.clone());
            async move {
                let _flag = flag;
                if run.n == 1 {
                    pending::<()>().await;
                }
                200
            }
        }
    });
    let service = by_id(store.clone())
        .run_limit(secs(30))
        .on_event(events.hook())
        .layer(handler.clone());
    let begun = tokio::time::Instant::now();
    let first = send_later(&service, post("e1"));
    sleep(secs(29)).await;
    assert!(!dropped.load(Ordering::SeqCst));
    assert!(matches!(
        store.entry(&e1()).await,
        Some(Entry::Running { .. })
    ));
    let first = first.await.unwrap();
    assert_eq!(first.brief(), (504, "run"));
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(events.count(is!(RunLimit)), 1);
    let Some(Entry::Failed { status: None, .. }) = store.entry(&e1()).await else {
        panic!("not released");
    };
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

/// Also without a sender.
#[tokio::test(start_paused = true)]
async fn a_detached_run_ends_at_the_run_limit() {
    let store = Faulty::new();
    let handler = Handler::new(|_| pending());
    let layer = by_id(store.clone()).run_limit(secs(30));
    let service = layer.layer(handler.clone());
    poll_until(send(&service, post("e1")), handler.began(1)).await;
    assert!(layer.drain_handle().drain(secs(31)).await.is_complete());
    assert!(matches!(
        store.entry(&e1()).await,
        Some(Entry::Failed { .. })
    ));
}
