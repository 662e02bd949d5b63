//! The playground, by HTTP.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use http::{Method, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tower_webhook_dedup::providers;

use crate::{
    fixtures::{Fixture, fixtures},
    process::{Server, example},
    support::{RedisServer, until},
    web::{Answer, Web},
};

const DEMO: &str = "/webhooks/demo";

async fn playground(flags: &[&str]) -> Server {
    let mut playground = example("playground");
    playground.args(["--listen", "127.0.0.1:0"]).args(flags);
    Server::start(&mut playground).await
}

impl Server {
    async fn deliver(&self, body: &str) -> Answer {
        self.web.post(DEMO, body).await
    }

    /// What `/runs` says of this event: how many were started, how many completed.
    async fn runs(&self, id: &str) -> (u64, u64) {
        let runs = self.web.get("/runs").await.json();
        let count = |field: &str| runs[id][field].as_u64().unwrap_or_default();
        (count("started"), count("completed"))
    }

    /// Starts a delivery, and returns once the handler runs it.
    async fn begin(&self, id: &str, body: &str, headers: &[(&str, &str)]) -> Running {
        let before = self.runs(id).await.0;
        let (web, body) = (self.web.clone(), body.to_owned());
        let headers: Vec<_> = headers
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let running = tokio::spawn(async move {
            let headers = headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()));
            let headers: Vec<_> = headers.collect();
            web.send(Method::POST, DEMO, &body, &headers).await
        });
        until("the handler runs", async || self.runs(id).await.0 > before).await;
        running
    }
}

type Running = tokio::task::JoinHandle<Option<Answer>>;

#[tokio::test]
async fn a_repeat_is_acknowledged_and_does_not_run() {
    let server = playground(&[]).await;
    let body = r#"{"id":"evt_1"}"#;

    let first = server.deliver(body).await;
    assert_eq!((first.status, first.outcome()), (StatusCode::OK, "run"));

    let repeat = server.deliver(body).await;
    assert_eq!(
        (repeat.status, repeat.outcome()),
        (StatusCode::OK, "duplicate")
    );
    assert_eq!(
        repeat.body,
        r#"{"status":"success","message":"Duplicate request ignored."}"#
    );

    let runs = server.web.get("/runs").await.json();
    let sha256 = hex::encode(Sha256::digest(body));
    let run = json!({ "started": 1, "completed": 1, "sha256": sha256 });
    assert_eq!(runs, json!({ "evt_1": run }));
    assert_eq!(server.web.get("/healthz").await.status, StatusCode::OK);
}

#[tokio::test]
async fn runs_tells_of_the_latest_events_only_so_that_a_soak_does_not_fill_the_memory() {
    let server = playground(&["--keep-runs", "2"]).await;
    for id in ["evt_a", "evt_b", "evt_a", "evt_c", "evt_d"] {
        let body = json!({ "id": id, "status": "paid" }).to_string();
        server.deliver(&body).await;
    }
    let runs = server.web.get("/runs").await.json();
    let ids: Vec<_> = runs.as_object().unwrap().keys().collect();
    assert_eq!(ids, ["evt_c", "evt_d"]);
}

#[tokio::test]
async fn stats_tells_how_many_tasks_there_are() {
    let server = playground(&[]).await;
    let tasks = async || server.web.get("/stats").await.json()["tasks"].as_u64();
    assert!(tasks().await < Some(20));

    // Each run holds a connection, which is a task.
    let slow = [("x-demo-sleep-ms", "60000")];
    let mut runs = Vec::new();
    for id in (0..20).map(|n| format!("evt_{n}")) {
        let body = json!({ "id": id }).to_string();
        runs.push(server.begin(&id, &body, &slow).await);
    }
    assert!(tasks().await >= Some(20));
    for run in runs {
        run.abort();
    }
}

