//! A store of one's own.

use tower_webhook_dedup::contract;

use crate::process::example as built;

#[expect(dead_code, reason = "the test starts the program in its own way")]
#[path = "../../examples/store.rs"]
mod example;

#[tokio::test(start_paused = true)]
async fn it_keeps_the_contract() {
    contract(example::MyStore::default()).await;
}

#[tokio::test]
async fn an_event_runs_once() {
    let output = built("store").output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text.lines().collect::<Vec<_>>(), ["charged", "done before"]);
}
