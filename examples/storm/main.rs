//! A storm of webhooks: a sender that delivers at least once, over real HTTP, to axum servers under
//! the layer. It ends with 0 only if no acknowledged event was lost, and none completed twice.
//!
//! ```sh
//! cargo run --release --example storm
//! cargo run --release --example storm -- --redis redis://127.0.0.1:6379
//! cargo run --release --example storm -- --redis --processes 3 --kill --chaos
//! cargo run --release --example storm -- --without-layer   # events are doubled
//! cargo run --release --example storm -- --naive           # events are lost
//! ```

mod book;
mod fleet;
mod ledger;
mod naive;
mod options;
mod plan;
mod receiver;
mod report;
mod sender;

use std::{error::Error, process::ExitCode, sync::Arc, time::Duration};

use fastrand::Rng;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;
use tower_webhook_dedup::{Key, LeaseStore, RedisStore};

use self::{
    fleet::RedisServer,
    ledger::Ledger,
    options::{Options, Role},
    receiver::Receiver,
    report::Report,
    sender::{Sender, Targets},
};

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::read();
    let ended = match &options.role {
        Some(Role::Serve(serve)) => fleet::serve(serve).await,
        None => storm(&options).await,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

async fn storm(options: &Options) -> Result<(), Box<dyn Error>> {
    if let Some(Some(url)) = &options.redis {
        reach(url).await?;
    }
    let report = if options.is_fleet() {
        fleet::run(options).await?
    } else {
        run(options).await?
    };
    println!("{report}");
    let verdict = report.verdict();
    if let Ok(well) = &verdict {
        println!("OK: {well}\n");
    }
    // The last line is for scripts.
    println!("{}", report.summary());
    verdict.map_err(|why| format!("FAILED: {why}"))?;
    Ok(())
}

/// Whether there is a Redis at all. Where there is none, everything is refused, which proves little.
async fn reach(url: &str) -> Result<(), Box<dyn Error>> {
    let (store, any) = (RedisStore::open(url)?, Key::new("storm", "any"));
    let by = Instant::now() + Duration::from_secs(5);
    match store.inspect(&any, by).await {
        Ok(_) => Ok(()),
        Err(why) => Err(format!("the store never answered, so there was no storm: {why}").into()),
    }
}

/// The storm over one server, in this process.
async fn run(options: &Options) -> Result<Report, Box<dyn Error>> {
    let own_redis = match options.redis {
        Some(None) => Some(RedisServer::start().await?),
        _ => None,
    };
    let url = match &own_redis {
        Some(redis) => Some(redis.url()),
        None => options.redis.clone().flatten(),
    };
    let events = plan::events(options.events, options.seed, Duration::from_millis(250));
    let ledger = Arc::new(Ledger::default());
    let book = book::here(ledger.clone());
    let receiver = Receiver::start(options.guard(), url.as_deref(), namespace(), book).await?;

    let progress = progress(events.len())?;
    let targets = Targets::new(vec![receiver.address()]);
    let sent = Sender::new(targets).send(events, &progress).await?;
    let drained = receiver.stop().await;
    progress.finish_and_clear();

    Ok(Report::new(options, &sent, &ledger, drained))
}

/// Storms on one Redis must not see each other's events.
fn namespace() -> String {
    format!("storm-{:016x}", Rng::new().u64(..))
}

fn progress(events: usize) -> Result<ProgressBar, Box<dyn Error>> {
    let style = ProgressStyle::with_template("{elapsed:>4} {wide_bar} {pos}/{len} events")?;
    let progress = ProgressBar::new(events as u64).with_style(style);
    progress.enable_steady_tick(Duration::from_millis(100));
    Ok(progress)
}
