//! The storm, in small sizes.

use crate::{
    process::example,
    support::{RedisServer, until},
};

/// Runs a storm and gives its exit code and its last line.
async fn storm(arguments: &[&str]) -> (Option<i32>, String) {
    let mut storm = example("storm");
    let output = storm.args(arguments).output().await.unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    eprintln!("{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    let last = stdout.lines().last().unwrap().to_owned();
    let is_well = stdout.contains("\nOK: every acknowledged event was completed");
    assert_eq!(is_well, output.status.success(), "{stdout}");
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

#[tokio::test]
async fn a_storm_starts_its_own_redis() {
    let (code, line) = storm(&["--events", "400", "--redis"]).await;
    assert_eq!(code, Some(0));
    assert_eq!(number(&line, "completed"), 400);
}

#[tokio::test]
async fn nothing_is_lost_without_an_excuse_when_processes_are_killed() {
    let redis = RedisServer::start();
    let fleet = ["--processes", "2", "--kill", "--redis", &redis.url()];
    let (code, line) = storm(&[&fleet[..], &["--events", "800", "--seed", "9"]].concat()).await;
    assert_eq!(code, Some(0));
    assert_eq!(number(&line, "lost"), 0);
    assert_eq!(number(&line, "doubled"), 0);
    assert!(number(&line, "kills") > 1);
    assert_eq!(number(&line, "restarts"), 0);
    assert_eq!(number(&line, "failovers"), 0);
}

#[tokio::test]
async fn nothing_is_lost_without_an_excuse_when_redis_is_harmed_too() {
    let fleet = ["--redis", "--processes", "3", "--kill", "--chaos"];
    let (code, line) = storm(&[&fleet[..], &["--events", "1000", "--seed", "10"]].concat()).await;
    assert_eq!(code, Some(0));
    assert_eq!(number(&line, "lost"), 0);
    assert_eq!(number(&line, "doubled"), 0);
    for harm in ["kills", "restarts", "failovers"] {
        assert!(number(&line, harm) > 1, "{harm}");
    }
    let names = line.strip_prefix("storm: ").unwrap().split(' ');
    let names: Vec<_> = names.map(|it| it.split_once('=').unwrap().0).collect();
    let fields = "lost doubled excused_lost excused_doubled kills restarts failovers";
    assert!(names.join(" ").ends_with(fields), "{line}");
}

#[tokio::test]
async fn a_storm_that_makes_no_sense_does_not_begin() {
    for arguments in [
        &["--processes", "2"][..],
        &["--redis", "--kill"],
        &["--chaos"],
        &["--chaos", "--redis", "redis://127.0.0.1:1"],
        &["--redis", "--chaos", "--naive"],
        &["--redis", "--processes", "0"],
    ] {
        let output = example("storm").args(arguments).output().await.unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("error: "), "{stderr}");
    }
}

#[tokio::test]
async fn a_store_that_never_answers_is_told() {
    // Nobody listens on a port that was just given back.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    drop(listener);
    let output = example("storm").args(["--redis", &url]).output().await;
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.starts_with("the store never answered") && stderr.contains("refused"),
        "{stderr}"
    );
    assert!(output.stdout.is_empty(), "there was no storm");
}

#[tokio::test]
async fn a_missing_redis_server_is_told() {
    let mut storm = example("storm");
    let output = storm.arg("--redis").env("PATH", "/nowhere").output().await;
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.starts_with("redis-server is not installed"),
        "{stderr}"
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn no_process_outlives_its_storm() {
    let fleet = ["--processes", "2", "--events", "100000", "--redis"];
    let mut storm = example("storm").args(fleet).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", storm.id().unwrap());
    let children = || {
        let ids = std::fs::read_to_string(&children).unwrap();
        ids.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    // Redis, who watches over it, and the servers.
    until("all have started", async || children().len() == 4).await;
    let ids = children();
    storm.kill().await.unwrap();
    until("they have ended", async || {
        // It is empty for one that has ended and nobody has waited for.
        let runs = |id| std::fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|it| !it.is_empty());
        !ids.iter().any(runs)
    })
    .await;
}
