//! One world: processes, senders, and one store, on one thread and one paused clock.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, atomic::Ordering},
    time::Duration,
};

use tokio::{
    runtime::Builder,
    sync::Notify,
    time::{Instant, sleep_until},
};
use tower_webhook_dedup::{MemoryStore, Token};

use crate::{
    log::{Fact, Held, Pid, What},
    model::Model,
    network::Message,
    plan::{Fault, Millis, Plan},
    server::Server,
};

pub(crate) struct World {
    pub(crate) plan: Plan,
    start: Instant,
    state: Mutex<State>,
    /// Something is due before what the pump sleeps for.
    sooner: Notify,
}

pub(crate) struct State {
    pub(crate) facts: Vec<Fact>,
    pub(crate) model: Model,
    /// The crate's own store in memory, asked the same; `None` where it cannot follow.
    pub(crate) memory: Option<MemoryStore>,
    /// For each outage, whether calls hang.
    pub(crate) outages: Vec<bool>,
    /// How often it is full.
    pub(crate) full: usize,
    pub(crate) servers: Vec<Option<Server>>,
    pub(crate) generations: Vec<u64>,
    /// How many calls of a kind a process made about an event.
    pub(crate) calls: BTreeMap<(usize, usize, usize), u64>,
    /// Tokens that were acquired, and whose runs have not begun.
    pub(crate) acquired: Vec<(Pid, usize, Token)>,
    /// The runs of each event so far, and of all.
    pub(crate) runs: Vec<usize>,
    pub(crate) run: u64,
    queue: BTreeMap<Order, Due>,
    /// Until then something is planned.
    busy_until: Millis,
}

/// What is due at one moment happens in an order that does not depend on chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    pub(crate) at: Millis,
    pub(crate) pid: Option<Pid>,
    pub(crate) event: usize,
    /// Tells those of one process and event apart.
    pub(crate) what: (usize, u64, u8),
}

pub(crate) enum Due {
    Message(Box<Message>),
    Fault(Fault),
    OutageEnds(bool),
    FullEnds,
    Thaw(Pid),
    Boot(usize),
}

/// More than any world needs that comes to rest.
const MOST_FACTS: usize = 100_000;

/// Plays the plan, and tells what happened.
pub(crate) fn play(plan: &Plan) -> Vec<Fact> {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::new(plan.clone());
        for slot in 0..plan.processes {
            world.boot(slot);
        }
        for (n, fault) in plan.faults.iter().enumerate() {
            world.plan(n, fault);
        }
        let pump = tokio::spawn(world.clone().pump());
        world.clone().live().await;
        pump.abort();
        let mut state = world.state();
        std::mem::take(&mut state.facts)
    })
}

impl State {
    /// The token that a run of this process which begins now is under: of those acquired, the one
    /// that the store knows, or else the oldest.
    pub(crate) fn take_token(&mut self, pid: Pid, event: usize, now: Millis) -> Option<Token> {
        let held = self.model.held(event, now);
        let is_its = |it: &(Pid, usize, Token)| (it.0, it.1) == (pid, event);
        let known = |it: &(Pid, usize, Token)| is_its(it) && held == Held::Running(it.2);
        let mut acquired = self.acquired.iter();
        let found = acquired
            .position(known)
            .or_else(|| self.acquired.iter().position(is_its))?;
        Some(self.acquired.remove(found).2)
    }
}

impl World {
    fn new(plan: Plan) -> Arc<Self> {
        let (events, processes) = (plan.events.len(), plan.processes);
        let clock = plan.policy.store_clock;
        let state = State {
            facts: Vec::new(),
            model: Model::new(events, clock, plan.sabotaged),
            memory: (clock == 1_000).then(MemoryStore::new),
            outages: Vec::new(),
            full: 0,
            servers: (0..processes).map(|_| None).collect(),
            generations: vec![0; processes],
            calls: BTreeMap::new(),
            acquired: Vec::new(),
            runs: vec![0; events],
            run: 0,
            queue: BTreeMap::new(),
            busy_until: 0,
        };
        Arc::new(Self {
            plan,
            start: Instant::now(),
            state: Mutex::new(state),
            sooner: Notify::new(),
        })
    }

