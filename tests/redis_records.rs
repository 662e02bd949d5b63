//! What a record in Redis holds beside the outcome: the answer for duplicates, or that the event was
//! given up.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook_dedup::{Duplicate, Entry, EventId, RedisStore, RequestBody, WebhookDedupLayer};

use support::{Front, RedisServer, keys, store_at};

mod support;

fn layer(server: &RedisServer) -> WebhookDedupLayer<Front<RedisStore>> {
    let store = store_at(&server.url());
    WebhookDedupLayer::new(Front::of(store), EventId::pointer("/id"))
        .namespace("t")
        .store_timeout(std::time::Duration::from_secs(5))
}

/// Delivers `e1` to a process of its own, whose handler answers so. Status, outcome and body.
async fn send(
    layer: WebhookDedupLayer<Front<RedisStore>>,
    status: u16,
    body: &Bytes,
) -> (u16, String, Bytes) {
    let body = body.clone();
    let handler = service_fn(move |_: Request<RequestBody<Full<Bytes>>>| {
        let response = Response::builder()
            .status(status)
            .header("content-type", "text/xml; charset=utf-8")
            .header("set-cookie", "session=secret")
            .body(Full::<Bytes>::from(body.clone()));
        std::future::ready(Ok::<_, Infallible>(response.unwrap()))
    });
    let request = Request::post("/hooks/x").body(Full::from(r#"{"id":"e1"}"#));
    let answer = layer
        .layer(handler)
        .oneshot(request.unwrap())
        .await
        .unwrap();
    let outcome = answer.headers()["webhook-dedup"]
        .to_str()
        .unwrap()
        .to_owned();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, outcome, body)
}

fn value(server: &RedisServer) -> String {
    server.text(&["GET", &keys(server, "e1")[0]])
}

#[tokio::test]
async fn what_one_process_answered_another_gives_to_duplicates() {
    let any: Bytes = (0..=255).collect::<Vec<u8>>().into();
    for body in [Bytes::from("<Response>\n<Say>100%</Say></Response>"), any] {
        let server = RedisServer::start();
        let process = || layer(&server).duplicate(Duplicate::Replay { max_body: 1024 });
        let mut watch = server.watch();
        let first = send(process(), 201, &body).await;
        assert_eq!(first, (201, "run".to_owned(), body.clone()));
        let commands = watch.commands();
        let sent = commands
            .iter()
            .filter(|it| ["SET", "EVALSHA"].contains(&it.as_str()));
        assert_eq!(sent.count(), 2, "{commands:?}");
        let replayed = send(process(), 500, &Bytes::from("never made")).await;
        assert_eq!(replayed, (201, "duplicate".to_owned(), body.clone()));

        let value = value(&server);
        assert!(value.is_ascii() && !value.contains("secret"), "{value}");
        let Entry::Done { record, .. } = value.parse().unwrap() else {
            panic!("{value}");
        };
        assert_eq!(record.answer().unwrap().body(), &body);
        if body.is_ascii() {
            let readable = "body=<Response>%0A<Say>100%25</Say></Response>";
            assert!(value.ends_with(readable), "{value}");
        }
    }
}

#[tokio::test]
async fn failures_of_all_processes_end_an_event_together() {
    let server = RedisServer::start();
    let process = || layer(&server).give_up_after(3);
    let empty = Bytes::new();
    for _ in 0..2 {
        assert_eq!(send(process(), 500, &empty).await.1, "run");
        assert!(value(&server).starts_with("v1 failed "));
    }
    let (status, outcome, _) = send(process(), 503, &empty).await;
    assert_eq!((status, &*outcome), (200, "gave-up"));
    let value = value(&server);
    assert!(
        value.starts_with("v1 done ") && value.ends_with(" given-up"),
        "{value}"
    );
    let (status, outcome, _) = send(process(), 503, &empty).await;
    assert_eq!((status, &*outcome), (200, "duplicate"));
}
