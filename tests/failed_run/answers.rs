//! What the handler answers decides whether its event is done.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{Entry, Operation, RequestBody};

use crate::{
    Refused,
    http_support::{Handler, e1, post, secs, send, send_later},
    long_lease,
    stores::{Fault, Faulty, MemoryStore},
};

/// R3
#[tokio::test(start_paused = true)]
async fn an_event_is_done_only_after_its_handler_succeeded() {
    let store = Faulty::new();
    let handler = Handler::statuses([500, 200]);
    let service = long_lease(store.clone()).layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
    let Some(Entry::Failed {
        attempts, status, ..
    }) = store.entry(&e1()).await
    else {
        panic!("not failed");
    };
    assert_eq!((attempts, status), (1, Some(500)));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(handler.runs(), 2);
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(handler.runs(), 2);
}

/// R3: a process that dies while the handler runs leaves no record.
#[tokio::test(start_paused = true)]
async fn a_running_event_is_not_recorded_as_done() {
    let store = Faulty::new();
    let handler = Handler::new(|_| pending());
    let service = long_lease(store.clone()).layer(handler.clone());
    send_later(&service, post("e1"));
    handler.began(1).await;
    assert!(matches!(
        store.entry(&e1()).await,
        Some(Entry::Running { .. })
    ));
}

/// R15
#[tokio::test(start_paused = true)]
async fn only_2xx_completes_an_event() {
    for status in [301, 304, 400, 401, 404, 409, 422, 429, 500, 502, 503] {
        let handler = Handler::statuses([status, 200]);
        let service = long_lease(MemoryStore::new()).layer(handler.clone());
        assert_eq!(send(&service, post("e1")).await.brief(), (status, "run"));
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
        assert_eq!(handler.runs(), 2);
    }
    for status in [200, 201, 202, 204] {
        let service = long_lease(MemoryStore::new()).layer(Handler::statuses([status]));
        assert_eq!(send(&service, post("e1")).await.brief(), (status, "run"));
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    }
}

/// R15
#[tokio::test(start_paused = true)]
async fn which_answers_complete_an_event_is_the_users_choice() {
    let handler = Handler::statuses([200, 410]);
    let service = long_lease(MemoryStore::new())
        .completed_when(|parts| parts.status == 410)
        .layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (410, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_handler_comes_out_unchanged_and_releases_the_event() {
    let store = Faulty::new();
    let fails = Arc::new(AtomicBool::new(true));
    let inner = service_fn(move |_: Request<RequestBody<Full<Bytes>>>| {
        let fails = fails.swap(false, Ordering::SeqCst);
        async move {
            if fails {
                return Err(Refused("mine"));
            }
            Ok(Response::new(Full::<Bytes>::default()))
        }
    });
    let service = long_lease(store.clone()).layer(inner);
    let error = service.clone().oneshot(post("e1")).await.unwrap_err();
    assert_eq!(error, Refused("mine"));
    let Some(Entry::Failed { status: None, .. }) = store.entry(&e1()).await else {
        panic!("not failed");
    };
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_repeated_until_it_is_done() {
    let (store, handler) = (Faulty::new(), Handler::statuses([500, 200]));
    store.plan(|call| match call.operation {
        Operation::Release if call.n < 6 => Fault::UNREACHABLE,
        _ => Fault::None,
    });
    let service = long_lease(store.clone()).layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (500, "run"));
    sleep(secs(4)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}
