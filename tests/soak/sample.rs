//! What the process and its Redis hold at a moment.

use std::{fmt, fs, time::Duration};

use crate::{process::Server, support::RedisServer, web::Web};

#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) at: Duration,
    /// Resident memory of the playground, in KiB.
    pub(crate) rss: u64,
    pub(crate) tasks: u64,
    pub(crate) files: u64,
    pub(crate) threads: u64,
    /// `None` while Redis is away.
    pub(crate) keys: Option<u64>,
    /// Memory of Redis, in KiB.
    pub(crate) redis: Option<u64>,
}

impl Sample {
    pub(crate) async fn take(server: &Server, redis: Option<&RedisServer>, at: Duration) -> Self {
        let pid = server.process.id().unwrap();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        // Each time a connection that ends with it: a client keeps one or two, as it happens.
        let stats = Web::new(server.web.address()).get("/stats").await.json();
        let keys = redis.map(|it| it.number(&["DBSIZE"]));
        let memory = redis.map(|it| it.text(&["INFO", "memory"]));
        Self {
            at,
            rss: number(&status, "VmRSS:"),
            tasks: stats["tasks"].as_u64().unwrap(),
            files: files as u64,
            threads: number(&status, "Threads:"),
            keys: keys.map(|it| it.try_into().unwrap()),
            redis: memory.map(|it| number(&it, "used_memory:") / 1024),
        }
    }
}

/// The number after this name, at the start of a line.
fn number(text: &str, name: &str) -> u64 {
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    let digits = rest.unwrap().split_whitespace().next();
    digits.unwrap().parse().unwrap()
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rss,
            tasks,
            files,
            threads,
            ..
        } = self;
        let or_away = |it: Option<u64>| it.map_or_else(|| "-".into(), |it| it.to_string());
        write!(
            f,
            "{:>4} s: rss {rss} KiB, tasks {tasks}, files {files}, threads {threads}, keys {}, redis {} KiB",
            self.at.as_secs(),
            or_away(self.keys),
            or_away(self.redis),
        )
    }
}
