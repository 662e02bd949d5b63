//! In the shadow the layer decides and counts, and the handler answers all the same.

use std::{
    convert::Infallible,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    future::{Either, select},
    stream,
};
use http::{HeaderMap, Method, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{
    AfterWait, BodyChanged, DedupEvent, Delivery, Duplicate, Entry, InFlight, Key, LeaseStore,
    MissingId, NoId, Operation, Outcome, Refusal, RequestBody, StoreErrorKind, StoreFailure,
    Unprotected, WebhookDedupLayer,
};

use http_support::{
    Answer, Events, Handler, Run, by_id, e1, millis, post, post_body, secs, send, send_later,
};
use stores::{Fault, Faulty, MemoryStore, cached};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

const LIMIT: usize = 64;

fn shadow<St: LeaseStore>(store: St) -> WebhookDedupLayer<St> {
    by_id(store).lease(secs(3600)).max_body(LIMIT).shadow()
}

/// What would have become of the request.
#[track_caller]
fn would(answer: &Answer) -> Outcome {
    match answer.outcome() {
        Outcome::Shadow(would) => *would,
        other => panic!("not in the shadow: {other:?}"),
    }
}

/// What was reported in place of what would have been.
fn reported(events: &Events) -> Vec<(Option<Key>, &'static str)> {
    let shadow = |(_, event)| match event {
        DedupEvent::Shadow { key, outcome } => Some((key, outcome.as_str())),
        _ => None,
    };
    events.all().into_iter().filter_map(shadow).collect()
}

#[tokio::test(start_paused = true)]
async fn every_duplicate_reaches_the_handler_and_is_counted() {
    for duplicate in [
        Duplicate::Acknowledge,
        Duplicate::Reply(Response::new("[accepted]".into())),
        Duplicate::Replay { max_body: 1024 },
    ] {
        let (handler, events) = (Handler::statuses([201, 202, 500]), Events::default());
        let layer = shadow(MemoryStore::new())
            .duplicate(duplicate)
            .on_event(events.hook());
        let service = layer.layer(handler.clone());
        for (status, outcome) in [
            (201, "shadow-run"),
            (202, "shadow-duplicate"),
            (500, "shadow-duplicate"),
        ] {
            let answer = send(&service, post("e1")).await;
            assert_eq!(answer.brief(), (status, outcome));
            assert_eq!(answer.body, "from the handler");
            let run = handler.runs().to_string();
            assert_eq!(answer.header("x-handler"), Some(&*run));
            if let Outcome::Duplicate { record, .. } = would(&answer) {
                // The run that was recorded is the first.
                assert_eq!(record.status(), Some(201));
            }
        }
        let duplicate = (Some(e1()), "duplicate");
        assert_eq!(reported(&events), [duplicate.clone(), duplicate]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_run_is_released_as_without_the_shadow() {
    let store = Faulty::new();
    let service = shadow(store.clone()).layer(Handler::statuses([503, 200]));
    for (status, attempt) in [(503, 1), (200, 2)] {
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (status, "shadow-run"));
        assert!(matches!(would(&answer), Outcome::Run { attempt: it } if it == attempt));
    }
    let operations: Vec<_> = store.calls().iter().map(|call| call.operation).collect();
    assert_eq!(
        operations,
        [
            Operation::Acquire,
            Operation::Release,
            Operation::Acquire,
            Operation::Complete
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn duplicates_of_a_running_event_run_beside_it() {
    let wait = InFlight::Wait {
        max: secs(60),
        then: AfterWait::RetryLater,
    };
    for (in_flight, outcome) in [
        (InFlight::Acknowledge, "standby"),
        (InFlight::RetryLater, "in-flight"),
        (wait, "in-flight"),
    ] {
        let events = Events::default();
        let protected = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = protected.clone();
        let handler = Handler::new(move |run: Run| {
            let delivery: Delivery = run.delivery();
            seen.lock().unwrap().push(delivery.is_protected());
            async move {
                sleep(if run.n == 1 { secs(30) } else { secs(1) }).await;
                200
            }
        });
        let layer = shadow(MemoryStore::new())
            .in_flight(in_flight)
            .on_event(events.hook());
        let service = layer.layer(handler.clone());
        let first = send_later(&service, post("e1"));
        handler.began(1).await;
        let sent = Instant::now();
        let answer = send(&service, post("e1")).await;
        assert_eq!(answer.brief(), (200, &*format!("shadow-{outcome}")));
        assert_eq!(answer.header("x-handler"), Some("2"));
        assert_eq!(sent.elapsed(), secs(1), "nobody waits");
        assert_eq!(first.await.unwrap().brief(), (200, "shadow-run"));
        assert_eq!(reported(&events), [(Some(e1()), outcome)]);
        assert_eq!(*protected.lock().unwrap(), [true, false]);
        // Nobody stands by.
        assert!(layer.drain_handle().drain(secs(1)).await.is_complete());
        sleep(secs(3600)).await;
        assert_eq!(handler.runs(), 2);
    }
}

// R6, R16, R40
#[tokio::test(start_paused = true)]
async fn requests_without_an_id_reach_the_handler_under_each_policy() {
    for (policy, outcome, runs_once) in [
        (MissingId::Refuse, "shadow-refused", false),
        (MissingId::Forward, "shadow-unprotected", false),
        (MissingId::UseBodyHash, "shadow-run", true),
    ] {
        let (handler, events) = (Handler::ok(), Events::default());
        let layer = shadow(MemoryStore::new())
            .missing_id(policy)
            .on_event(events.hook());
        let service = layer.layer(handler.clone());
        let first = send(&service, post_body("{}")).await;
        assert_eq!(first.brief(), (200, outcome));
        match would(&first) {
            Outcome::Refused(Refusal::NoEventId(why))
            | Outcome::Unprotected(Unprotected::NoEventId(why)) => assert_eq!(why, NoId::Absent),
            other => assert!(matches!(other, Outcome::Run { attempt: 1 }), "{other:?}"),
        }
        let second = send(&service, post_body("{}")).await;
        let expected = if runs_once {
            "shadow-duplicate"
        } else {
            outcome
        };
        assert_eq!(second.brief(), (200, expected));
        assert_eq!(handler.runs(), 2);
        assert_eq!(reported(&events).len(), if runs_once { 1 } else { 2 });
    }
}

type AnyBody = UnsyncBoxBody<Bytes, io::Error>;

/// A body that takes so long before each frame.
fn slow(pause: Duration, frames: Vec<io::Result<Frame<Bytes>>>) -> AnyBody {
    let frames = stream::unfold(frames.into_iter(), move |mut frames| async move {
        if !pause.is_zero() {
            sleep(pause).await;
        }
        Some((frames.next()?, frames))
    });
    UnsyncBoxBody::new(StreamBody::new(frames))
}

fn data(text: &'static str) -> io::Result<Frame<Bytes>> {
    Ok(Frame::data(text.into()))
}

fn trailers() -> io::Result<Frame<Bytes>> {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-trailer", "last".parse().unwrap());
    Ok(Frame::trailers(trailers))
}

/// Sends this body; with the answer comes what the handler got, and whether it was whole at once.
async fn echoed(body: AnyBody, declared: Option<usize>) -> (Answer, bool) {
    let buffered = Arc::new(AtomicBool::new(false));
    let at_once = buffered.clone();
    let echo = service_fn(move |request: Request<RequestBody<AnyBody>>| {
        let body = request.into_body();
        at_once.store(body.bytes().is_some(), Ordering::SeqCst);
        let hint = body.size_hint();
        async move {
            let body = match body.collect().await {
                Ok(body) => body,
                Err(error) => return Ok(Response::new(Full::<Bytes>::from(error.to_string()))),
            };
            let trailers = body.trailers().cloned();
            let body = body.to_bytes();
            assert!(hint.lower() <= body.len() as u64);
            assert!(hint.upper().is_none_or(|upper| body.len() as u64 <= upper));
            let mut response = Response::new(Full::from(body));
            response.headers_mut().extend(trailers.unwrap_or_default());
            Ok::<_, Infallible>(response)
        }
    });
    let store = Faulty::new();
    let service = shadow(store.clone()).body_timeout(secs(10)).layer(echo);
    let mut request = Request::post("/hooks/x");
    if let Some(declared) = declared {
        request = request.header("content-length", declared);
    }
    let answer = send(&service, request.body(body).unwrap()).await;
    assert!(store.calls().is_empty(), "no event, no store call");
    (answer, buffered.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_too_long_goes_on_as_a_stream() {
    let long: &'static str = Box::leak("x".repeat(LIMIT).into());
    let cases: [(Vec<_>, Option<usize>); 5] = [
        (vec![data(long), data("y")], Some(LIMIT + 1)),
        (vec![data(long), data("y"), data("z")], None),
        (vec![data("a"), data("b"), data(long), data("c")], None),
        (vec![data("a"), data(long), trailers()], None),
        (
            vec![data(Box::leak("x".repeat(LIMIT + 1).into())), data("y")],
            None,
        ),
    ];
    for (frames, declared) in cases {
        let text = |frame: &io::Result<Frame<Bytes>>| {
            let data = frame.as_ref().unwrap().data_ref().cloned();
            String::from_utf8(data.unwrap_or_default().to_vec()).unwrap()
        };
        let expected: String = frames.iter().map(text).collect();
        let has_trailers = frames.last().unwrap().as_ref().unwrap().is_trailers();
        let (answer, buffered) = echoed(slow(Duration::ZERO, frames), declared).await;
        assert_eq!(answer.brief(), (200, "shadow-refused"));
        assert_eq!((answer.body, buffered), (expected, false));
        assert_eq!(
            answer.headers.contains_key("x-trailer"),
            has_trailers,
            "its trailers come with it"
        );
        let Outcome::Shadow(would) = answer.extensions.get::<Outcome>().unwrap() else {
            unreachable!()
        };
        let Outcome::Refused(Refusal::BodyTooLarge { limit: LIMIT }) = **would else {
            panic!("{would:?}");
        };
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_goes_on_as_a_stream() {
    let frames = vec![data("a"), data("b"), data("c"), data("d"), trailers()];
    let (answer, buffered) = echoed(slow(secs(4), frames), None).await;
    assert_eq!(answer.brief(), (200, "shadow-refused"));
    assert!(matches!(
        would(&answer),
        Outcome::Refused(Refusal::BodyTimedOut)
    ));
    assert_eq!(answer.header("x-trailer"), Some("last"));
    assert_eq!((&*answer.body, buffered), ("abcd", false));
    // From the first moment on.
    let (answer, _) = echoed(slow(secs(40), vec![data("a")]), None).await;
    assert_eq!(
        (answer.brief(), &*answer.body),
        ((200, "shadow-refused"), "a")
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_is_never_taken_for_a_whole_one() {
    let broken = || Err(io::Error::other("it broke off"));
    // There is no request to forward.
    let (answer, _) = echoed(slow(Duration::ZERO, vec![data("a"), broken()]), None).await;
    assert_eq!(answer.brief(), (400, "refused"));
    // What breaks off later does so for the handler.
    let long: &'static str = Box::leak("x".repeat(LIMIT + 1).into());
    let (answer, _) = echoed(slow(Duration::ZERO, vec![data(long), broken()]), None).await;
    assert_eq!(
        (answer.brief(), &*answer.body),
        ((200, "shadow-refused"), "it broke off")
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_changes_no_answer() {
    let down = StoreErrorKind::Unreachable;
    for operation in [Operation::Acquire, Operation::Complete, Operation::Release] {
        for fault in [
            Fault::Before(down),
            Fault::After(down),
            Fault::Hang,
            Fault::HangAfter,
            Fault::Panic,
        ] {
            for policy in [StoreFailure::Refuse, StoreFailure::Forward] {
                let store = Faulty::broken(operation, fault);
                let (handler, events) = (Handler::statuses([200, 500, 202]), Events::default());
                let layer = shadow(store).store_failure(policy).on_event(events.hook());
                let service = layer.layer(handler);
                for (n, status) in [200, 500, 202].into_iter().enumerate() {
                    let sent = Instant::now();
                    let answer = send(&service, post("e1")).await;
                    assert_eq!(answer.status, status);
                    assert_eq!(answer.body, "from the handler");
                    assert!(sent.elapsed() <= millis(600), "two calls at most");
                    // What a cache remembers needs no store.
                    let asked = n == 0 || !cached();
                    if matches!(operation, Operation::Acquire) && asked {
                        let expected = match policy {
                            StoreFailure::Refuse => "shadow-refused",
                            _ => "shadow-unprotected",
                        };
                        assert_eq!(answer.brief().1, expected);
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_take_as_long_as_without_the_layer() {
    let handler = Handler::first_then(secs(3600), 200, 200);
    let layer = shadow(MemoryStore::new()).run_limit(secs(60));
    let answer = send(&layer.layer(handler), post("e1")).await;
    assert_eq!(answer.brief(), (200, "shadow-run"));
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_hangs_up_ends_its_handler_as_without_the_layer() {
    struct Tell(Arc<AtomicBool>);
    impl Drop for Tell {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    let dropped = Arc::new(AtomicBool::new(false));
    let told = dropped.clone();
    let handler = Handler::new(move |run: Run| {
        let tell = (run.n == 1).then(|| Tell(told.clone()));
        async move {
            if tell.is_some() {
                std::future::pending::<()>().await;
            }
            200
        }
    });
    let store = Faulty::new();
    let service = shadow(store.clone()).layer(handler.clone());
    {
        let answer = pin!(send(&service, post("e1")));
        let began = pin!(handler.began(1));
        let Either::Right(_) = select(answer, began).await else {
            panic!("it was answered");
        };
    }
    assert!(dropped.load(Ordering::SeqCst));
    store.called(Operation::Release, 1).await;
    sleep(millis(1)).await;
    assert_eq!(
        send(&service, post("e1")).await.brief(),
        (200, "shadow-run")
    );
}

#[tokio::test(start_paused = true)]
async fn no_event_is_given_up() {
    let (store, events) = (Faulty::new(), Events::default());
    let layer = shadow(store.clone())
        .give_up_after(2)
        .on_event(events.hook());
    let service = layer.layer(Handler::statuses([500, 500, 503, 200]));
    for (status, outcome) in [
        (500, "shadow-run"),
        (500, "shadow-gave-up"),
        (503, "shadow-gave-up"),
        (200, "shadow-run"),
    ] {
        assert_eq!(send(&service, post("e1")).await.brief(), (status, outcome));
    }
    let gave_up = (Some(e1()), "gave-up");
    assert_eq!(reported(&events), [gave_up.clone(), gave_up]);
    assert_eq!(events.count(|it| matches!(it, DedupEvent::GaveUp(_))), 0);
    let Some(Entry::Done { record, .. }) = store.entry(&e1()).await else {
        panic!("not done");
    };
    assert!(!record.is_given_up());
}

// R24
#[tokio::test(start_paused = true)]
async fn another_body_is_told_of_and_not_refused() {
    for (choice, outcome) in [
        (BodyChanged::Duplicate, "shadow-duplicate"),
        (BodyChanged::Refuse, "shadow-refused"),
    ] {
        let service = shadow(MemoryStore::new())
            .body_changed(choice)
            .layer(Handler::ok());
        send(&service, post("e1")).await;
        let answer = send(&service, post_body(r#"{"id":"e1","n":2}"#)).await;
        assert_eq!(answer.brief(), (200, outcome));
        assert_eq!(answer.header("x-handler"), Some("2"));
        assert!(matches!(
            would(&answer),
            Outcome::Duplicate {
                body_changed: true,
                ..
            } | Outcome::Refused(Refusal::BodyChanged { .. })
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_handler_comes_out() {
    let fails = service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Err::<Response<Full<Bytes>>, _>(io::Error::other("mine"))
    });
    let service = shadow(MemoryStore::new()).give_up_after(1).layer(fails);
    for request in [post("e1"), post("e1"), post_body("{}")] {
        let error = service.clone().oneshot(request).await.unwrap_err();
        assert_eq!(error.to_string(), "mine");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_layer_does_not_apply_to_is_no_business_of_the_shadow() {
    let store = Faulty::new();
    let service = shadow(store.clone()).layer(Handler::ok());
    let mut request = post("e1");
    *request.method_mut() = Method::GET;
    let answer = send(&service, request).await;
    assert_eq!(answer.brief(), (200, ""));
    assert!(answer.extensions.get::<Outcome>().is_none());
    assert!(store.calls().is_empty());
}

// R40
#[tokio::test(start_paused = true)]
async fn what_passes_by_does_so_in_the_shadow() {
    let store = Faulty::new();
    let layer = shadow(store.clone()).bypass(|_, body| body.is_empty());
    let answer = send(&layer.layer(Handler::ok()), post_body("")).await;
    assert_eq!(answer.brief(), (200, ""));
    assert!(answer.extensions.get::<Outcome>().is_none());
    assert!(store.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_was_completed_in_the_shadow_is_known_without_it() {
    let store = MemoryStore::new();
    let handler = Handler::ok();
    let service = shadow(store.clone()).layer(handler.clone());
    assert_eq!(
        send(&service, post("e1")).await.brief(),
        (200, "shadow-run")
    );
    let live = by_id(store).layer(handler.clone());
    assert_eq!(send(&live, post("e1")).await.brief(), (200, "duplicate"));
    assert_eq!(send(&live, post("e2")).await.brief(), (200, "run"));
    assert_eq!(handler.runs(), 2);
}
