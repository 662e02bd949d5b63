//! Real processes over one Redis: killed, stopped and told to end while they run events or stand
//! by for them.

mod support;

#[path = "support/child.rs"]
mod child;

use std::{io, time::Duration};

use tokio::{
    task::{JoinHandle, JoinSet},
    time::Instant,
};

use self::{
    child::{Answer, Process, Setup},
    support::{RedisServer, keys, until},
};

/// The handler never ends.
const HANG: &[(&str, &str)] = &[("x-sleep-ms", "3600000")];

/// How late something may be on a busy machine.
const SLACK: Duration = Duration::from_secs(4);

/// The server that the other tests start in processes of their own.
#[test]
fn child_server() {
    child::serve();
}

/// Who began to run the event, in order.
fn started(server: &RedisServer, id: &str) -> Vec<String> {
    list(server, &format!("started:{id}"))
}

/// Who completed it.
fn completed(server: &RedisServer, id: &str) -> Vec<String> {
    list(server, &format!("completed:{id}"))
}

fn list(server: &RedisServer, key: &str) -> Vec<String> {
    redis::from_redis_value(server.command(&["LRANGE", key, "0", "-1"])).unwrap()
}

fn state(server: &RedisServer, id: &str) -> Option<String> {
    let value = server.text(&["GET", keys(server, id).first()?]);
    Some(value.split(' ').nth(1)?.to_owned())
}

/// Delivers the event and waits until its handler runs there.
async fn running(
    server: &RedisServer,
    process: &Process,
    id: &str,
    headers: &[(&str, &str)],
) -> JoinHandle<io::Result<String>> {
    let before = started(server, id).len();
    let mut stream = process.sender().begin(id, headers).await.unwrap();
    until("the handler runs", async || {
        started(server, id).len() > before
    })
    .await;
    tokio::spawn(async move {
        let mut answer = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await?;
        Ok(answer)
    })
}

async fn until_completed(server: &RedisServer, id: &str) {
    until("the event is completed", async || {
        !completed(server, id).is_empty()
    })
    .await;
    until("that is recorded", async || {
        state(server, id).as_deref() == Some("done")
    })
    .await;
}

