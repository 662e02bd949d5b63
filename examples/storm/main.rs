//! A storm of webhooks: a sender that delivers at least once, over real HTTP, to an axum server
//! under the layer. It ends with 0 only if no acknowledged event was lost, and none completed twice.
//!
//! ```sh
//! cargo run --release --example storm
//! cargo run --release --example storm -- --redis redis://127.0.0.1:6379
//! cargo run --release --example storm -- --without-layer   # events are doubled
//! cargo run --release --example storm -- --naive           # events are lost
//! ```

mod ledger;
mod naive;
mod plan;
mod receiver;
mod report;
mod sender;

use std::{error::Error, process::ExitCode, sync::Arc, time::Duration};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

use self::{ledger::Ledger, receiver::Receiver, report::Report, sender::Sender};

/// A storm of webhooks, to see that none is lost or doubled.
#[derive(Clone, Debug, Parser)]
struct Options {
    /// Keep leases in this Redis; without it, in memory.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,

    /// How many events there are; each is delivered several times.
    #[arg(long, default_value_t = 3000)]
    events: usize,

    /// Which storm: each seed has its own faults at its own times.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Deliver to the handler as it is.
    #[arg(long, conflicts_with = "naive")]
    without_layer: bool,

    /// Protect the handler by the usual `SET key NX EX`, and 200 where the key is taken.
    #[arg(long)]
    naive: bool,
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let options = Options::parse();
    let report = run(&options).await?;
    let verdict = report.verdict();
    println!("{report}");
    // The last line is for scripts.
    println!("{}", report.summary());
    if let Err(why) = verdict {
        eprintln!("{why}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

async fn run(options: &Options) -> Result<Report, Box<dyn Error>> {
    let events = plan::events(options.events, options.seed);
    let ledger = Arc::new(Ledger::default());
    let receiver = Receiver::start(options, ledger.clone()).await?;

    let progress = ProgressBar::new(events.len() as u64).with_style(ProgressStyle::with_template(
        "{elapsed:>4} {wide_bar} {pos}/{len} events",
    )?);
    progress.enable_steady_tick(Duration::from_millis(100));
    let sent = Sender::new(receiver.address())
        .send(events, &progress)
        .await;
    let drained = receiver.stop().await;
    progress.finish_and_clear();

    Ok(Report::new(options, &sent, &ledger, drained.as_ref()))
}
