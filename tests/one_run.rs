//! Promise 1: one run at a time per event, and none after it completed.

use std::{collections::HashMap, convert::Infallible};

use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::{
    task::JoinSet,
    time::{advance, sleep},
};
use tower::{Layer, service_fn};
use tower_webhook_dedup::{
    Begun, Dedup, DedupEvent, Duplicate, Entry, EventId, InFlight, Key, Ran, Record, Release,
    RequestBody, RunError, WebhookDedupLayer,
};

use http_support::{
    Events, Handler, by_id, c0, millis, post, post_body, refusing, secs, send, send_later,
};
use stores::{Call, Fault, Faulty, MemoryStore, remembered};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

fn runs_by_body(handler: &Handler) -> HashMap<String, usize> {
    let mut runs = HashMap::new();
    for body in handler.bodies() {
        *runs.entry(body).or_default() += 1;
    }
    runs
}

/// R11, where every store call takes a moment, so that all of them overlap.
#[tokio::test(start_paused = true)]
async fn of_fifty_racing_deliveries_one_runs() {
    let store = Faulty::with(|call: &Call| Fault::Delay(millis(1 + call.n as u64 % 7)));
    let handler = Handler::new(|_| async {
        sleep(millis(300)).await;
        200
    });
    let layers = [c0(store.clone()), c0(store.clone())];
    let services = layers.clone().map(|layer| layer.layer(handler.clone()));
    let mut answers = JoinSet::new();
    for n in 0..5_000 {
        let service = services[n % 2].clone();
        answers.spawn(async move { send(&service, post(&format!("e{}", n % 100))).await });
    }
    let answers = answers.join_all().await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    let ran = answers.iter().filter(|answer| answer.brief().1 == "run");
    assert_eq!(ran.count(), 100);
    for layer in layers {
        assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    }
    let runs = runs_by_body(&handler);
    assert_eq!(runs.len(), 100);
    assert!(runs.values().all(|&runs| runs == 1), "{runs:?}");
}

/// R11 on threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn deliveries_racing_on_threads_run_once() {
    let store = MemoryStore::new();
    let handler = Handler::new(|_| async {
        tokio::task::yield_now().await;
        200
    });
    let layer = || c0(store.clone()).in_flight(InFlight::RetryLater);
    let services = [layer(), layer()].map(|layer| layer.layer(handler.clone()));
    let mut answers = JoinSet::new();
    for n in 0..5_000 {
        let service = services[n % 2].clone();
        answers.spawn(async move { send(&service, post(&format!("e{}", n / 50))).await });
    }
    let answers = answers.join_all().await;
    let briefly = |brief| answers.iter().filter(|it| it.brief() == brief).count();
    assert_eq!(briefly((200, "run")), 100);
    let others = briefly((200, "duplicate")) + briefly((503, "in-flight"));
    assert_eq!(others, 4_900);
    assert!(runs_by_body(&handler).values().all(|&runs| runs == 1));
}

/// R8: what comes at 1.9, 2.1 and 4.5 seconds while the first runs for five on a lease of two.
async fn duplicates_during_a_long_run(policy: InFlight, others: usize) {
    let layer = c0(MemoryStore::new()).in_flight(policy);
    let handler = Handler::new(|_| async {
        sleep(secs(5)).await;
        200
    });
    let service = layer.layer(handler.clone());
    let first = send_later(&service, post("e1"));
    for n in 0..others {
        send_later(&service, post(&format!("other{n}")));
    }
    handler.began(1 + others).await;
    let brief = match policy {
        InFlight::RetryLater => (503, "in-flight"),
        _ => (200, "standby"),
    };
    for pause in [1_900, 200, 2_400] {
        sleep(millis(pause)).await;
        assert_eq!(send(&service, post("e1")).await.brief(), brief);
    }
    assert_eq!(first.await.unwrap().brief(), (200, "run"));
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert!(layer.drain_handle().drain(secs(60)).await.is_complete());
    assert_eq!(handler.runs(), 1 + others);
}

/// R8
#[tokio::test(start_paused = true)]
async fn a_run_longer_than_its_lease_is_the_only_one() {
    duplicates_during_a_long_run(InFlight::RetryLater, 0).await;
    duplicates_during_a_long_run(InFlight::Acknowledge, 0).await;
}