/// R7, with a store at this URL, which has its keys on these servers.
async fn a_killed_process(url: &str, keepers: &[&RedisServer]) {
    let ledger = RedisServer::start();
    let setup = Setup {
        retry_later: true,
        ..Setup::default()
    };
    let mut a = Process::over(url, &ledger, "a", setup).await;
    // Before the other ends: starting a process may take longer than the lease lasts.
    let b = Process::over(url, &ledger, "b", setup).await;
    let first = running(&ledger, &a, "e1", HANG).await;
    let ttl = || {
        let mut ttls = keepers.iter().filter_map(|keeper| {
            let key = keys(keeper, "e1").pop()?;
            Some(keeper.number(&["PTTL", &key]))
        });
        ttls.next().unwrap()
    };
    // Over the first renewal.
    let end = Instant::now() + setup.lease;
    while Instant::now() < end {
        assert!((1..=2000).contains(&ttl()), "{}", ttl());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    a.kill();
    let killed = Instant::now();
    assert!(first.await.unwrap().unwrap_or_default().is_empty());

    let mut refused = 0;
    let ran = loop {
        let answer = b.send("e1", &[]).await;
        if answer.status == 200 {
            break answer;
        }
        answer.is(503, "in-flight");
        assert!(answer.retry_after.is_some());
        assert!(answer.took < setup.lease, "at once: {answer:?}");
        assert!(killed.elapsed() < setup.lease + SLACK, "blocked for longer");
        refused += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    ran.is(200, "run");
    assert!(refused > 0, "the lease blocked it for a while");
    assert_eq!(started(&ledger, "e1"), ["a", "b"]);
    assert_eq!(completed(&ledger, "e1"), ["b"]);
    b.send("e1", &[]).await.is(200, "duplicate");
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_blocks_its_event_for_one_lease_at_most() {
    let server = RedisServer::start();
    a_killed_process(&server.url(), &[&server]).await;
}

#[cfg(feature = "cluster")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_a_killed_process_blocks_its_event_for_one_lease_at_most() {
    let cluster = support::Cluster::start();
    let primaries = cluster.nodes()[..3].iter().map(|node| &node.server);
    a_killed_process(&cluster.url(), &primaries.collect::<Vec<_>>()).await;
}

#[cfg(feature = "sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_sentinels_a_killed_process_blocks_its_event_for_one_lease_at_most() {
    let service = support::Service::start();
    let primary = service.servers().nth(service.primary()).unwrap();
    a_killed_process(&service.url(), &[primary]).await;
}

/// R7 under the default: the retry that meets the lease of a dead process is acknowledged, and runs
/// when the lease is over, with no further request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_acknowledged_behind_a_dead_process_runs() {
    let server = RedisServer::start();
    let mut a = Process::start(&server, "a").await;
    let _first = running(&server, &a, "e1", HANG).await;
    let b = Process::start(&server, "b").await;
    a.kill();
    let answer = b.send("e1", &[]).await;
    answer.is(200, "standby");
    assert!(answer.took < Duration::from_secs(1), "at once: {answer:?}");
    until_completed(&server, "e1").await;
    assert_eq!(started(&server, "e1"), ["a", "b"]);
    b.send("e1", &[]).await.is(200, "duplicate");
    b.stop().await;
    assert_eq!(completed(&server, "e1"), ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_standby_of_one_process_completes_the_events_of_another_that_is_killed() {
    let server = RedisServer::start();
    let mut a = Process::start(&server, "a").await;
    let b = Process::start(&server, "b").await;
    let events: Vec<_> = (0..10).map(|n| format!("n{n}")).collect();
    let mut firsts = Vec::new();
    for id in &events {
        firsts.push(running(&server, &a, id, HANG).await);
        b.send(id, &[]).await.is(200, "standby");
    }
    a.kill();
    for id in &events {
        until_completed(&server, id).await;
    }
    b.stop().await;
    for id in &events {
        assert_eq!(started(&server, id), ["a", "b"]);
        assert_eq!(completed(&server, id), ["b"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_processes_that_stand_by_one_completes_the_event() {
    let server = RedisServer::start();
    let mut a = Process::start(&server, "a").await;
    let (b, c) = tokio::join!(Process::start(&server, "b"), Process::start(&server, "c"));
    let events: Vec<_> = (0..5).map(|n| format!("n{n}")).collect();
    for id in &events {
        drop(running(&server, &a, id, HANG).await);
        // Slow enough that both are there while one of them runs it.
        let slow = [("x-sleep-ms", "300")];
        b.send(id, &slow).await.is(200, "standby");
        c.send(id, &slow).await.is(200, "standby");
    }
    a.kill();
    for id in &events {
        until_completed(&server, id).await;
    }
    tokio::join!(b.stop(), c.stop());
    for id in &events {
        let (started, completed) = (started(&server, id), completed(&server, id));
        assert_eq!(started.len(), 2, "{started:?}");
        assert_eq!(completed.len(), 1, "{completed:?}");
        assert_eq!(started[1], completed[0]);
    }
}

/// What the docs say cannot be kept: the process that is killed is the only one that acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_takes_its_own_standbys_along_and_the_events_stay_runnable() {
    let server = RedisServer::start();
    let mut a = Process::start(&server, "a").await;
    let _first = running(&server, &a, "e1", HANG).await;
    a.send("e1", &[]).await.is(200, "standby");
    a.kill();
    let b = Process::start(&server, "b").await;
    until("the lease is over", async || keys(&server, "e1").is_empty()).await;
    // Nobody runs it by himself.
    assert_eq!(started(&server, "e1"), ["a"]);
    b.send("e1", &[]).await.is(200, "run");
    assert_eq!(completed(&server, "e1"), ["b"]);
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_with_standbys_of_its_own_loses_nothing_that_another_stands_by_for() {
    let server = RedisServer::start();
    let mut a = Process::start(&server, "a").await;
    let b = Process::start(&server, "b").await;
    let _first = running(&server, &a, "e1", HANG).await;
    a.send("e1", &[]).await.is(200, "standby");
    b.send("e1", &[]).await.is(200, "standby");
    a.kill();
    until_completed(&server, "e1").await;
    b.stop().await;
    assert_eq!(started(&server, "e1"), ["a", "b"]);
    assert_eq!(completed(&server, "e1"), ["b"]);
}

/// The standby that took over is killed in its run: the next one takes over from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_is_killed_in_its_own_run_is_followed_by_the_next() {
    let server = RedisServer::start();
    let mut a = Process::start(&server, "a").await;
    let mut b = Process::start(&server, "b").await;
    let _first = running(&server, &a, "e1", HANG).await;
    b.send("e1", HANG).await.is(200, "standby");
    a.kill();
    until("b runs it", async || started(&server, "e1").len() == 2).await;
    let c = Process::start(&server, "c").await;
    c.send("e1", &[]).await.is(200, "standby");
    b.kill();
    until_completed(&server, "e1").await;
    c.stop().await;
    assert_eq!(started(&server, "e1"), ["a", "b", "c"]);
    assert_eq!(completed(&server, "e1"), ["c"]);
}

/// R9: a process that is stopped for longer than its lease comes back and finishes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_stopped_past_its_lease_does_no_harm() {
    for status in ["200", "500"] {
        let server = RedisServer::start();
        let setup = Setup {
            retry_later: true,
            ..Setup::default()
        };
        let a = Process::with(&server, "a", setup).await;
        let b = Process::with(&server, "b", setup).await;
        let sleeps = [("x-sleep-ms", "500"), ("x-status", status)];
        let first = running(&server, &a, "e1", &sleeps).await;
        a.freeze();
        until("the lease is over", async || keys(&server, "e1").is_empty()).await;
        let second = running(&server, &b, "e1", &[("x-sleep-ms", "3000")]).await;
        let key = keys(&server, "e1").remove(0);
        let owned = server.text(&["GET", &key]);
        a.thaw();
        let first = first.await.unwrap().unwrap();
        assert!(first.contains(&format!("HTTP/1.1 {status}")), "{first}");
        if status == "200" {
            until("it is told", async || a.line("lease lost: ").is_some()).await;
        }
        // It has sent its end, and the owner's lease stands.
        assert_eq!(server.text(&["GET", &key]), owned);
        a.send("e1", &[]).await.is(503, "in-flight");
        let second = second.await.unwrap().unwrap();
        assert!(second.contains("HTTP/1.1 200"), "{second}");
        a.send("e1", &[]).await.is(200, "duplicate");
        tokio::join!(a.stop(), b.stop());
        assert_eq!(started(&server, "e1"), ["a", "b"]);
    }
}

/// R11.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_fifty_deliveries_at_once_to_two_processes_one_runs() {
    let server = RedisServer::start();
    // Nothing is to run out here, however busy the machine.
    let setup = Setup {
        lease: Duration::from_secs(20),
        ..Setup::default()
    };
    let (a, b) = tokio::join!(
        Process::with(&server, "a", setup),
        Process::with(&server, "b", setup)
    );
    let rounds = 100;
    // Five rounds at a time.
    for few in (0..rounds).collect::<Vec<_>>().chunks(5) {
        let mut requests = JoinSet::new();
        for n in few.iter().flat_map(|round| [*round; 50]).enumerate() {
            let process = if n.0 % 2 == 0 { &a } else { &b };
            let (sender, id) = (process.sender(), format!("r{}", n.1));
            requests.spawn(async move { (sender.send(&id, &[("x-sleep-ms", "300")]).await, id) });
        }
        let answers: Vec<(Answer, String)> = requests.join_all().await;
        for round in few {
            let id = format!("r{round}");
            let of = |outcome: &str| {
                let mine = answers.iter().filter(|(_, other)| *other == id);
                mine.filter(|(it, _)| it.status == 200 && it.outcome == outcome)
                    .count()
            };
            let (run, others) = (of("run"), of("standby") + of("duplicate"));
            assert_eq!((run, others), (1, 49), "{id}: {answers:?}");
        }
    }
    tokio::join!(a.stop(), b.stop());
    for round in 0..rounds {
        let id = format!("r{round}");
        assert_eq!(started(&server, &id).len(), 1, "{id}");
        assert_eq!(completed(&server, &id).len(), 1, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_told_to_stop_brings_its_standbys_to_an_end_first() {
    let server = RedisServer::start();
    let a = Process::start(&server, "a").await;
    let mut b = Process::start(&server, "b").await;
    let fails = [("x-sleep-ms", "2500"), ("x-status", "500")];
    let first = running(&server, &a, "e1", &fails).await;
    b.send("e1", &[]).await.is(200, "standby");
    b.terminate();
    while completed(&server, "e1").is_empty() {
        assert!(!b.has_ended(), "it ended with its promise open");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(first.await.unwrap().unwrap().contains("HTTP/1.1 500"));
    assert!(b.ended().await.success());
    until("all is read", async || b.line("drained: ").is_some()).await;
    assert_eq!(b.line("drained: ").unwrap(), "complete=true");
    assert_eq!(started(&server, "e1"), ["a", "b"]);
    a.send("e1", &[]).await.is(200, "duplicate");
    a.stop().await;
}

/// R4: the sender hangs up, the process is told to stop, and the run goes to its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_told_to_stop_finishes_the_runs_whose_senders_hung_up() {
    let server = RedisServer::start();
    let a = Process::start(&server, "a").await;
    let sleeps = [("x-sleep-ms", "1500")];
    running(&server, &a, "e1", &sleeps).await.abort();
    // The server reports itself stopped a moment before it drops the last connections.
    until("it noticed", async || a.line("detached: ").is_some()).await;
    a.stop().await;
    assert_eq!(completed(&server, "e1"), ["a"]);
    assert_eq!(state(&server, "e1").as_deref(), Some("done"));
    let b = Process::start(&server, "b").await;
    b.send("e1", &[]).await.is(200, "duplicate");
    assert_eq!(started(&server, "e1"), ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_cannot_end_its_standbys_in_time_reports_them_whole() {
    let server = RedisServer::start();
    let a = Process::start(&server, "a").await;
    let setup = Setup {
        drain: Duration::from_millis(500),
        ..Setup::default()
    };
    let mut b = Process::with(&server, "b", setup).await;
    let _first = running(&server, &a, "e1", HANG).await;
    b.send("e1", &[]).await.is(200, "standby");
    b.terminate();
    assert!(b.ended().await.success());
    until("all is read", async || b.line("lost: ").is_some()).await;
    assert_eq!(b.line("drained: ").unwrap(), "complete=false");
    assert_eq!(b.line("lost: ").unwrap(), r#"{"id":"e1","n":1}"#);
    assert_eq!(started(&server, "e1"), ["a"]);
}
