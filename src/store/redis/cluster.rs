//! Sends each command to the node of a cluster that has its key.
//!
//! The `redis` crate could do so too. But it repeats commands without a limit that we know, sends
//! `ASKING` apart from the command it is for on a connection that others share, does not look for
//! another primary while the old one is silent, and holds up the whole cluster while it looks. Here
//! each node has a connection that is cared for like that of a single server ([`Own`]).

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use super::{
    access::Access,
    attempt::{Attempt, Attempting},
    error::RedisStoreError,
    own::Own,
    sending::{Reply, Sending},
    slots::{Redirect, Slots, slot_of},
    target::Target,
};
use crate::{Key, StoreError, StoreErrorKind, mutex::Mutex};

/// A cluster, of which some nodes are known from the start.
pub(super) struct Cluster {
    seeds: Vec<Arc<str>>,
    access: Access,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    nodes: HashMap<Arc<str>, Arc<Own>>,
    /// Whose keys are where, as far as we know.
    slots: Option<Slots>,
    /// Asks the cluster where its keys are.
    look: Option<Attempt<()>>,
    /// When the last look ended.
    looked: Option<Instant>,
}

impl Cluster {
    /// How often one command is sent on to another node.
    const MOST_REDIRECTS: u32 = 5;
    /// How many nodes are asked at the same time where the keys are.
    const ASKED_AT_ONCE: usize = 3;
    /// The shortest time between two looks.
    const PAUSE: Duration = Duration::from_millis(100);

    pub(super) fn new(seeds: &[String], access: Access) -> Result<Self, RedisStoreError> {
        for seed in seeds {
            access.server(seed)?;
        }
        Ok(Self {
            seeds: seeds.iter().map(|seed| seed.as_str().into()).collect(),
            access,
            state: Mutex::default(),
        })
    }

    /// Sends the command to the node that has the key, and follows where it is sent on.
    pub(super) async fn send(
        self: &Arc<Self>,
        key: &Key,
        sending: Sending<'_>,
        by: Instant,
    ) -> Result<Reply, RedisStoreError> {
        let slot = slot_of(key.as_str());
        let mut node = self.owner(slot, by).await?;
        let mut asking = false;
        let mut redirects = 0;
        loop {
            let sending = Sending { asking, ..sending };
            let error = match self.node(&node)?.send(sending, by).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            redirects += 1;
            if redirects > Self::MOST_REDIRECTS {
                return Err(error);
            }
            // Neither of the two was executed.
            match error.redirect(&node) {
                Some(Redirect::Ask(to)) => (node, asking) = (to, true),
                Some(Redirect::Moved(to)) => {
                    self.moved(slot, &to);
                    (node, asking) = (to, false);
                }
                None if may_be_elsewhere(&error) => {
                    let look = self.look();
                    if error.may_have_landed() && !error.is_broken() {
                        return Err(error);
                    }
                    if let Some(look) = look {
                        look.outcome(by).await;
                    }
                    // Whether a command that may have landed is repeated is decided elsewhere.
                    match self.known_owner(slot) {
                        Some(owner) if owner != node && !error.may_have_landed() => {
                            (node, asking) = (owner, false);
                        }
                        _ => return Err(error),
                    }
                }
                None => return Err(error),
            }
        }
    }

    /// The node that has the slot.
    async fn owner(self: &Arc<Self>, slot: u16, by: Instant) -> Result<Arc<str>, RedisStoreError> {
        if let Some(owner) = self.known_owner(slot) {
            return Ok(owner);
        }
        self.known(by).await?;
        self.known_owner(slot)
            .ok_or_else(|| RedisStoreError::unreachable(format!("no node has the slot {slot}")))
    }

    /// Waits until it is known where keys are.
    pub(super) async fn known(self: &Arc<Self>, by: Instant) -> Result<(), RedisStoreError> {
        loop {
            let Some(look) = self.look() else {
                if self.state.lock().slots.is_some() {
                    return Ok(());
                }
                // The last look was in vain, and just now.
                tokio::time::sleep_until(by.min(Instant::now() + Self::PAUSE)).await;
                if Instant::now() >= by {
                    return Err(self.too_late());
                }
                continue;
            };
            if let Some(outcome) = look.outcome(by).await {
                return outcome;
            }
            tokio::task::yield_now().await;
            if Instant::now() >= by {
                return Err(self.too_late());
            }
        }
    }

    fn too_late(&self) -> RedisStoreError {
        RedisStoreError::timed_out(false, format!("still looking for the nodes of {self:?}"))
    }

    fn known_owner(&self, slot: u16) -> Option<Arc<str>> {
        self.state.lock().slots.as_ref()?.owner(slot).cloned()
    }

