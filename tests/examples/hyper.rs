//! The server on hyper alone.

use tokio::{net::TcpListener, sync::oneshot};
use tower_webhook_dedup::MemoryStore;

use crate::web::Web;

#[expect(dead_code, reason = "the test starts the server in its own way")]
#[path = "../../examples/hyper.rs"]
mod example;

#[tokio::test]
async fn a_repeat_does_not_run_and_the_server_stops_when_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let web = Web::new(listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(example::serve(listener, MemoryStore::new(), async {
        _ = stopped.await;
    }));

    let first = web.post("/", r#"{"id":"evt_1"}"#).await;
    assert_eq!(first.outcome(), "run");
    assert_eq!(first.body, "14 bytes, attempt 1\n");
    let repeat = web.post("/", r#"{"id":"evt_1"}"#).await;
    assert_eq!(repeat.outcome(), "duplicate");

    drop(stop);
    server.await.unwrap();
}
