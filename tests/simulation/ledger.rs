//! The facts of a world in the form in which invariants ask for them.

use std::collections::BTreeMap;

use tower_webhook_dedup::{Operation, Token};

use crate::{
    log::{Call, Fact, Held, How, Pid, Reply, What},
    plan::{Millis, Plan},
    policy::Policy,
};

pub(crate) struct Ledger<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) facts: &'a [Fact],
    pub(crate) runs: Vec<RunOf>,
    /// When, in time and in facts, a process was no more, and whether it was killed.
    pub(crate) ends: BTreeMap<Pid, (Millis, usize, bool)>,
    troubles: Vec<Span>,
    /// By slot, event, kind and number: when each call was sent.
    sent: BTreeMap<(usize, usize, usize, u64), Millis>,
}

/// One run of a handler. Places are indices into the facts.
#[derive(Clone, Debug)]
pub(crate) struct RunOf {
    pub(crate) run: u64,
    pub(crate) pid: Pid,
    pub(crate) event: usize,
    pub(crate) token: Option<Token>,
    pub(crate) protected: bool,
    pub(crate) began: usize,
    /// Where it ended, and how; `None`: with its process.
    pub(crate) ended: usize,
    pub(crate) how: Option<How>,
}

/// Something that excuses: who had it, and from when to when.
#[derive(Clone, Debug)]
struct Span {
    pid: Option<Pid>,
    event: Option<usize>,
    operation: Option<Operation>,
    from: Millis,
    to: Millis,
    name: &'static str,
}

impl<'a> Ledger<'a> {
    pub(crate) fn new(plan: &'a Plan, facts: &'a [Fact]) -> Self {
        let mut ledger = Self {
            plan,
            facts,
            runs: Vec::new(),
            ends: BTreeMap::new(),
            troubles: Vec::new(),
            sent: BTreeMap::new(),
        };
        for (n, fact) in facts.iter().enumerate() {
            ledger.add(n, fact);
        }
        ledger
    }

    fn add(&mut self, n: usize, fact: &Fact) {
        let (at, event) = (fact.at, fact.event);
        let everywhere = |name| Span {
            pid: None,
            event: None,
            operation: None,
            from: at,
            to: at,
            name,
        };
        match &fact.what {
            What::Forgot => self.troubles.push(everywhere("the store lost its memory")),
            What::RolledBack => self.troubles.push(everywhere("the store fell back")),
            _ => {}
        }
        let Some(pid) = fact.pid else { return };
        match &fact.what {
            What::Killed | What::Exited => {
                let killed = matches!(fact.what, What::Killed);
                self.ends.insert(pid, (at, n, killed));
                self.open_until(pid, at);
                let name = if killed {
                    "the process was killed"
                } else {
                    "the process ended"
                };
                let (pid, to) = (Some(pid), Millis::MAX);
                self.troubles.push(Span {
                    pid,
                    to,
                    ..everywhere(name)
                });
                for run in self.runs.iter_mut().filter(|run| Some(run.pid) == pid) {
                    run.ended = run.ended.min(n);
                }
            }
            What::Froze => {
                let (pid, to) = (Some(pid), Millis::MAX);
                self.troubles.push(Span {
                    pid,
                    to,
                    ..everywhere("the process was frozen")
                });
            }
            What::Thawed => self.open_until(pid, at),
            What::Called { call, trouble } => {
                self.sent.insert(key(pid, event, call), at);
                if trouble.is_some() {
                    self.trouble(pid, event, call, at);
                }
            }
            What::Bounced { call } => {
                let sent = self.sent_at(pid, event, call);
                self.trouble(pid, event, call, sent);
                self.reach(pid, event, call, at);
            }
            What::Landed { call, .. } | What::Replied { call, .. } => {
                self.reach(pid, event, call, at);
            }
            What::Began {
                run,
                token,
                protected,
                ..
            } => self.runs.push(RunOf {
                run: *run,
                pid,
                event: event.unwrap(),
                token: *token,
                protected: *protected,
                began: n,
                ended: usize::MAX,
                how: None,
            }),
            What::Ended { run, how } => {
                let ended = self.runs.iter_mut().find(|it| it.run == *run).unwrap();
                (ended.ended, ended.how) = (n, Some(*how));
            }
            _ => {}
        }
    }

    fn trouble(&mut self, pid: Pid, event: Option<usize>, call: &Call, from: Millis) {
        self.troubles.push(Span {
            pid: Some(pid),
            event,
            operation: Some(call.operation),
            from,
            to: from + self.policy(pid).store_timeout,
            name: "a store call went wrong",
        });
    }

    /// Trouble with a call lasts until the last of it.
    fn reach(&mut self, pid: Pid, event: Option<usize>, call: &Call, at: Millis) {
        let sent = self.sent_at(pid, event, call);
        for span in &mut self.troubles {
            let is_its = (span.pid, span.event, span.operation, span.from)
                == (Some(pid), event, Some(call.operation), sent);
            if is_its {
                span.to = span.to.max(at);
            }
        }
    }

    fn open_until(&mut self, pid: Pid, at: Millis) {
        for span in &mut self.troubles {
            if span.pid == Some(pid) && span.to == Millis::MAX {
                span.to = at;
            }
        }
    }

    /// The settings of this process, whose clock may go faster or slower.
    pub(crate) fn policy(&self, pid: Pid) -> Policy {
        self.plan.policy_of(pid.slot)
    }

    pub(crate) fn sent_at(&self, pid: Pid, event: Option<usize>, call: &Call) -> Millis {
        self.sent[&key(pid, event, call)]
    }

    pub(crate) fn at(&self, fact: usize) -> Millis {
        let last = self.facts.len() - 1;
        self.facts[fact.min(last)].at
    }

