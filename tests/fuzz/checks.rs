//! What must hold for any bytes at all: one function for each fuzz target.
//!
//! The fuzzer calls them with what it makes up, `tests/fuzz.rs` with the corpus of cases found.

use std::{
    convert::Infallible,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{
    Delivery, Entry, EventId, JsonPointer, Key, KeyBy, MemoryStore, MissingId, RequestBody,
    WebhookDedupLayer,
};

type Hook = Request<Full<Bytes>>;

/// A line with a pointer, and a body: the id is what `serde_json::Value` finds there, if anything.
pub(crate) fn pointer(data: &[u8]) {
    let Some((pointer, body)) = split(data) else {
        return;
    };
    let Ok(pointer) = std::str::from_utf8(pointer) else {
        return;
    };
    if pointer.parse::<JsonPointer>().is_err() {
        return;
    }
    let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer(pointer));
    let request = post(HeaderMap::new(), "/", body);
    let Some(id) = send(&layer, request).id else {
        return;
    };
    assert!(!id.trim().is_empty(), "a blank id");
    let text = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    // What is not on the path is not looked into as far as a `Value` does.
    if let Ok(value) = serde_json::from_slice::<Value>(text) {
        match value.pointer(pointer) {
            Some(Value::String(text)) => assert_eq!(*text, id),
            // A `Value` rounds what does not fit.
            Some(Value::Number(number)) => {
                let read = id.parse::<serde_json::Number>().expect("a number");
                assert_eq!(read, *number);
            }
            other => panic!("an id {id:?} where there is {other:?}"),
        }
    }
}

/// A namespace and an id, a line each: five parts, no byte that could run them together, and another
/// id is another key.
pub(crate) fn key(data: &[u8]) {
    let Some((namespace, rest)) = split(data) else {
        return;
    };
    let (id, other) = split(rest).unwrap_or((rest, b""));
    let [namespace, id, other] = [namespace, id, other].map(String::from_utf8_lossy);
    let key = Key::new(&namespace, &id);
    let text = key.as_str();
    let parts = text.split(':').collect::<Vec<_>>();
    assert_eq!(parts.len(), 5, "{text}");
    assert!(
        text.starts_with("webhook:lock:") && text.ends_with(":*"),
        "{text}"
    );
    assert!(parts[2].len() <= 200 && parts[3].len() <= 200, "{text}");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-%=".contains(&byte);
    assert!(
        parts[2].bytes().chain(parts[3].bytes()).all(plain),
        "{text}"
    );
    assert_eq!(Key::new(&namespace, &other) == key, other == id);
    assert_eq!(Key::new(&other, &id) == key, other == namespace);
}

/// The text of an entry: what can be read is written back to what reads as the same.
pub(crate) fn entry(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(entry) = text.parse::<Entry>() else {
        return;
    };
    let written = entry.to_string();
    assert_eq!(
        written.parse::<Entry>().as_ref(),
        Ok(&entry),
        "{text:?} became {written:?}"
    );
    assert!(
        written.bytes().all(|byte| (b' '..0x7f).contains(&byte)),
        "{written:?}"
    );
}

/// A JSON body with an id: written in another way it is the same event, and with one more value it is
/// another.
pub(crate) fn canonical(data: &[u8]) {
    let Ok(mut value) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    // A `Value` does not keep the text of a number.
    if !is_exact(&value) {
        return;
    }
    let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::header("x-id"))
        .key_by(KeyBy::id_and_body_except(["/left out"]));
    let mut headers = HeaderMap::new();
    headers.insert("x-id", HeaderValue::from_static("evt_1"));
    let runs = |body: &[u8]| send(&layer, post(headers.clone(), "/", body)).runs;
    if runs(data) == 0 {
        // A key occurs twice, or it is nested too deep.
        return;
    }
    let pretty = serde_json::to_vec_pretty(&value).expect("a value can be written");
    assert_eq!(runs(&pretty), 0, "another spelling ran");
    if let Value::Object(object) = &mut value {
        object.remove("left out");
        let without = serde_json::to_vec(&object).expect("a value can be written");
        assert_eq!(runs(&without), 0, "what is left out counted");
        object.insert("added \u{fffd}".to_owned(), Value::Null);
    } else {
        value = Value::Array(vec![value]);
    }
    let changed = serde_json::to_vec(&value).expect("a value can be written");
    let is_new = serde_json::from_slice::<Value>(data).expect("read before") != value;
    assert_eq!(
        runs(&changed),
        usize::from(is_new),
        "a change did not count"
    );
}

fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_u64(),
        Value::Array(values) => values.iter().all(is_exact),
        Value::Object(object) => object.values().all(is_exact),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

/// Lines of headers, an empty line, a body, to layers of several kinds: each is answered, the handler
/// gets the same bytes, and the second time it does not run if the first run was protected.
pub(crate) fn request(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    let mut headers = HeaderMap::new();
    let mut body = rest;
    while let Some((line, rest)) = split(body) {
        body = rest;
        if line.is_empty() {
            break;
        }
        let mut halves = line.splitn(2, |byte| *byte == b':');
        let (name, value) = (
            halves.next().unwrap_or_default(),
            halves.next().unwrap_or_default(),
        );
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name),
            HeaderValue::from_bytes(value.trim_ascii()),
        ) {
            headers.append(name, value);
        }
    }
    let id = match kind % 6 {
        0 => EventId::pointer("/id"),
        1 => EventId::header("x-id"),
        2 => EventId::form("id"),
        3 => EventId::query("id"),
        4 => EventId::header("x-id").or(EventId::pointer("/a/0/id")),
        _ => EventId::pointer("/source").and(EventId::form("id").optional()),
    };
    let layer = WebhookDedupLayer::new(MemoryStore::new(), id)
        .key_by(match kind >> 6 {
            0 => KeyBy::IdAndBody,
            1 => KeyBy::Id,
            2 => KeyBy::id_and_fields(["/a/0", "/type"]),
            _ => KeyBy::id_and_body_except(["/a/0/n", "/attempt"]),
        })
        .missing_id(match kind / 6 % 3 {
            0 => MissingId::Refuse,
            1 => MissingId::Forward,
            _ => MissingId::UseBodyHash,
        });
    let path = headers
        .get("x-path")
        .and_then(|path| path.to_str().ok())
        .filter(|path| path.starts_with('/') && path.parse::<http::Uri>().is_ok())
        .unwrap_or("/hook?id=1")
        .to_owned();
    let first = send(&layer, post(headers.clone(), &path, body));
    let second = send(&layer, post(headers, &path, body));
    if first.id.is_some() {
        assert_eq!((first.runs, second.runs), (1, 0));
        assert_eq!(
            (first.status, second.status),
            (StatusCode::OK, StatusCode::OK)
        );
    } else {
        assert_eq!(first.status, second.status);
        assert_eq!(first.runs, second.runs);
        assert_eq!(first.runs == 0, first.status == StatusCode::BAD_REQUEST);
    }
}

/// What became of one request.
struct Seen {
    status: StatusCode,
    runs: usize,
    id: Option<String>,
}

fn post(headers: HeaderMap, path: &str, body: &[u8]) -> Hook {
    let mut request = Request::post(path)
        .body(Full::new(Bytes::copy_from_slice(body)))
        .expect("the path was checked");
    *request.headers_mut() = headers;
    request
}

fn send(layer: &WebhookDedupLayer<MemoryStore>, request: Hook) -> Seen {
    let runs = Arc::new(AtomicUsize::new(0));
    let sent = request.body().clone();
    let counted = runs.clone();
    let handler = service_fn(move |request: Request<RequestBody<Full<Bytes>>>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let sent = sent.clone();
        async move {
            let (parts, body) = request.into_parts();
            let got = body
                .collect()
                .await
                .expect("a body that does not fail")
                .to_bytes();
            let sent = sent
                .collect()
                .await
                .expect("a body that does not fail")
                .to_bytes();
            assert_eq!(got, sent, "the handler got other bytes");
            let mut response = Response::new(Full::new(Bytes::new()));
            if let Some(delivery) = parts.extensions.get::<Delivery>() {
                response.extensions_mut().insert(delivery.clone());
            }
            Ok::<_, Infallible>(response)
        }
    });
    let response = ready(layer.layer(handler).oneshot(request)).expect("cannot fail");
    let id = response.extensions().get::<Delivery>();
    Seen {
        status: response.status(),
        runs: runs.load(Ordering::Relaxed),
        id: id.map(|delivery| delivery.event_id().to_owned()),
    }
}

/// Nothing here waits for anything, but tokio's clock is asked for.
fn ready<F: Future>(future: F) -> F::Output {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime needs nothing");
    }
    RUNTIME.with(|runtime| {
        let _context = runtime.enter();
        let mut future = pin!(future);
        for _ in 0..100 {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
        }
        panic!("a request that is all there was not answered at once");
    })
}

fn split(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = data.iter().position(|byte| *byte == b'\n')?;
    Some((&data[..end], &data[end + 1..]))
}
