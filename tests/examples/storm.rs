//! The storm, in small sizes.

use crate::{process::example, support::RedisServer};

/// Runs a storm and gives its exit code and its last line.
async fn storm(arguments: &[&str]) -> (Option<i32>, String) {
    let mut storm = example("storm");
    let output = storm.args(arguments).output().await.unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let last = stdout.lines().last().unwrap().to_owned();
    eprintln!("{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), last)
}

/// The number of this name in the last line.
fn number(line: &str, name: &str) -> usize {
    let fields = line.strip_prefix("storm: ").unwrap().split(' ');
    let mut fields = fields.map(|field| field.split_once('=').unwrap());
    let (_, value) = fields.find(|(field, _)| *field == name).unwrap();
    value.parse().unwrap()
}

#[tokio::test]
async fn no_event_is_lost_or_doubled_in_a_storm() {
    let (code, line) = storm(&["--events", "400", "--seed", "7"]).await;
    assert_eq!(code, Some(0));
    let fields = "events deliveries runs completed failed panicked hung_up stood_by lost doubled";
    let names = line.strip_prefix("storm: ").unwrap().split(' ');
    let names: Vec<_> = names.map(|it| it.split_once('=').unwrap().0).collect();
    assert_eq!(names.join(" "), fields);
    assert_eq!(number(&line, "events"), 400);
    assert_eq!(number(&line, "completed"), 400);
    assert_eq!(number(&line, "lost"), 0);
    assert_eq!(number(&line, "doubled"), 0);
}

#[tokio::test]
async fn no_event_is_lost_or_doubled_in_a_storm_on_redis() {
    let redis = RedisServer::start();
    let arguments = ["--events", "400", "--seed", "8", "--redis", &redis.url()];
    // Twice on the same server: the second storm does not meet the first one's events.
    for _ in 0..2 {
        let (code, line) = storm(&arguments).await;
        assert_eq!(code, Some(0));
        assert_eq!(number(&line, "completed"), 400);
        assert_eq!(number(&line, "lost"), 0);
        assert_eq!(number(&line, "doubled"), 0);
    }
}

#[tokio::test]
async fn events_are_doubled_without_the_layer() {
    let (code, line) = storm(&["--events", "200", "--without-layer"]).await;
    assert_eq!(code, Some(1));
    assert!(number(&line, "doubled") > 0);
}

#[tokio::test]
async fn events_are_lost_by_the_naive_way() {
    let (code, line) = storm(&["--events", "200", "--naive"]).await;
    assert_eq!(code, Some(1));
    assert!(number(&line, "lost") > 0);
}

#[tokio::test]
async fn events_are_lost_by_the_naive_way_on_redis() {
    let redis = RedisServer::start();
    let url = redis.url();
    let (code, line) = storm(&["--events", "200", "--naive", "--redis", &url]).await;
    assert_eq!(code, Some(1));
    assert!(number(&line, "lost") > 0);
}
