//! gRPC and webhooks on one port.

use tokio::{net::TcpListener, sync::oneshot};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tower_webhook_dedup::MemoryStore;

use crate::web::Web;

#[expect(dead_code, reason = "the test starts the server in its own way")]
#[path = "../../examples/tonic.rs"]
mod example;

#[tokio::test]
async fn the_layer_applies_to_webhooks_and_not_to_grpc() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(example::serve(listener, MemoryStore::new(), async {
        _ = stopped.await;
    }));

    let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut health = HealthClient::new(channel.connect().await.unwrap());
    for _ in 0..2 {
        let request = HealthCheckRequest::default();
        let answer = health.check(request).await.unwrap();
        assert!(!answer.metadata().contains_key("webhook-dedup"));
        assert_eq!(answer.into_inner().status(), ServingStatus::Serving);
    }

    let web = Web::new(address);
    for outcome in ["run", "duplicate"] {
        let answer = web.post("/webhooks/demo", r#"{"id":"evt_1"}"#).await;
        assert_eq!(answer.outcome(), outcome);
    }

    drop((stop, health, web));
    server.await.unwrap().unwrap();
}
