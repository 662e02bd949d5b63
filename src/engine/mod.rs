//! Leases over a store: acquiring, keeping, ending, and standing by for them. No HTTP here.
//!
//! All store calls go through [`call`], which puts a deadline on each; all tasks through
//! [`tracker`].

mod beat;
mod call;
mod completions;
mod dedup;
mod drain;
mod error;
mod heartbeat;
mod lease;
mod pace;
mod ran;
mod releases;
mod settings;
mod standby;
mod tracker;
mod wait;
mod watch;

use std::{collections::HashSet, sync::Arc};

use crate::{LeaseStore, mutex::Mutex};

use self::{completions::Completions, heartbeat::Heartbeat, releases::Releases, standby::Standbys};

pub(crate) use self::{
    beat::Beat,
    dedup::Claim,
    settings::{OnEvent, Settings, checked},
    standby::{Candidate, End, NotStoodBy},
    tracker::Tracker,
    wait::Waited,
};
pub use self::{
    dedup::Dedup,
    drain::{DrainHandle, Drained},
    error::{Error, Operation},
    lease::Lease,
    ran::{Begun, Ran, RunError},
    settings::Limits,
};

/// What all clones of one [`Dedup`] share, whatever their settings.
pub(crate) struct Shared<St: LeaseStore> {
    store: St,
    tracker: Arc<Tracker>,
    heartbeat: Heartbeat,
    releases: Releases,
    completions: Completions,
    standbys: Standbys<St>,
    /// Those that a layer was put around a service for; frameworks do that for each connection.
    namespaces: Mutex<HashSet<Option<Arc<str>>>>,
}
