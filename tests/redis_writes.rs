//! How many system calls that write a delivery over Redis takes.
#![cfg(target_os = "linux")]

mod support;

use std::{convert::Infallible, fs, io::Write, os::unix::net::UnixStream, time::Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::{runtime::Builder, task::yield_now};
use tower::{Layer, Service, service_fn};
use tower_webhook_dedup::{EventId, RedisStore, RequestBody, WebhookDedupLayer};

use self::support::RedisServer;

/// `write` and the like, by all threads of this process.
fn writes() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap();
    let writes = io.lines().find_map(|line| line.strip_prefix("syscw: "));
    writes.unwrap().parse().unwrap()
}

/// How many of them a command is. The system does not count `send`, which the standard library may
/// use for sockets.
fn writes_of_a_command() -> f64 {
    const COMMANDS: u32 = 100;

    let (mut ours, _theirs) = UnixStream::pair().unwrap();
    let before = writes();
    for _ in 0..COMMANDS {
        ours.write_all(b"PING\r\n").unwrap();
    }
    (writes() - before) as f64 / f64::from(COMMANDS)
}

/// One for each command. None is left for the runtime's timers, which it would wake itself up for.
#[test]
fn a_delivery_writes_its_commands_and_nothing_else() {
    const DELIVERIES: u64 = 500;

    let server = RedisServer::start();
    let store = RedisStore::open(&server.url()).unwrap();
    let layer = WebhookDedupLayer::new(store, EventId::pointer("/id"));
    let mut service = layer.layer(service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut deliver = |id| {
        let body = Bytes::from(format!(r#"{{"id":"evt_{id}"}}"#));
        let request = Request::post("/webhooks").body(Full::new(body)).unwrap();
        runtime.block_on(async {
            service.call(request).await.unwrap();
            // The runtime looks at its timers once more, and finds none of a call.
            yield_now().await;
        });
    };
    // Connects, and loads the script.
    deliver(0);
    let (before, began) = (writes(), Instant::now());
    for id in 1..=DELIVERIES {
        deliver(id);
    }
    let each = (writes() - before) as f64 / DELIVERIES as f64;
    println!("system calls that write, first delivery, one at a time: {each:.2}");
    // Two commands. The timer that is before all others is set anew every 50 ms, perhaps after one of
    // a call: on a busy machine the deliveries take long enough for that to count.
    let turns = began.elapsed().as_secs_f64() / 0.05;
    let most = 2.0 * writes_of_a_command() + 0.2 + 3.0 * turns / DELIVERIES as f64;
    assert!(each < most, "{each}, and at most {most}");
}
