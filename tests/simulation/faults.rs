//! What happens to processes and to the store as a whole.

use std::sync::Arc;

use tower_webhook_dedup::Operation;

use crate::{
    log::{Pid, What},
    plan::{Fault, Millis, Moment, When},
    server::Server,
    world::{Due, Order, World},
};

impl World {
    /// Plans what happens at a moment known beforehand.
    pub(crate) fn plan(&self, n: usize, fault: &Fault) {
        let at = match fault {
            Fault::Outage { from: at, .. }
            | Fault::Full { from: at, .. }
            | Fault::Forget { at }
            | Fault::RollBack { at, .. }
            | Fault::Drain { at, .. }
            | Fault::Freeze {
                when: When::At(at), ..
            }
            | Fault::Kill {
                when: When::At(at), ..
            } => *at,
            // With a call.
            _ => return,
        };
        let order = Order {
            at: at.max(1),
            pid: None,
            event: 0,
            what: (0, n as u64, 0),
        };
        self.at(order, Due::Fault(fault.clone()));
    }

    /// A call has come so far: what is to happen with it does.
    pub(crate) fn trigger(
        self: &Arc<Self>,
        pid: Pid,
        event: usize,
        operation: Operation,
        n: u64,
        moment: Moment,
    ) {
        for fault in &self.plan.faults {
            let (Fault::Freeze { when, process, .. } | Fault::Kill { when, process, .. }) = fault
            else {
                continue;
            };
            let When::Call {
                event: of,
                operation: kind,
                n: nth,
                moment: at,
            } = when
            else {
                continue;
            };
            if (*process, *of, *kind, *nth, *at) == (pid.slot, event, operation, n, moment) {
                self.strike(fault);
            }
        }
    }

    pub(crate) fn strike(self: &Arc<Self>, fault: &Fault) {
        match *fault {
            Fault::Call { .. } => {}
            Fault::Outage { time, hangs, .. } => {
                self.state().outages.push(hangs);
                self.log(None, None, What::OutageBegan);
                self.later(time, 1, None, Due::OutageEnds(hangs));
            }
            Fault::Full { time, .. } => {
                self.state().full += 1;
                self.log(None, None, What::Filled);
                self.later(time, 4, None, Due::FullEnds);
            }
            Fault::Forget { .. } => {
                let mut state = self.state();
                state.model.forget_all();
                state.memory = state.memory.is_some().then(Default::default);
                drop(state);
                self.log(None, None, What::Forgot);
            }
            Fault::RollBack { by, .. } => {
                let to = self.now().saturating_sub(by);
                let mut state = self.state();
                state.model.roll_back(to);
                state.memory = None;
                drop(state);
                self.log(None, None, What::RolledBack);
            }
            Fault::Freeze { process, time, .. } => {
                let Some(pid) = self.with(process, |server| {
                    server.process.freeze().then_some(server.process.pid)
                }) else {
                    return;
                };
                self.log(Some(pid), None, What::Froze);
                self.later(time, 2, Some(pid), Due::Thaw(pid));
            }
            Fault::Kill { process, down, .. } => self.ends(process, down, What::Killed),
            Fault::Drain {
                process,
                limit,
                down,
                ..
            } => self.drain(process, limit, down),
        }
    }

    pub(crate) fn thaw(&self, pid: Pid) {
        let thawed = self.with(pid.slot, |server| {
            (server.process.pid == pid && server.process.thaw()).then_some(())
        });
        if thawed.is_some() {
            self.log(Some(pid), None, What::Thawed);
        }
    }

    /// The process is no more; another one takes its place after a while.
    pub(crate) fn ends(&self, slot: usize, down: Millis, how: What) {
        let Some(server) = self.state().servers[slot].take() else {
            return;
        };
        self.log(Some(server.process.pid), None, how);
        server.process.kill();
        drop(server);
        self.later(down.max(1), 3, None, Due::Boot(slot));
    }

    fn with<T>(&self, slot: usize, look: impl FnOnce(&Server) -> Option<T>) -> Option<T> {
        let state = self.state();
        state.servers[slot].as_ref().and_then(look)
    }

    fn later(&self, time: Millis, kind: usize, pid: Option<Pid>, due: Due) {
        let slot = match (&due, pid) {
            (Due::Boot(slot), _) => *slot,
            _ => 0,
        };
        let mut order = Order {
            at: self.now() + time,
            pid,
            event: slot,
            what: (kind, 0, 0),
        };
        // Of outages and freezes, several may end at once.
        while self.is_taken(&order) {
            order.what.1 += 1;
        }
        self.at(order, due);
    }
}
