//! The axum server.

use std::time::Duration;

use http::StatusCode;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tower_webhook_dedup::{LeaseStore, MemoryStore};

use crate::{
    process::{Server, example as built},
    web::Web,
};

#[expect(dead_code, reason = "the test starts the server in its own way")]
#[path = "../../examples/axum.rs"]
mod example;

#[tokio::test]
async fn the_layer_is_around_one_of_the_two_routes() {
    let (app, _drain) = example::app(MemoryStore::new().boxed());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let web = Web::new(listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, app).into_future());

    for outcome in ["run", "duplicate"] {
        let answer = web.post("/webhook", r#"{"id":"evt_1"}"#).await;
        assert_eq!((answer.status, answer.outcome()), (StatusCode::OK, outcome));
    }
    for _ in 0..2 {
        let answer = web.post("/bare", r#"{"id":"evt_1"}"#).await;
        assert_eq!((answer.status, answer.outcome()), (StatusCode::OK, ""));
    }
}

#[tokio::test]
async fn a_sender_that_stalls_does_not_keep_it_from_draining() {
    let mut server = Server::start(built("axum").env("LISTEN", "127.0.0.1:0")).await;
    let mut stalled = TcpStream::connect(server.web.address()).await.unwrap();
    stalled
        .write_all(b"POST /webhook HTTP/1.1\r\nhost: a")
        .await
        .unwrap();
    // So the server has read the other by now.
    assert_eq!(
        server
            .web
            .post("/webhook", r#"{"id":"evt_1"}"#)
            .await
            .outcome(),
        "run"
    );

    server.signal("-TERM").await;
    let ended = timeout(Duration::from_secs(60), server.process.wait()).await;
    assert_eq!(ended.expect("it waits for ever").unwrap().code(), Some(0));
}