#[tokio::test]
async fn a_failed_first_attempt_runs_again() {
    let server = playground(&[]).await;
    let body = r#"{"id":"evt_2"}"#;
    let fail = [("x-demo-status", "500")];

    let first = server.web.post_with(DEMO, body, &fail).await;
    assert_eq!(first.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(server.runs("evt_2").await, (1, 0));

    let repeat = server.deliver(body).await;
    assert_eq!((repeat.status, repeat.outcome()), (StatusCode::OK, "run"));
    assert_eq!(server.runs("evt_2").await, (2, 1));
}

#[tokio::test]
async fn a_panicked_first_attempt_runs_again() {
    let server = playground(&[]).await;
    let body = r#"{"id":"evt_3"}"#;
    let panic = [("x-demo-panic", "1")];

    let first = server.web.send(Method::POST, DEMO, body, &panic).await;
    assert!(first.is_none(), "the connection is closed");
    // The lease is released in the background.
    until("the event is completed", async || {
        server.deliver(body).await;
        server.runs("evt_3").await == (2, 1)
    })
    .await;
}

#[tokio::test]
async fn an_order_that_makes_no_sense_is_refused_with_a_sentence() {
    let server = playground(&[]).await;
    for (name, value) in [
        ("x-demo-status", "teapot"),
        ("x-demo-status", "101"),
        ("x-demo-status", "999"),
        ("x-demo-sleep-ms", "1s"),
        ("x-demo-sleep-ms", "-1"),
        ("x-demo-panic", "yes"),
    ] {
        let order = [(name, value)];
        let answer = server
            .web
            .post_with(DEMO, r#"{"id":"evt_o"}"#, &order)
            .await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        let sentence = format!("{name} must be ");
        assert!(answer.body.starts_with(&sentence), "{}", answer.body);
        assert!(answer.body.contains(value), "{}", answer.body);
    }
    assert_eq!(server.runs("evt_o").await, (0, 0));
    assert_eq!(server.deliver(r#"{"id":"evt_o"}"#).await.outcome(), "run");
}

#[tokio::test]
async fn a_repeat_acknowledged_while_the_first_fails_is_completed_without_another_request() {
    let server = playground(&[]).await;
    let body = r#"{"id":"evt_4"}"#;
    let slow = [("x-demo-sleep-ms", "1500"), ("x-demo-status", "500")];
    let first = server.begin("evt_4", body, &slow).await;

    let repeat = server.deliver(body).await;
    assert_eq!(
        (repeat.status, repeat.outcome()),
        (StatusCode::OK, "standby")
    );
    assert!(!first.is_finished(), "the repeat is answered at once");
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.status, StatusCode::INTERNAL_SERVER_ERROR);

    until("the standby completes the event", async || {
        server.runs("evt_4").await == (2, 1)
    })
    .await;
}

#[tokio::test]
async fn in_flight_duplicates_wait_or_are_sent_away_as_the_flag_says() {
    let slow = [("x-demo-sleep-ms", "1000")];
    let body = r#"{"id":"evt_5"}"#;

    let server = playground(&["--in-flight", "retry-later"]).await;
    let first = server.begin("evt_5", body, &slow).await;
    let repeat = server.deliver(body).await;
    assert_eq!(repeat.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(repeat.outcome(), "in-flight");
    assert!(repeat.headers.contains_key("retry-after"));
    first.await.unwrap().unwrap();

    let server = playground(&["--in-flight", "wait:20s"]).await;
    let first = server.begin("evt_5", body, &slow).await;
    let repeat = server.deliver(body).await;
    assert_eq!(
        (repeat.status, repeat.outcome()),
        (StatusCode::OK, "duplicate")
    );
    first.await.unwrap().unwrap();

    let server = playground(&["--in-flight", "wait:50ms"]).await;
    let first = server.begin("evt_5", body, &slow).await;
    let repeat = server.deliver(body).await;
    assert_eq!(repeat.status, StatusCode::SERVICE_UNAVAILABLE);
    first.await.unwrap().unwrap();
}

#[tokio::test]
async fn requests_without_an_id_are_refused_forwarded_or_told_by_their_body() {
    let server = playground(&[]).await;
    let answer = server.deliver("no id").await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(server.runs("-").await, (0, 0));

    let server = playground(&["--missing-id", "forward"]).await;
    for _ in 0..2 {
        let answer = server.deliver("no id").await;
        assert_eq!(answer.outcome(), "unprotected");
    }
    assert_eq!(server.runs("-").await, (2, 2));

    let server = playground(&["--missing-id", "use-body-hash"]).await;
    for outcome in ["run", "duplicate"] {
        let answer = server.deliver("no id").await;
        assert_eq!(answer.outcome(), outcome);
    }
    assert_eq!(server.runs("-").await, (1, 1));
}

#[tokio::test]
async fn the_id_can_come_from_a_header_and_alone_make_the_key() {
    let server = playground(&["--header", "x-event-id", "--key-by", "id"]).await;
    let header = [("x-event-id", "evt_6")];
    for (body, outcome) in [("one", "run"), ("another", "duplicate")] {
        let answer = server.web.post_with(DEMO, body, &header).await;
        assert_eq!(answer.outcome(), outcome);
    }
    assert_eq!(server.runs("evt_6").await, (1, 1));
}

#[tokio::test]
async fn each_preset_takes_what_its_sender_sends() {
    let all = fixtures();
    for preset in providers::all() {
        let name = preset.name().unwrap();
        let server = playground(&["--provider", name]).await;
        let is_event =
            |it: &&Fixture| !it.is_handshake() && it.presets.iter().any(|preset| preset == name);
        let event = all.iter().find(is_event).unwrap();
        let headers = event.headers.iter().filter(|(name, _)| *name != "host");
        let headers: Vec<_> = headers
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        let body = str::from_utf8(&event.body).unwrap();
        for outcome in ["run", "duplicate"] {
            let answer = server.web.post_with(DEMO, body, &headers).await;
            assert!(answer.status.is_success(), "{name}: {}", answer.status);
            assert_eq!(answer.outcome(), outcome, "{name}");
        }
    }
}

#[tokio::test]
async fn flags_override_a_preset() {
    let server = playground(&["--provider", "stripe", "--key-by", "id-and-body"]).await;
    for body in [
        r#"{"id":"evt_1"}"#,
        r#"{"id":"evt_1","pending_webhooks":0}"#,
    ] {
        assert_eq!(server.deliver(body).await.outcome(), "run");
    }
}

#[tokio::test]
async fn an_unknown_provider_is_answered_with_those_that_are_known() {
    let output = example("playground").args(["--provider", "stipe"]).output();
    let output = output.await.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    for preset in providers::all() {
        assert!(error.contains(preset.name().unwrap()), "{error}");
    }
}

#[tokio::test]
async fn the_limit_of_the_layer_is_the_one_that_answers() {
    let server = playground(&["--max-body", "4000000"]).await;
    let long = format!(r#"{{"id":"evt_7","text":"{}"}}"#, "x".repeat(3_000_000));
    assert_eq!(server.deliver(&long).await.outcome(), "run");

    // So short that it is all there when the answer comes: a server that answers without reading the
    // rest resets the connection, and a client still sending may see that before it sees the answer.
    let server = playground(&["--max-body", "400"]).await;
    let long = format!(r#"{{"id":"evt_7","text":"{}"}}"#, "x".repeat(400));
    let answer = server.deliver(&long).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(answer.outcome(), "refused");
}

#[tokio::test]
async fn any_method_and_content_type_reach_the_handler() {
    let server = playground(&[]).await;
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let answer = server.web.post_with(DEMO, r#"{"id":"evt_8"}"#, &form).await;
    assert_eq!(answer.outcome(), "run");
    let answer = server.web.send(Method::PUT, DEMO, "", &[]).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(server.runs("-").await, (1, 1));
}

#[tokio::test]
async fn sigterm_drains_and_ends_with_success() {
    let mut playground = example("playground");
    playground
        .args(["--listen", "127.0.0.1:0"])
        .env("RUST_LOG", "tower_webhook_dedup=debug")
        .stderr(Stdio::piped());
    let server = Server::start(&mut playground).await;
    let body = r#"{"id":"evt_9"}"#;
    let slow = [("x-demo-sleep-ms", "500"), ("x-demo-status", "500")];
    let first = server.begin("evt_9", body, &slow).await;
    assert_eq!(server.deliver(body).await.outcome(), "standby");

    server.signal("-TERM").await;
    until("it no longer listens", async || {
        // A client of its own: an open connection may stay open for a while.
        let web = Web::new(server.web.address());
        web.send(Method::GET, "/healthz", "", &[]).await.is_none()
    })
    .await;
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.status, StatusCode::INTERNAL_SERVER_ERROR);

    let output = server.process.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(0));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("event completed"), "{log}");
}

#[tokio::test]
async fn a_frozen_redis_is_refused_in_time_and_forgotten_when_it_thaws() {
    let redis = RedisServer::start();
    let server = playground(&["--redis", &redis.url()]).await;
    assert_eq!(server.deliver(r#"{"id":"evt_a"}"#).await.outcome(), "run");

    redis.freeze();
    let start = Instant::now();
    let refused = server.deliver(r#"{"id":"evt_b"}"#).await;
    let took = start.elapsed();
    redis.thaw();
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers.contains_key("retry-after"));
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(server.runs("evt_b").await, (0, 0));

    // Whatever was on its way when it froze is released.
    until("the refused event runs", async || {
        server.deliver(r#"{"id":"evt_b"}"#).await.outcome() == "run"
    })
    .await;
    let repeat = server.deliver(r#"{"id":"evt_a"}"#).await;
    assert_eq!(repeat.outcome(), "duplicate");
}

#[tokio::test]
async fn runs_of_nothing_are_an_empty_object() {
    let server = playground(&[]).await;
    assert_eq!(
        server.web.get("/runs").await.json(),
        Value::Object(Default::default())
    );
}
