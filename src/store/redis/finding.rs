//! What a check of a Redis found.

use std::{fmt, time::Duration};

use super::error::RedisStoreError;

/// Something that [`RedisStore::check`](crate::RedisStore::check) found and that somebody should
/// know. Shown as a sentence.
///
/// `server` is where it was found: an address, or what stands for it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Finding {
    /// A server, or a Sentinel, cannot be reached or does not let us in. Nothing else was checked
    /// there.
    Unreachable {
        /// Where.
        server: String,
        /// What happened.
        error: RedisStoreError,
    },
    /// The server refuses writes for a reason of its own: no memory, no disk, too few replicas.
    RefusesWrites {
        /// Where.
        server: String,
        /// What it said.
        error: RedisStoreError,
    },
    /// A command that the store needs is refused: the user may not run it, or not on our keys, or
    /// the server does not know it.
    Denied {
        /// Where.
        server: String,
        /// The command.
        command: &'static str,
        /// What the server said.
        error: RedisStoreError,
    },
    /// The server is a replica: it takes no writes.
    Replica {
        /// Where.
        server: String,
    },
    /// The server is a node of a cluster, and the store was not told: it cannot follow the events
    /// that other nodes have, and they are refused.
    ClusterNode {
        /// Where.
        server: String,
    },
    /// The server is a Sentinel: it keeps no events, but says where the server is that does.
    Sentinel {
        /// Where.
        server: String,
    },
    /// Fewer replicas are connected than have to confirm, so every event is refused.
    TooFewReplicas {
        /// Where.
        server: String,
        /// How many are connected.
        connected: u32,
        /// How many [have to confirm](crate::RedisStoreBuilder::min_replicas).
        needed: u32,
    },
    /// The server is older than 7.0. It works, with scripts in place of `SET … NX GET`.
    Old {
        /// Where.
        server: String,
        /// Its version.
        version: String,
    },
    /// When its memory is full, the server may evict leases and records.
    Evicts {
        /// Where.
        server: String,
        /// Its `maxmemory-policy`.
        policy: String,
    },
    /// The server writes neither a log nor snapshots: a restart forgets what was done.
    NotPersistent {
        /// Where.
        server: String,
    },
    /// Its clock and ours differ. Expiry goes by the server's alone; the times in entries, by
    /// ours.
    Skewed {
        /// Where.
        server: String,
        /// By how much.
        by: Duration,
    },
    /// Slots of a cluster that no node serves: their events are refused.
    Uncovered {
        /// Which cluster.
        server: String,
        /// How many of the 16 384.
        slots: u32,
    },
    /// No node of the cluster has a replica: when one fails, its events are refused until it is
    /// back.
    NoReplicas {
        /// Which cluster.
        server: String,
    },
    /// A Sentinel says that no failover could be agreed on.
    NoQuorum {
        /// The Sentinel.
        server: String,
        /// What it said.
        error: RedisStoreError,
    },
    /// Something could not be found out, for lack of rights in most cases.
    Unknown {
        /// Where.
        server: String,
        /// What.
        what: &'static str,
        /// Why.
        error: RedisStoreError,
    },
}

/// The error as the end of a sentence, for which some servers have the full stop already.
fn ending(error: &RedisStoreError) -> String {
    let mut text = error.to_string();
    if !text.ends_with('.') {
        text.push('.');
    }
    text
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { server, error } => {
                write!(f, "{server} cannot be used: {}", ending(error))
            }
            Self::RefusesWrites { server, error } => {
                write!(f, "{server} refuses writes: {}", ending(error))
            }
            Self::Denied {
                server,
                command,
                error,
            } => write!(
                f,
                "{server} does not let our user run {command}, which the store needs: {}",
                ending(error)
            ),
            Self::Replica { server } => write!(f, "{server} is a replica, which takes no writes."),
            Self::ClusterNode { server } => write!(
                f,
                "{server} is one node of a cluster, and refuses the events of the others: the URL \
                 should begin with redis+cluster://, or rediss+cluster://."
            ),
            Self::Sentinel { server } => write!(
                f,
                "{server} is a Sentinel, which keeps no events: the URL should begin with \
                 redis+sentinel://, or rediss+sentinel://, and name the service that it watches."
            ),
            Self::TooFewReplicas {
                server,
                connected,
                needed,
            } => write!(
                f,
                "{server} has {connected} connected replicas, and {needed} have to confirm each \
                 write, so every event is refused."
            ),
            Self::Old { server, version } => write!(
                f,
                "{server} runs version {version}; it works, but 7.0 or newer is recommended."
            ),
            Self::Evicts { server, policy } => write!(
                f,
                "{server} may evict leases and records when its memory is full, and events run \
                 twice then: its maxmemory-policy is {policy}, and should be noeviction."
            ),
            Self::NotPersistent { server } => write!(
                f,
                "{server} keeps nothing on disk, so a restart forgets leases and records, and \
                 events run twice then."
            ),
            Self::Skewed { server, by } => write!(
                f,
                "the clock of {server} and ours differ by {by:?}: the time that an entry says it \
                 was written is off, though expiry is not."
            ),
            Self::Uncovered { server, slots } => write!(
                f,
                "{server} has {slots} slots that no node serves, and refuses their events."
            ),
            Self::NoReplicas { server } => write!(
                f,
                "{server} has no replicas: when a node fails, its events are refused until it is \
                 back."
            ),
            Self::NoQuorum { server, error } => write!(
                f,
                "the Sentinel at {server} says that no failover could be agreed on: {}",
                ending(error)
            ),
            Self::Unknown {
                server,
                what,
                error,
            } => write!(f, "{server} does not say {what}: {}", ending(error)),
        }
    }
}
