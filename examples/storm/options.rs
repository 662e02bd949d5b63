//! What the storm is told.

use std::net::SocketAddr;

use clap::{Args, CommandFactory, Parser, Subcommand, error::ErrorKind, value_parser};

use super::ledger::Incarnation;

/// A storm of webhooks, to see that none is lost or doubled.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "storm",
    disable_help_subcommand = true,
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Options {
    /// Keep leases in this Redis, or without a URL in one that is started for the storm; else they
    /// are kept in memory.
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<Option<String>>,

    /// How many server processes there are; several share one Redis.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u8).range(1..=64))]
    pub(crate) processes: u8,

    /// Kill one of the processes every so often, and start it again.
    #[arg(long)]
    pub(crate) kill: bool,

    /// Stop Redis meanwhile, restart it empty, and fail over to a replica.
    #[arg(long)]
    pub(crate) chaos: bool,

    /// How many events there are; each is delivered several times.
    #[arg(long, default_value_t = 3000)]
    pub(crate) events: usize,

    /// Which storm: each seed has its own faults at its own times.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Deliver to the handler as it is.
    #[arg(long, conflicts_with = "naive")]
    pub(crate) without_layer: bool,

    /// Protect the handler by the usual `SET key NX EX`, and 200 where the key is taken.
    #[arg(long)]
    pub(crate) naive: bool,

    /// Tell all that is known of the events that are excused, too.
    #[arg(long)]
    pub(crate) trace: bool,

    #[command(subcommand)]
    pub(crate) role: Option<Role>,
}

/// What a storm starts itself as.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Role {
    #[command(hide = true)]
    Serve(Serve),
}

/// One server process of a fleet.
#[derive(Args, Clone, Debug)]
pub(crate) struct Serve {
    #[arg(long)]
    pub(crate) incarnation: Incarnation,
    #[arg(long)]
    pub(crate) ledger: SocketAddr,
    #[arg(long)]
    pub(crate) redis: String,
    #[arg(long)]
    pub(crate) namespace: String,
}

/// What stands between the sender and the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    Layer,
    Naive,
    Nothing,
}

impl Options {
    /// The options of this process; it ends here if they make no sense.
    pub(crate) fn read() -> Self {
        let options = Self::parse();
        if let Err(why) = options.check() {
            Self::command()
                .error(ErrorKind::ArgumentConflict, why)
                .exit();
        }
        options
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.processes > 1 && self.redis.is_none() {
            return Err("--processes needs --redis: several processes share one");
        }
        if self.kill && self.processes < 2 {
            return Err("--kill needs --processes 2 or more: somebody must be left");
        }
        if self.chaos && !matches!(self.redis, Some(None)) {
            return Err("--chaos needs --redis without a URL: \
                        it only harms servers that were started for the storm");
        }
        if self.is_fleet() && self.guard() != Guard::Layer {
            return Err("--naive and --without-layer are for one process and without --chaos");
        }
        Ok(())
    }

    /// Whether the servers are processes of their own.
    pub(crate) const fn is_fleet(&self) -> bool {
        self.processes > 1 || self.chaos
    }

    pub(crate) const fn guard(&self) -> Guard {
        match (self.naive, self.without_layer) {
            (true, _) => Guard::Naive,
            (_, true) => Guard::Nothing,
            _ => Guard::Layer,
        }
    }
}
