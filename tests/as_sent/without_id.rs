//! Requests without an id are refused, forwarded, or told by their bodies.

use bytes::Bytes;
use http::{HeaderValue, Method, Request};
use http_body_util::Full;
use tower::Layer;
use tower_webhook_dedup::{MissingId, Outcome, Refusal};

use crate::{
    http_support::{Events, Handler, Run, c0, is, post_body, send},
    stores::Faulty,
};

/// R40: a challenge comes without an id.
#[tokio::test(start_paused = true)]
async fn a_verification_challenge_reaches_the_handler_each_time() {
    let handler = Handler::ok();
    let service = c0(Faulty::new())
        .missing_id(MissingId::Forward)
        .layer(handler.clone());
    for _ in 0..2 {
        let challenge = post_body(r#"{"type":"url_verification","challenge":"c"}"#);
        let answer = send(&service, challenge).await;
        assert_eq!(answer.body, "from the handler");
        assert_eq!(answer.brief(), (200, "unprotected"));
    }
    assert_eq!(handler.runs(), 2);
}

const WITHOUT_ID: [&str; 6] = [
    r#"{"n":1}"#,
    r#"{"id":null}"#,
    r#"{"id":""}"#,
    r#"{"id":"  "}"#,
    r#"{"id":{}}"#,
    r#"{"id":[]}"#,
];

/// R6
#[tokio::test(start_paused = true)]
async fn requests_without_an_id_are_refused_by_default_and_share_no_key() {
    let (store, events, handler) = (Faulty::new(), Events::default(), Handler::ok());
    let service = c0(store.clone())
        .on_event(events.hook())
        .layer(handler.clone());
    for body in WITHOUT_ID {
        let answer = send(&service, post_body(body)).await;
        assert_eq!(answer.brief(), (400, "refused"));
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json")
        );
        assert!(answer.body.contains(r#""status":400"#), "{}", answer.body);
        let Outcome::Refused(Refusal::NoEventId(_)) = answer.outcome() else {
            panic!("{:?}", answer.outcome());
        };
    }
    assert_eq!(handler.runs(), 0);
    assert!(store.calls().is_empty());
    assert_eq!(events.count(is!(NoEventId)), 6);
}

/// R6, R29: an array has no `/id` either.
#[tokio::test(start_paused = true)]
async fn requests_without_an_id_are_all_forwarded_where_that_is_asked_for() {
    let (store, events, handler) = (Faulty::new(), Events::default(), Handler::ok());
    let service = c0(store.clone())
        .missing_id(MissingId::Forward)
        .on_event(events.hook())
        .layer(handler.clone());
    let batches = [r#"[{"id":"1"},{"id":"2"}]"#, r#"[{"id":"2"},{"id":"3"}]"#];
    for body in WITHOUT_ID.into_iter().chain(batches) {
        let answer = send(&service, post_body(body)).await;
        assert_eq!(answer.brief(), (200, "unprotected"));
    }
    assert_eq!(handler.bodies()[..6], WITHOUT_ID);
    assert_eq!(handler.runs(), 8);
    assert!(store.calls().is_empty());
    assert_eq!(events.count(is!(NoEventId)), 8);
}

/// R16
#[tokio::test(start_paused = true)]
async fn equal_bodies_without_an_id_run_each_time_unless_the_body_may_stand_for_it() {
    for (policy, runs) in [(MissingId::Forward, 6), (MissingId::UseBodyHash, 2)] {
        let handler = Handler::ok();
        let service = c0(Faulty::new()).missing_id(policy).layer(handler.clone());
        let mut last = None;
        for body in ["", r#"{"event":"ping"}"#] {
            for _ in 0..3 {
                last = Some(send(&service, post_body(body)).await);
            }
        }
        assert_eq!(handler.runs(), runs);
        let last = last.unwrap();
        if policy == MissingId::UseBodyHash {
            assert_eq!(last.brief(), (200, "duplicate"));
            assert_eq!(
                last.body,
                r#"{"status":"success","message":"Duplicate request ignored: its body was seen before."}"#
            );
            let Outcome::Duplicate { by_body: true, .. } = last.outcome() else {
                panic!("{:?}", last.outcome());
            };
        }
    }
}

/// R16: method, path, query and content type count, too.
#[tokio::test(start_paused = true)]
async fn a_body_stands_for_an_id_only_within_the_same_request_line_and_type() {
    let handler = Handler::new(|run: Run| async move {
        assert!(run.delivery().is_by_body());
        200
    });
    let service = c0(Faulty::new())
        .missing_id(MissingId::UseBodyHash)
        .applies_to(|_| true)
        .layer(handler.clone());
    let changes: [fn(&mut Request<Full<Bytes>>); 5] = [
        |_| {},
        |request| *request.method_mut() = Method::PUT,
        |request| *request.uri_mut() = "/hooks/y".parse().unwrap(),
        |request| *request.uri_mut() = "/hooks/x?a".parse().unwrap(),
        |request| {
            let text = HeaderValue::from_static("text/plain");
            request.headers_mut().insert("content-type", text);
        },
    ];
    for change in changes {
        for outcome in ["run", "duplicate"] {
            let mut request = post_body("ping");
            change(&mut request);
            assert_eq!(send(&service, request).await.brief(), (200, outcome));
        }
    }
    assert_eq!(handler.runs(), 5);
}
