//! How many instructions a delivery takes is known and does not creep up.
//!
//! Counted by callgrind, where it is installed: `apt-get install valgrind`. It does without the
//! processor's own SHA-256, so that bodies are short here; and a debug build takes many times what a
//! release build does (`cargo test --release --test instructions`).

use std::{convert::Infallible, env, process::Command};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::runtime::Builder;
use tower::{Layer, Service, service_fn};
use tower_webhook_dedup::{Cached, EventId, MemoryStore, RequestBody, WebhookDedupLayer};

/// Set for the process that is counted: what it delivers, and how often.
const DELIVERIES: &str = "DELIVERIES_TO_COUNT";

/// What was measured, in a debug build and in a release build. It may not grow by a third, which
/// leaves room for other versions of the compiler and of what is used.
const FIRST: [u64; 2] = [193_000, 30_000];
const DUPLICATE: [u64; 2] = [145_000, 21_000];
const REMEMBERED: [u64; 2] = [143_000, 20_700];
const RECOGNISED: [u64; 2] = [84_000, 12_300];

/// Delivers what it is told by the environment. Not a test of its own.
#[test]
#[ignore = "run by the others"]
fn deliver() {
    let Ok(deliveries) = env::var(DELIVERIES) else {
        return;
    };
    let (what, count) = deliveries.split_once(' ').unwrap();
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let handler = service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let id = EventId::pointer("/id");
    let mut stored = WebhookDedupLayer::new(MemoryStore::new(), id.clone()).layer(handler);
    let store = Cached::new(MemoryStore::new());
    let layer = WebhookDedupLayer::new(store, id);
    let mut remembered = layer.layer(handler);
    let mut recognised = layer.recent_bodies(8).layer(handler);
    for n in 0..count.parse().unwrap() {
        let n = if what == "first" { n } else { 0 };
        let body = format!(r#"{{"type":"charge.succeeded","id":"evt_{n:08}","paid":true}}"#);
        let request = Request::post("/hook").header("content-type", "application/json");
        let request = request.body(Full::<Bytes>::from(body)).unwrap();
        runtime
            .block_on(async {
                match what {
                    "remembered" => remembered.call(request).await,
                    "recognised" => recognised.call(request).await,
                    _ => stored.call(request).await,
                }
            })
            .unwrap();
    }
}

/// The instructions of a process that does so many deliveries; `None` without callgrind.
fn count(what: &str, deliveries: u64) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe().unwrap())
        .args(["--exact", "deliver", "--ignored", "--test-threads=1"])
        .env(DELIVERIES, format!("{what} {deliveries}"))
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    let collected = report.split("Collected :").nth(1)?;
    collected.split_whitespace().next()?.parse().ok()
}

fn check(what: &str, known: [u64; 2]) {
    let (few, many) = (100, 500);
    let (Some(least), Some(most)) = (count(what, few), count(what, many)) else {
        println!(
            "instructions of a {what} delivery: not checked, since valgrind does not run here"
        );
        return;
    };
    let each = most.saturating_sub(least) / (many - few);
    println!("instructions of a {what} delivery: {each}");
    let known = known[usize::from(!cfg!(debug_assertions))];
    assert!(each <= known + known / 3, "{what}: {each}, not {known}");
}

#[test]
fn a_first_delivery_takes_as_many_instructions_as_before() {
    check("first", FIRST);
}

#[test]
fn a_duplicate_takes_as_many_instructions_as_before() {
    check("duplicate", DUPLICATE);
}

#[test]
fn a_remembered_duplicate_takes_as_many_instructions_as_before() {
    check("remembered", REMEMBERED);
}

/// Without the hash of its body.
#[test]
fn a_recognised_duplicate_takes_as_many_instructions_as_before() {
    check("recognised", RECOGNISED);
}