    /// What went wrong for a process and an event in this time.
    pub(crate) fn blame(
        &self,
        pid: Pid,
        event: usize,
        time: (Millis, Millis),
    ) -> Option<&'static str> {
        self.blame_of(pid, event, time, |_| true)
    }

    /// The same, where of calls only those of some kinds count.
    pub(crate) fn blame_of(
        &self,
        pid: Pid,
        event: usize,
        time: (Millis, Millis),
        counts: impl Fn(Operation) -> bool,
    ) -> Option<&'static str> {
        let found = self.troubles.iter().find(|span| {
            span.pid.is_none_or(|it| it == pid)
                && span.event.is_none_or(|it| it == event)
                && span.operation.is_none_or(&counts)
                && span.from <= time.1
                && time.0 <= span.to
        });
        found.map(|span| span.name)
    }

    /// Whether the store lost what it had between these facts.
    pub(crate) fn lost_between(&self, from: usize, to: usize) -> Option<&'static str> {
        self.facts[from..to]
            .iter()
            .find_map(|fact| match fact.what {
                What::Forgot => Some("the store lost its memory"),
                What::RolledBack => Some("the store fell back"),
                _ => None,
            })
    }

    /// The last moment at which something was wrong.
    pub(crate) fn last_trouble(&self) -> Millis {
        let troubles = self.troubles.iter().map(|span| match span.to {
            Millis::MAX => span.from,
            to => to,
        });
        let failed = |run: &&RunOf| run.how != Some(How::Succeeded);
        let failures = self
            .runs
            .iter()
            .filter(failed)
            .map(|run| self.at(run.ended));
        troubles.chain(failures).max().unwrap_or(0)
    }

    /// How long a process stood still in this time.
    pub(crate) fn frozen(&self, pid: Pid, from: Millis, to: Millis) -> Millis {
        let frozen = self
            .troubles
            .iter()
            .filter(|span| span.pid == Some(pid) && span.name == "the process was frozen");
        frozen
            .map(|span| span.to.min(to).saturating_sub(span.from.max(from)))
            .sum()
    }

    /// When the process goes on, if it stands still at this moment; this moment, if not.
    pub(crate) fn goes_on(&self, pid: Pid, at: Millis) -> Millis {
        let frozen = |span: &&Span| span.pid == Some(pid) && span.name == "the process was frozen";
        let mut goes_on = at;
        // It may freeze once more as soon as it goes on.
        while let Some(span) = self
            .troubles
            .iter()
            .filter(frozen)
            .find(|span| span.from <= goes_on && goes_on < span.to)
        {
            goes_on = span.to;
        }
        goes_on
    }

    /// Until when a lease lasts for all that its process has heard by this place. A reply that comes
    /// while the process stands still is heard when it goes on, and prolongs nothing that is over by
    /// then.
    pub(crate) fn deadline(
        &self,
        (pid, event, token): (Pid, usize, Token),
        before: usize,
    ) -> Option<Millis> {
        let lease = self.policy(pid).lease;
        let mut deadline = None;
        for fact in &self.facts[..before] {
            if (fact.pid, fact.event) != (Some(pid), Some(event)) {
                continue;
            }
            match &fact.what {
                What::Called { call, .. } if call.token == Some(token) && deadline.is_none() => {
                    deadline = Some(fact.at + lease);
                }
                What::Replied {
                    call,
                    reply: Some(Reply::Is(true)),
                } if call.token == Some(token) && call.operation == Operation::Renew => {
                    let renewed = self.sent_at(pid, fact.event, call) + lease;
                    let heard = self.goes_on(pid, fact.at);
                    deadline = deadline.map(|it| if heard < it { it.max(renewed) } else { it });
                }
                _ => {}
            }
        }
        deadline
    }

    /// The first run of the event that succeeded.
    pub(crate) fn success(&self, event: usize) -> Option<&RunOf> {
        let mut runs: Vec<_> = self.successes(event).collect();
        runs.sort_by_key(|run| run.ended);
        runs.first().copied()
    }

    pub(crate) fn successes(&self, event: usize) -> impl Iterator<Item = &RunOf> {
        let of = move |run: &&RunOf| run.event == event && run.how == Some(How::Succeeded);
        self.runs.iter().filter(of)
    }

    /// What landed for the event, in order.
    pub(crate) fn landed(&self, event: usize) -> impl DoubleEndedIterator<Item = Landed> + '_ {
        let facts = self.facts.iter().enumerate();
        facts.filter_map(move |(place, fact)| match fact.what {
            What::Landed {
                call,
                reply,
                holder,
                then,
            } if fact.event == Some(event) => Some(Landed {
                place,
                at: fact.at,
                pid: fact.pid?,
                call,
                reply,
                holder,
                then,
            }),
            _ => None,
        })
    }

    /// Where the token got hold of the event, before this place.
    pub(crate) fn acquisition(&self, event: usize, token: Token, before: usize) -> Option<Landed> {
        let mut landed = self.landed(event).filter(|it| it.place < before);
        landed.rfind(|it| {
            it.call.token == Some(token)
                && it.call.operation == Operation::Acquire
                && matches!(it.reply, Reply::Acquired(_))
                && it.holder != it.then
        })
    }
}

/// A call that reached the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landed {
    pub(crate) place: usize,
    pub(crate) at: Millis,
    pub(crate) pid: Pid,
    pub(crate) call: Call,
    pub(crate) reply: Reply,
    pub(crate) holder: Held,
    pub(crate) then: Held,
}

fn key(pid: Pid, event: Option<usize>, call: &Call) -> (usize, usize, usize, u64) {
    (pid.slot, event.unwrap(), call.operation as usize, call.n)
}
