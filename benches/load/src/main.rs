//! What a delivery costs: this layer, what people write by hand, and published peers, one after the
//! other on the same machine. `README.md` beside this crate says how it is measured.
//!
//! ```sh
//! scripts/load          # under five minutes: RESULTS.md and results.svg
//! scripts/load latency  # only what a lone request waits for, which it prints
//! scripts/load scale    # how cost and memory grow: the second part of RESULTS.md
//! ```

mod allocations;
mod compare;
mod counts;
mod generator;
mod goals;
mod lab;
mod latency;
mod machine;
mod measure;
mod process;
mod redis_server;
mod report;
mod scale;
mod servers;

use std::{error::Error, fs, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};

use self::{lab::Lab, process::Role, report::Part};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Measures what a delivery costs, beside hand-rolled deduplication and published peers.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// How cost grows with processes, connections and bodies, and memory with events.
    Scale,
    /// Only what a lone request waits for, which it prints.
    Latency,
    /// A process of the test.
    #[command(hide = true)]
    Child {
        /// The core it is pinned to.
        #[arg(long)]
        core: Option<usize>,
        #[command(subcommand)]
        role: Role,
    },
}

#[derive(Clone, Debug, clap::Args)]
struct Options {
    /// Interleaved rounds; the tables show medians.
    #[arg(long, default_value_t = 5, global = true, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of each measurement, in seconds.
    #[arg(long, default_value = "1.5", global = true, value_parser = seconds)]
    seconds: Duration,
    /// The program to start as Redis.
    #[arg(long, default_value = "redis-server", global = true)]
    redis_server: String,
    /// Where RESULTS.md and results.svg are written.
    #[arg(long, default_value = env!("CARGO_MANIFEST_DIR"), global = true, hide_default_value = true)]
    output: PathBuf,
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "not a number")?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(Arguments { command, options }: Arguments) -> Result<()> {
    // Now, and not after minutes.
    fs::create_dir_all(&options.output)?;
    match command {
        None => {
            let comparison = compare::run(&options)?;
            report::chart::write(&comparison, &options.output.join("results.svg"))?;
            report::write(Part::Comparison, &comparison.to_string(), &options.output)
        }
        Some(Command::Scale) => {
            let scale = scale::run(&options)?;
            report::write(Part::Scale, &scale.to_string(), &options.output)
        }
        Some(Command::Latency) => {
            let mut lab = Lab::open(&options)?;
            print!("{}", latency::run(&mut lab, &options)?.table());
            Ok(())
        }
        Some(Command::Child { core, role }) => role.play(core),
    }
}