    /// The connection to a node.
    fn node(&self, address: &Arc<str>) -> Result<Arc<Own>, RedisStoreError> {
        let mut state = self.state.lock();
        if let Some(own) = state.nodes.get(address) {
            return Ok(Arc::clone(own));
        }
        let server = Box::new(self.access.named(address)?);
        let own = Arc::new(Own::new(Target::Server(server)));
        state.nodes.insert(Arc::clone(address), Arc::clone(&own));
        Ok(own)
    }

    fn moved(self: &Arc<Self>, slot: u16, to: &Arc<str>) {
        if let Some(slots) = &mut self.state.lock().slots {
            slots.moved(slot, Arc::clone(to));
        }
        // Others have moved too, most likely.
        self.look();
    }

    /// Starts to look where the keys are, if nobody does; `None` if somebody just has.
    fn look(self: &Arc<Self>) -> Option<Attempt<()>> {
        let mut state = self.state.lock();
        if let Some(look) = &state.look
            && look.goes_on()
        {
            return Some(look.clone());
        }
        if state.looked.is_some_and(|at| at.elapsed() < Self::PAUSE) {
            return None;
        }
        let (look, looking) = Attempt::new(2 * self.access.connect_timeout);
        state.look = Some(look.clone());
        tokio::spawn(Arc::clone(self).ask_around(looking));
        Some(look)
    }

    async fn ask_around(self: Arc<Self>, looking: Attempting<()>) {
        let answer = self.first_answer().await;
        {
            let mut state = self.state.lock();
            // Another may have taken this one's place, if it was held up.
            let current = state.look.as_ref();
            if !current.is_some_and(|look| look.is_of(&looking)) {
                return;
            }
            state.look = None;
            state.looked = Some(Instant::now());
        }
        looking.tell(answer.map(|slots| self.learn(slots)));
    }

    fn learn(&self, slots: Slots) {
        let mut state = self.state.lock();
        let known: BTreeSet<_> = slots.nodes().chain(&self.seeds).cloned().collect();
        state.nodes.retain(|address, _| known.contains(address));
        state.slots = Some(slots);
    }

    /// Asks the nodes, a few at a time and in any order, until one answers.
    async fn first_answer(&self) -> Result<Slots, RedisStoreError> {
        let by = Instant::now() + self.access.connect_timeout;
        let mut addresses: Vec<_> = {
            let state = self.state.lock();
            let known = state.slots.iter().flat_map(Slots::nodes);
            let all: BTreeSet<_> = known.chain(&self.seeds).cloned().collect();
            all.into_iter().collect()
        };
        addresses.sort_by_cached_key(|_| getrandom::u32().unwrap_or(0));
        let mut answers = stream::iter(addresses)
            .map(|address| self.ask(address, by))
            .buffer_unordered(Self::ASKED_AT_ONCE);
        let mut trouble = None;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(slots) => return Ok(slots),
                Err(error) => trouble = Some(error),
            }
        }
        Err(trouble.unwrap_or_else(|| RedisStoreError::unreachable("no node was asked")))
    }

    async fn ask(&self, address: Arc<str>, by: Instant) -> Result<Slots, RedisStoreError> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let reply = self
            .node(&address)?
            .send(Sending::plain(&|_| command.clone()), by)
            .await;
        let reply = reply.map_err(RedisStoreError::before_sending)?;
        Slots::read(reply.value, &address).ok_or_else(|| {
            RedisStoreError::bad_reply(false, format!("{address} knows of no cluster"))
        })
    }

    /// The primaries, and what is known of the others.
    pub(super) fn primaries(&self) -> Vec<(Arc<str>, Arc<Own>)> {
        let addresses: BTreeSet<_> = {
            let state = self.state.lock();
            let slots = state.slots.as_ref();
            slots
                .into_iter()
                .flat_map(Slots::primaries)
                .cloned()
                .collect()
        };
        let with_connection = |address: Arc<str>| {
            let own = self.node(&address).ok()?;
            Some((address, own))
        };
        addresses.into_iter().filter_map(with_connection).collect()
    }

    /// How many slots nobody has, and whether there are replicas.
    pub(super) fn shape(&self) -> Option<(u32, bool)> {
        let state = self.state.lock();
        let slots = state.slots.as_ref()?;
        Some((slots.uncovered(), slots.has_replicas()))
    }
}

/// Whether another node may have taken the place of the one that gave this error.
fn may_be_elsewhere(error: &RedisStoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::Unreachable | StoreErrorKind::TimedOut | StoreErrorKind::ReadOnly
    )
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the cluster at {}", self.seeds.join(","))
    }
}