    pub(crate) fn now(&self) -> Millis {
        self.start.elapsed().as_millis() as Millis
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn log(&self, pid: Option<Pid>, event: Option<usize>, what: What) {
        let at = self.now();
        self.state().facts.push(Fact {
            at,
            pid,
            event,
            what,
        });
    }

    /// Has this happen at its time, which is not now.
    pub(crate) fn at(&self, order: Order, due: Due) {
        let mut state = self.state();
        if !matches!(due, Due::Message(_)) {
            state.busy_until = state.busy_until.max(order.at);
        }
        let before = state.queue.insert(order, due);
        assert!(before.is_none(), "two things in one place: {order:?}");
        if state
            .queue
            .first_key_value()
            .is_some_and(|(first, _)| *first == order)
        {
            self.sooner.notify_one();
        }
    }

    pub(crate) fn is_taken(&self, order: &Order) -> bool {
        self.state().queue.contains_key(order)
    }

    /// Does what is due, moment by moment. What one moment brings is due at a later one, so that
    /// all that is due now is known.
    async fn pump(self: Arc<Self>) {
        loop {
            let next = self
                .state()
                .queue
                .first_key_value()
                .map(|(order, _)| order.at);
            match next {
                Some(at) if at <= self.now() => {
                    let due = self.state().queue.pop_first();
                    if let Some((order, due)) = due {
                        self.happens(order, due);
                    }
                }
                Some(at) => {
                    let at = sleep_until(self.start + Duration::from_millis(at));
                    tokio::select! { biased; () = at => {}, () = self.sooner.notified() => {} }
                }
                None => self.sooner.notified().await,
            }
        }
    }

    fn happens(self: &Arc<Self>, order: Order, due: Due) {
        match due {
            Due::Message(message) => self.deliver(order, *message),
            Due::Fault(fault) => self.strike(&fault),
            Due::OutageEnds(hangs) => {
                let mut state = self.state();
                let ended = state.outages.iter().position(|it| *it == hangs);
                ended.map(|n| state.outages.remove(n));
                drop(state);
                self.log(None, None, What::OutageEnded);
            }
            Due::FullEnds => {
                self.state().full -= 1;
                self.log(None, None, What::HasRoom);
            }
            Due::Thaw(pid) => self.thaw(pid),
            Due::Boot(slot) => self.boot(slot),
        }
    }

    async fn live(self: Arc<Self>) {
        let senders: Vec<_> = (0..self.plan.events.len())
            .map(|event| tokio::spawn(self.clone().sender(event)))
            .collect();
        for sender in senders {
            sender.await.unwrap();
        }
        self.come_to_rest().await;

        // Nobody has anything to do any more.
        self.log(None, None, What::AtRest);
        self.pass(2 * self.plan.slowest().lease + 60_000).await;
        let servers: Vec<_> = self.state().servers.iter_mut().map(Option::take).collect();
        for server in servers.into_iter().flatten() {
            let process = server.process.clone();
            drop(server);
            self.pass(5_000).await;
            self.left(
                process.pid,
                process.futures(),
                "after its layer was dropped",
            );
            process.kill();
        }
    }

    /// Until no process has anything to do but to wait for work.
    async fn come_to_rest(&self) {
        let policy = &self.plan.slowest();
        let limit = policy.standby_age + policy.run_limit + 5 * policy.lease + 900_000;
        let mut end = None;
        loop {
            let (busy_until, facts, last) = {
                let state = self.state();
                (
                    state.busy_until,
                    state.facts.len(),
                    state.facts.last().map_or(0, |it| it.at),
                )
            };
            let end = *end
                .get_or_insert(self.now() + limit)
                .max(&mut (busy_until + limit));
            let busy = self.busy();
            // One task of a process may be its heartbeat, or something that does something soon.
            let quiet = last + policy.lease.max(10_000) < self.now();
            if self.now() > busy_until && busy.is_empty() && quiet {
                return;
            }
            if self.now() > end || facts > MOST_FACTS {
                for (pid, tasks) in busy {
                    self.left(pid, tasks, "when nothing was to be done any more");
                }
                return;
            }
            self.pass(policy.lease.max(busy_until.saturating_sub(self.now())))
                .await;
        }
    }

    fn busy(&self) -> Vec<(Pid, usize)> {
        let state = self.state();
        let servers = state.servers.iter().flatten();
        let processes = servers.map(|server| &server.process);
        // One of its tasks is the heartbeat.
        let busy = processes.filter(|it| it.futures() > 1 || it.runs.load(Ordering::Relaxed) > 0);
        busy.map(|it| (it.pid, it.futures())).collect()
    }

    fn left(&self, pid: Pid, tasks: usize, when: &'static str) {
        if tasks > 0 {
            self.log(Some(pid), None, What::Left { tasks, when });
        }
    }

    pub(crate) async fn pass(&self, time: Millis) {
        tokio::time::sleep(Duration::from_millis(time)).await;
    }
}
