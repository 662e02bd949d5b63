//! The playground under a mixed load, on a Redis in trouble, for a long time: memory, tasks, file
//! descriptors, threads and keys level off, and nothing is left when the load has ended.

mod load;
mod sample;
mod trouble;
mod verdict;

#[path = "../examples/process.rs"]
mod process;
#[path = "../support/mod.rs"]
mod support;
#[path = "../examples/web.rs"]
mod web;

use std::{process::Stdio, time::Duration};

use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::{
    load::Load,
    process::{Server, example},
    sample::Sample,
    support::RedisServer,
    trouble::Trouble,
    web::Web,
};

/// The longest body that the playground takes here.
const MAX_BODY: usize = 1 << 20;

/// Short, so that leases are lost while Redis is away, and keys reach their level early.
const FLAGS: [&str; 8] = [
    "--lease",
    "5s",
    "--retention",
    "20s",
    "--max-body",
    "1048576",
    "--keep-runs",
    "1000",
];

/// The time between two samples.
const PACE: Duration = Duration::from_secs(2);

/// The longest time until what the load left is gone: a run of two seconds, a standby that looks
/// again every other second, the retention, and what a busy machine adds.
const SETTLE: Duration = Duration::from_secs(120);

/// `SOAK_SECONDS` is how long it takes, 600 if it is not set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes ten minutes: run scripts/soak"]
async fn nothing_grows_under_a_long_mixed_load_and_nothing_is_left_of_it() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(600, |it| it.parse().unwrap());
    assert!(seconds >= 80, "too short for levels to be seen");

    let mut redis = RedisServer::start();
    let mut playground = example("playground");
    playground
        .args(["--listen", "127.0.0.1:0", "--redis", &redis.url()])
        .args(FLAGS)
        // Each panic of a handler is told there.
        .stderr(Stdio::null());
    let server = Server::start(&mut playground).await;
    // What a layer starts with its first lease, it keeps.
    let web = Web::new(server.web.address());
    let first = web.post("/webhooks/demo", r#"{"id":"first"}"#).await;
    drop(web);
    assert_eq!(first.outcome(), "run");
    let idle = settled(&server, &redis, |sample| sample.keys == Some(0)).await;

    let start = Instant::now();
    let load = Load::start(server.web.address());
    let mut trouble = Trouble::new(Duration::from_secs(seconds));
    let mut samples = Vec::new();
    while start.elapsed() < Duration::from_secs(seconds) {
        sleep_until(start + PACE * u32::try_from(samples.len() + 1).unwrap()).await;
        let answers = trouble.make(start.elapsed(), &mut redis);
        let redis = answers.then_some(&redis);
        let sample = Sample::take(&server, redis, start.elapsed()).await;
        println!("{sample}");
        samples.push(sample);
    }
    trouble.end(&mut redis);
    let heard = load.end().await;

    let left = settled(&server, &redis, |sample| verdict::is_idle(sample, &idle)).await;
    println!("\nanswers:");
    for (answer, count) in &heard {
        println!("{count:>9}  {answer}");
    }
    println!("\nbefore:  {idle}\nafter:   {left}\n");
    let report = verdict::Report::of(&samples);
    println!("{report}");

    for answer in load::EXPECTED {
        assert!(heard.contains_key(answer), "no answer was {answer:?}");
    }
    assert!(verdict::is_idle(&left, &idle), "something is left");
    assert!(report.grown().is_empty(), "grown: {:?}", report.grown());
    stopped(server).await;
}

/// The first sample of which this is true, or the last one that is taken.
async fn settled(server: &Server, redis: &RedisServer, enough: impl Fn(&Sample) -> bool) -> Sample {
    let start = Instant::now();
    loop {
        let sample = Sample::take(server, Some(redis), start.elapsed()).await;
        if enough(&sample) || start.elapsed() > SETTLE {
            return sample;
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// It drains in time, as it has nothing left to do.
async fn stopped(mut server: Server) {
    server.signal("-TERM").await;
    let ended = timeout(SETTLE, server.process.wait()).await;
    assert!(ended.unwrap().unwrap().success());
}
