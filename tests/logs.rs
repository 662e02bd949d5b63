//! What the log tells, and what it keeps to itself. One test, since all logs of a process are one.

use std::{
    future::pending,
    io::{self, Write},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, header::AUTHORIZATION};
use http_body_util::Full;
use tokio::time::sleep;
use tower::{Layer, Service};
use tower_webhook_dedup::{BodyChanged, MemoryStore, OnDisconnect, Operation};
use tracing::{Level, info_span};

use http_support::{Handler, by_id, c0, poll_until, post_body, secs, send, send_later};
use stores::{Fault, Faulty};

#[path = "support/http.rs"]
mod http_support;
#[path = "support/stores.rs"]
mod stores;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// What was logged since this was last asked.
    fn take(&self) -> String {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        String::from_utf8(bytes).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A request that is full of secrets.
fn secret(id: &str) -> Request<Full<Bytes>> {
    let body = format!(r#"{{"id":"{id}","card":"s3cret-body"}}"#);
    Request::post("/hook?token=s3cret-query")
        .header(AUTHORIZATION, "s3cret-header")
        .body(Full::from(body))
        .unwrap()
}

const SPAN: &str = "request{number=17}";

/// Sends a request in a span of its own, and hangs up when the handler has begun once more.
async fn hang_up<S>(service: &S, handler: &Handler)
where
    S: Service<Request<Full<Bytes>>, Future: Send> + Clone,
{
    let runs = handler.runs();
    let span = info_span!("request", number = 17);
    let answer = span.in_scope(|| service.clone().call(secret("e3")));
    poll_until(answer, handler.began(runs + 1)).await;
}

#[tokio::test(start_paused = true)]
async fn bodies_are_logged_only_when_nobody_else_has_them_and_headers_never() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let lines = |log: &str, text: &str| log.lines().filter(|line| line.contains(text)).count();
    let broken = |operation| Faulty::broken(operation, Fault::UNREACHABLE);
    // One line has the text, and this level.
    let at = |level: &str, log: &str, text: &str| {
        let level = format!(" {level} ");
        let line = log.lines().find(|line| line.contains(text));
        line.is_some_and(|line| line.contains(&level) && lines(log, text) == 1)
    };

    // A first delivery, a duplicate, one without an id, and one that fails at first.
    let labels = Arc::new(Mutex::new(Vec::new()));
    let seen = labels.clone();
    let layer =
        c0(MemoryStore::new()).on_event(move |event| seen.lock().unwrap().push(event.as_str()));
    let service = layer.layer(Handler::statuses([200, 500, 200]));
    for id in ["e1", "e1", "", "e2", "e2"] {
        send(&service, secret(id)).await;
    }
    let told = log.take();
    assert_eq!(lines(&told, "event completed"), 2, "{told}");
    assert_eq!(lines(&told, "event: duplicate"), 1, "{told}");
    assert_eq!(lines(&told, "request refused"), 1, "{told}");
    assert!(at("INFO", &told, "event failed"), "{told}");
    assert!(at("INFO", &told, "no event id"), "{told}");
    let others = lines(&told, " DEBUG ") + 2;
    assert_eq!(lines(&told, ""), others, "all else is DEBUG: {told}");
    assert!(told.contains("webhook:lock:t:e1:"), "{told}");
    let e1 = ["configured", "acquired", "completed", "duplicate"];
    let none = ["no-event-id", "refused"];
    let e2 = ["acquired", "failed", "acquired", "completed"];
    assert_eq!(*labels.lock().unwrap(), [&e1[..], &none, &e2].concat());
    assert!(!told.contains("s3cret"), "{told}");

    // A sender that hangs up, whose request came in a span; first on a run that ends with it.
    let handler = Handler::new(|_| pending());
    let cancelling = c0(MemoryStore::new()).on_disconnect(OnDisconnect::Cancel);
    hang_up(&cancelling.layer(handler.clone()), &handler).await;
    let told = log.take();
    let cut_off = told.lines().find(|line| line.contains("run cut off"));
    assert!(cut_off.is_some_and(|line| line.contains(SPAN)), "{told}");
    assert!(at("WARN", &told, "run cut off"), "{told}");

    let layer = c0(MemoryStore::new()).run_limit(secs(3600));
    let service = layer.layer(handler.clone());
    hang_up(&service, &handler).await;
    // A duplicate of it.
    send_later(&service, secret("e3")).await.unwrap();
    let told = log.take();
    let hung_up = told.lines().find(|line| line.contains("sender hung up"));
    assert!(hung_up.is_some_and(|line| line.contains(SPAN)), "{told}");
    assert!(at("INFO", &told, "sender hung up"), "{told}");
    assert!(at("DEBUG", &told, "standing by"), "{told}");
    assert!(!told.contains("s3cret"), "{told}");

    // What it stood by for is lost in the end.
    let drained = layer.drain_handle().drain(secs(1)).await;
    assert_eq!(drained.lost().len(), 1);
    let told = log.take();
    assert!(at("ERROR", &told, "event lost"), "{told}");
    let lost = told.lines().find(|line| line.contains("event lost"));
    assert!(
        lost.is_some_and(|line| line.contains("s3cret-body") && line.contains("s3cret-query")),
        "{told}"
    );
    assert!(!told.contains("s3cret-header"), "{told}");

    // And one that is given up.
    let layer = c0(MemoryStore::new()).give_up_after(1);
    send(&layer.layer(Handler::statuses([500])), secret("e4")).await;
    let told = log.take();
    assert!(at("ERROR", &told, "given up"), "{told}");
    let given_up = told.lines().find(|line| line.contains("given up"));
    assert!(
        given_up.is_some_and(|line| line.contains("s3cret-body")),
        "{told}"
    );
    assert!(!told.contains("s3cret-header"), "{told}");

    // A run over its limit, and a store that fails.
    let endless = Handler::new(|_| pending());
    let layer = c0(MemoryStore::new()).run_limit(secs(3));
    send(&layer.layer(endless), secret("e5")).await;
    let service = c0(broken(Operation::Acquire)).layer(Handler::ok());
    send(&service, secret("e7")).await;
    let told = log.take();
    for text in ["run over its limit", "store call failed"] {
        assert!(at("WARN", &told, text), "{text}: {told}");
    }
    assert!(!told.contains("s3cret"), "{told}");

    // A lease that cannot be renewed, a completion that cannot be written, and never can.
    let slow = Handler::first_then(secs(5), 200, 200);
    send(&c0(broken(Operation::Renew)).layer(slow), secret("e9")).await;
    let told = log.take();
    assert!(at("WARN", &told, "lease lost"), "{told}");
    let service = c0(broken(Operation::Complete)).layer(Handler::ok());
    send(&service, secret("e10")).await;
    let told = log.take();
    assert!(at("WARN", &told, "completion not written yet"), "{told}");
    sleep(secs(700)).await;
    let told = log.take();
    assert!(at("ERROR", &told, "completion never written"), "{told}");
    assert!(!told.contains("s3cret"), "{told}");

    // Another body under the id of an event that is done.
    let service = by_id(MemoryStore::new())
        .body_changed(BodyChanged::Refuse)
        .layer(Handler::ok());
    send(&service, post_body(r#"{"id":"e11","n":1}"#)).await;
    send(&service, secret("e11")).await;
    let told = log.take();
    assert!(at("WARN", &told, "request refused"), "{told}");
    assert!(!told.contains("s3cret"), "{told}");

    // In the shadow, what would not have run.
    let service = c0(MemoryStore::new()).shadow().layer(Handler::ok());
    for _ in 0..2 {
        send(&service, secret("e8")).await;
    }
    let told = log.take();
    assert!(at("INFO", &told, "shadow: forwarded"), "{told}");
    assert_eq!(
        lines(&told, "key=\""),
        0,
        "as all other lines have it: {told}"
    );
    assert!(!told.contains("s3cret"), "{told}");
    send(&service, secret("")).await;
    let told = log.take();
    let line = told.lines().find(|line| line.contains("shadow: forwarded"));
    assert!(
        line.is_some_and(|line| line.contains("refusal=No event id")),
        "{told}"
    );
}
