//! The axum server.

use http::StatusCode;
use tokio::net::TcpListener;
use tower_webhook_dedup::{LeaseStore, MemoryStore};

use crate::web::Web;

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
