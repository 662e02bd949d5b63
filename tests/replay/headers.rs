//! Which headers of an answer are kept.

use http::{HeaderMap, HeaderValue};
use tower::Layer;

use crate::{
    answering, assert_plain, assert_replayed,
    http_support::{post, send},
    record, replaying,
    stores::MemoryStore,
    twiml,
};

#[tokio::test(start_paused = true)]
async fn credentials_and_headers_of_the_connection_are_never_kept() {
    const NEVER: [&str; 22] = [
        "authentication-control",
        "authentication-info",
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "date",
        "keep-alive",
        "optional-www-authenticate",
        "proxy-authenticate",
        "proxy-authentication-info",
        "proxy-authorization",
        "proxy-connection",
        "set-cookie",
        "set-cookie2",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "www-authenticate",
        "x-hop",
        "x-other-hop",
    ];
    let layer = replaying(MemoryStore::new());
    let service = layer.layer(answering(|_| {
        let mut response = twiml(1);
        let headers = response.headers_mut();
        for name in NEVER {
            headers.append(name, HeaderValue::from_static("secret"));
            headers.append(name, HeaderValue::from_static("secret, too"));
        }
        headers.insert("connection", HeaderValue::from_static("close, X-Hop ,,"));
        headers.append("connection", HeaderValue::from_static("x-other-hop"));
        let mut token = HeaderValue::from_static("secret");
        token.set_sensitive(true);
        headers.append("x-token", token);
        headers.append("x-kept", HeaderValue::from_static("one"));
        headers.append("x-kept", HeaderValue::from_static("two"));
        response
    }));
    let first = send(&service, post("e1")).await;
    for name in NEVER {
        assert!(first.headers.contains_key(name), "the sender gets {name}");
    }
    let answer = send(&service, post("e1")).await;
    assert_replayed(&answer);
    let kept: Vec<_> = answer.headers.get_all("x-kept").iter().collect();
    assert_eq!(kept, ["one", "two"]);
    let mut expected = HeaderMap::new();
    for (name, value) in [("content-type", "text/xml"), ("x-run", "1")] {
        expected.insert(name, HeaderValue::from_static(value));
    }
    for value in ["one", "two"] {
        expected.append("x-kept", HeaderValue::from_static(value));
    }
    let record = record(&layer).await;
    assert_eq!(record.answer().unwrap().headers(), &expected);
}

#[tokio::test(start_paused = true)]
async fn an_answer_with_too_many_headers_is_not_kept() {
    for (length, kept) in [(8 * 1024 - 64, true), (8 * 1024, false)] {
        let value = HeaderValue::from_str(&"x".repeat(length)).unwrap();
        let layer = replaying(MemoryStore::new());
        let service = layer.layer(answering(move |_| {
            let mut response = twiml(1);
            response.headers_mut().insert("x-long", value.clone());
            response
        }));
        assert_eq!(send(&service, post("e1")).await.status, 201);
        assert_eq!(record(&layer).await.answer().is_some(), kept, "{length}");
        let answer = send(&service, post("e1")).await;
        if kept {
            assert_replayed(&answer);
        } else {
            assert_plain(&answer);
        }
    }
}