/// R8
#[tokio::test(start_paused = true)]
async fn a_long_run_beside_two_hundred_others_is_the_only_one() {
    duplicates_during_a_long_run(InFlight::RetryLater, 200).await;
    duplicates_during_a_long_run(InFlight::Acknowledge, 200).await;
}

/// R32
#[tokio::test(start_paused = true)]
async fn a_completed_event_runs_again_only_after_its_retention() {
    let handler = Handler::ok();
    let service = c0(MemoryStore::new())
        .retention(secs(4))
        .layer(handler.clone());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    advance(millis(3_900)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(handler.runs(), 1);
    advance(millis(200)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(handler.runs(), 2);
}

/// The answer is made in the maps of the request.
#[tokio::test(start_paused = true)]
async fn nothing_of_a_duplicate_is_in_its_answer() {
    let service = c0(MemoryStore::new()).layer(Handler::ok());
    send(&service, post("e1")).await;
    let mut request = post("e1");
    for n in 0..100 {
        let name = format!("x-secret-{}", n % 50);
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().append(name, n.into());
    }
    request.extensions_mut().insert("secret");
    let answer = send(&service, request).await;
    assert_eq!(answer.brief(), (200, "duplicate"));
    let names: Vec<_> = answer.headers.keys().map(|it| it.as_str()).collect();
    assert_eq!(names, ["content-type", "webhook-dedup"]);
    assert_eq!(answer.headers.len(), 2);
    assert_eq!(answer.extensions.len(), 1, "the outcome");
    assert_eq!(answer.extensions.get::<&str>(), None);
}

/// R32: senders retry for up to 76 hours.
#[tokio::test(start_paused = true)]
async fn by_default_a_completed_event_is_remembered_for_four_days() {
    let handler = Handler::ok();
    let service =
        WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id")).layer(handler.clone());
    send(&service, post("e1")).await;
    advance(secs(4 * 24 * 3600 - 1)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    advance(secs(2) + remembered()).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
}

/// A record must not be gone before the lease that it replaced would have been.
#[tokio::test(start_paused = true)]
async fn a_retention_below_the_lease_is_as_long_as_the_lease() {
    let service = c0(MemoryStore::new())
        .retention(millis(1))
        .layer(Handler::ok());
    send(&service, post("e1")).await;
    advance(millis(1_900)).await;
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
}

/// R17
#[tokio::test(start_paused = true)]
async fn two_namespaces_on_one_store_run_the_same_id_once_each() {
    let (store, handler) = (MemoryStore::new(), Handler::ok());
    for namespace in ["a", "b"] {
        let service = c0(store.clone())
            .namespace(namespace)
            .layer(handler.clone());
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
        assert_eq!(send(&service, post("e1")).await.brief(), (200, "duplicate"));
    }
    assert_eq!(handler.runs(), 2);
}

/// R17: the path is the namespace where none is set.
#[tokio::test(start_paused = true)]
async fn two_routes_under_one_layer_run_the_same_id_once_each() {
    let handler = Handler::ok();
    let service =
        WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id")).layer(handler.clone());
    for path in ["/hooks/a", "/hooks/b"] {
        let to = || {
            let mut request = post("e1");
            *request.uri_mut() = path.parse().unwrap();
            request
        };
        assert_eq!(send(&service, to()).await.brief(), (200, "run"));
        assert_eq!(send(&service, to()).await.brief(), (200, "duplicate"));
    }
    assert_eq!(handler.runs(), 2);
}

/// R17
#[tokio::test(start_paused = true)]
async fn tenants_told_by_a_closure_run_the_same_id_once_each() {
    let handler = Handler::ok();
    let service = c0(MemoryStore::new())
        .namespace_with(|parts| {
            let tenant = parts.uri.path().rsplit('/').next();
            tenant.unwrap_or_default().to_owned()
        })
        .layer(handler.clone());
    for tenant in ["/hooks/ada", "/hooks/bob", "/other/ada"] {
        let mut request = post("e1");
        *request.uri_mut() = tenant.parse().unwrap();
        send(&service, request).await;
    }
    assert_eq!(handler.runs(), 2);
}

/// R17: two layers of one namespace by mistake swallow each other's events, and say so at start-up.
#[tokio::test(start_paused = true)]
async fn each_layer_reports_its_namespace() {
    let events = Events::default();
    let (store, handler) = (MemoryStore::new(), Handler::ok());
    let layer = || c0(store.clone()).on_event(events.hook());
    // Frameworks put a layer around its service once for each connection: that is no news.
    let services = [layer(), layer()].map(|layer| {
        _ = layer.layer(handler.clone());
        layer.layer(handler.clone())
    });
    let named_t = |event: &DedupEvent| matches!(event, DedupEvent::Configured { namespace } if namespace.as_deref() == Some("t"));
    assert_eq!(events.count(named_t), 2);
    send(&services[0], post("e1")).await;
    assert_eq!(
        send(&services[1], post("e1")).await.brief(),
        (200, "duplicate")
    );
}

/// R24
#[tokio::test(start_paused = true)]
async fn by_id_alone_a_retry_with_another_body_is_a_duplicate() {
    let handler = Handler::ok();
    let retry = |n| post_body(&format!(r#"{{"id":"e1","attempt":{n}}}"#));

    let service = by_id(MemoryStore::new()).layer(handler.clone());
    assert_eq!(send(&service, retry(1)).await.brief(), (200, "run"));
    assert_eq!(send(&service, retry(2)).await.brief(), (200, "duplicate"));

    let service = c0(MemoryStore::new()).layer(handler.clone());
    assert_eq!(send(&service, retry(1)).await.brief(), (200, "run"));
    assert_eq!(send(&service, retry(2)).await.brief(), (200, "run"));
    assert_eq!(handler.runs(), 3);
}

/// R62
#[tokio::test(start_paused = true)]
async fn a_duplicate_is_answered_with_success_and_nothing_of_the_first_answer() {
    let service =
        c0(MemoryStore::new()).layer(service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
            let mut response = Response::new(Full::<Bytes>::from("secret"));
            *response.status_mut() = StatusCode::CREATED;
            for name in ["set-cookie", "x-inner", "location"] {
                let name = HeaderName::from_static(name);
                response.headers_mut().insert(name, "a".parse().unwrap());
            }
            Ok::<_, Infallible>(response)
        }));
    let first = send(&service, post("e1")).await;
    assert_eq!(first.brief(), (201, "run"));
    assert_eq!((first.headers.len(), first.body.as_str()), (4, "secret"));
    for accept in ["*/*", "text/html", "application/json"] {
        let mut request = post("e1");
        request
            .headers_mut()
            .insert("accept", accept.parse().unwrap());
        let answer = send(&service, request).await;
        assert_eq!(answer.brief(), (200, "duplicate"));
        assert_eq!(
            answer.body,
            r#"{"status":"success","message":"Duplicate request ignored."}"#
        );
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.headers.len(), 2, "{:?}", answer.headers);
    }
}

/// R62
#[tokio::test(start_paused = true)]
async fn a_duplicate_is_answered_as_the_user_says() {
    let mut reply = Response::new(Bytes::from_static(b"<ok/>"));
    *reply.status_mut() = StatusCode::ACCEPTED;
    reply.headers_mut().insert("x-reply", "1".parse().unwrap());
    let service = c0(MemoryStore::new())
        .duplicate(Duplicate::Reply(reply))
        .outcome_header(Some(HeaderName::from_static("x-outcome")))
        .layer(Handler::ok());
    send(&service, post("e1")).await;
    let answer = send(&service, post("e1")).await;
    assert_eq!((answer.status, answer.body.as_str()), (202, "<ok/>"));
    assert_eq!(answer.header("x-reply"), Some("1"));
    assert_eq!(answer.header("x-outcome"), Some("duplicate"));
}

/// R63
#[tokio::test(start_paused = true)]
async fn a_forgotten_event_runs_again() {
    let layer = by_id(MemoryStore::new());
    let handler = Handler::ok();
    let service = layer.layer(handler.clone());
    let key = Key::new("t", "e1");
    send(&service, post("e1")).await;
    assert!(layer.dedup().forget(&key, false).await.unwrap());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    assert_eq!(handler.runs(), 2);
    assert!(
        !layer
            .dedup()
            .forget(&Key::new("t", "e2"), true)
            .await
            .unwrap()
    );
}

/// R63
#[tokio::test(start_paused = true)]
async fn a_running_event_is_forgotten_only_by_force() {
    let layer = refusing(MemoryStore::new());
    let handler = Handler::new(|_| async {
        sleep(secs(1)).await;
        200
    });
    let service = layer.layer(handler.clone());
    let key = Key::new("t", "e1");
    let first = send_later(&service, post("e1"));
    handler.began(1).await;
    assert!(!layer.dedup().forget(&key, false).await.unwrap());
    assert_eq!(send(&service, post("e1")).await.brief(), (503, "in-flight"));
    assert!(layer.dedup().forget(&key, true).await.unwrap());
    assert_eq!(send(&service, post("e1")).await.brief(), (200, "run"));
    first.await.unwrap();
    assert_eq!(handler.runs(), 2);
}

/// R63: no header of a sender's makes a completed event run.
#[tokio::test(start_paused = true)]
async fn a_sender_cannot_ask_for_another_run() {
    let handler = Handler::ok();
    let service = c0(MemoryStore::new()).layer(handler.clone());
    send(&service, post("e1")).await;
    for (name, value) in [("cache-control", "no-cache"), ("webhook-dedup", "run")] {
        let mut request = post("e1");
        let name = HeaderName::from_static(name);
        request.headers_mut().insert(name, value.parse().unwrap());
        assert_eq!(send(&service, request).await.brief(), (200, "duplicate"));
    }
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_http_an_event_runs_once() {
    let dedup = Dedup::new(MemoryStore::new());
    let key = Key::new("queue", "e1");
    let work = || async {
        sleep(secs(100)).await;
        Ok::<_, Infallible>(7)
    };
    let running = tokio::spawn({
        let (dedup, key) = (dedup.clone(), key.clone());
        async move { dedup.run(&key, work).await }
    });
    sleep(secs(95)).await;
    let Ok(Ran::InFlight { retry_after }) = dedup.run(&key, work).await else {
        panic!("it ran beside another");
    };
    assert!(secs(1) <= retry_after && retry_after <= secs(5));
    assert!(matches!(running.await.unwrap(), Ok(Ran::Completed(7))));
    assert!(matches!(dedup.run(&key, work).await, Ok(Ran::Done(_))));
}

#[tokio::test(start_paused = true)]
async fn without_http_work_that_failed_runs_again() {
    let dedup = Dedup::new(MemoryStore::new());
    let key = Key::new("queue", "e1");
    let failed = dedup.run(&key, || async { Err::<(), _>("no") }).await;
    assert!(matches!(failed, Err(RunError::Work("no"))));
    let endless = || std::future::pending::<Result<(), Infallible>>();
    let overran = dedup.clone().run_limit(secs(9)).run(&key, endless).await;
    assert!(matches!(overran, Err(RunError::RunLimit)));
    let attempts = match dedup.inspect(&key).await.unwrap() {
        Some(Entry::Failed { attempts, .. }) => attempts,
        other => panic!("{other:?}"),
    };
    assert_eq!(attempts, 2);
    let ran = dedup.run(&key, || async { Ok::<_, Infallible>(1) }).await;
    assert!(matches!(ran, Ok(Ran::Completed(1))));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_dropped_is_released() {
    let dedup = Dedup::new(MemoryStore::new());
    let key = Key::new("queue", "e1");
    let Begun::Acquired(lease) = dedup.begin(&key).await.unwrap() else {
        panic!("not acquired");
    };
    sleep(secs(100)).await;
    assert!(!lease.is_lost());
    assert!(matches!(
        dedup.begin(&key).await.unwrap(),
        Begun::InFlight { .. }
    ));
    drop(lease);
    sleep(millis(1)).await;
    let Begun::Acquired(lease) = dedup.begin(&key).await.unwrap() else {
        panic!("not released");
    };
    assert_eq!(lease.attempt(), 1);
    lease.release(Release::Failed { status: Some(500) }).await;
    let Begun::Acquired(lease) = dedup.begin(&key).await.unwrap() else {
        panic!("not released");
    };
    assert_eq!(lease.attempt(), 2);
    assert!(lease.complete(Record::new(Some(200), None)).await);
    let Begun::Done(record) = dedup.begin(&key).await.unwrap() else {
        panic!("not done");
    };
    assert_eq!(record.status(), Some(200));
}
