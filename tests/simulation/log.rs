//! What happened in a world: the trace that people read, and the ledger that invariants are
//! checked on. Written by the simulation itself; what the layer reports is in it as just that.

use std::fmt;

use tower_webhook_dedup::{LostReason, Operation, Token};

use crate::plan::{Millis, Moment, Trouble};

/// One process from boot to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pid {
    pub(crate) slot: usize,
    pub(crate) generation: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Fact {
    pub(crate) at: Millis,
    pub(crate) pid: Option<Pid>,
    pub(crate) event: Option<usize>,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Booted,
    Killed,
    Froze,
    Thawed,
    Draining,
    Drained {
        complete: bool,
    },
    /// The process ended by itself.
    Exited,
    OutageBegan,
    OutageEnded,
    Filled,
    HasRoom,
    Forgot,
    RolledBack,

    /// A delivery reaches a process.
    Arrived {
        delivery: u64,
    },
    Unreachable {
        delivery: u64,
    },
    Answered {
        delivery: u64,
        status: u16,
        outcome: String,
    },
    HungUp {
        delivery: u64,
    },
    /// The connection broke off: the handler panicked, or the process died.
    Broke {
        delivery: u64,
    },

    Called {
        call: Call,
        trouble: Option<Trouble>,
    },
    Landed {
        call: Call,
        reply: Reply,
        holder: Held,
        then: Held,
    },
    /// Nobody at home.
    Bounced {
        call: Call,
    },
    Replied {
        call: Call,
        reply: Option<Reply>,
    },

    Began {
        run: u64,
        token: Option<Token>,
        protected: bool,
        attempt: u32,
    },
    /// The handler learned that its lease is lost.
    Told {
        run: u64,
    },
    Ended {
        run: u64,
        how: How,
    },

    Lost {
        reason: LostReason,
    },
    Emitted(&'static str),
    /// Tasks that were not over at the end.
    Left {
        tasks: usize,
        when: &'static str,
    },
    /// Nobody has anything to do any more.
    AtRest,
    /// The memory store answered as the model did not.
    Differs {
        memory: String,
        model: String,
    },
}

/// One call to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) operation: Operation,
    pub(crate) n: u64,
    pub(crate) token: Option<Token>,
}

/// What the store says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Acquired(u32),
    InFlight,
    Done,
    Is(bool),
    Found(Held),
}

/// What stands under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Nothing,
    Running(Token),
    Failed(Token),
    Done(Token),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Succeeded,
    Failed,
    Errored,
    Panicked,
    /// Its future was dropped.
    Dropped,
}

impl Fact {
    /// Facts of the same moment are independent unless they are about the same process and event;
    /// which of them is written first is chance.
    pub(crate) fn order(&self) -> impl Ord + use<> {
        (self.at, self.pid, self.event)
    }
}

/// The facts in order, one line each. Tokens are named by who made them, and which one it was:
/// they are random.
pub(crate) fn render(facts: &[Fact]) -> String {
    let mut sorted: Vec<_> = facts.iter().collect();
    sorted.sort_by_key(|fact| fact.order());
    let mut names = Names::default();
    let mut text = String::new();
    for fact in sorted {
        if let (Some(pid), Some(event), What::Called { call, .. }) =
            (fact.pid, fact.event, &fact.what)
        {
            names.learn(pid, event, call);
        }
        let pid = fact.pid.map_or(String::from("-"), |pid| pid.to_string());
        let event = fact
            .event
            .map_or(String::from("-"), |event| format!("e{event}"));
        let (seconds, millis) = (fact.at / 1_000, fact.at % 1_000);
        let what = names.tell(&fact.what);
        text += &format!("{seconds:>7}.{millis:03} {pid:<4} {event:<3} {what}\n");
    }
    text
}

#[derive(Default)]
struct Names(Vec<(Token, String)>);

impl Names {
    fn learn(&mut self, pid: Pid, event: usize, call: &Call) {
        if let (Operation::Acquire, Some(token)) = (call.operation, call.token) {
            self.0.push((token, format!("{pid}/e{event}#{}", call.n)));
        }
    }

    fn name(&self, token: Token) -> &str {
        let found = self.0.iter().find(|(it, _)| *it == token);
        found.map_or("nobody's", |(_, name)| name)
    }

    fn held(&self, held: Held) -> String {
        match held {
            Held::Nothing => "nothing".into(),
            Held::Running(token) => format!("running {}", self.name(token)),
            Held::Failed(token) => format!("failed {}", self.name(token)),
            Held::Done(token) => format!("done {}", self.name(token)),
        }
    }

    fn call(&self, call: &Call) -> String {
        let Call {
            operation,
            n,
            token,
        } = *call;
        let token = token.map_or(String::new(), |token| format!(" {}", self.name(token)));
        format!("{operation} {n}{token}")
    }

    fn reply(&self, reply: &Reply) -> String {
        match reply {
            Reply::Acquired(attempt) => format!("acquired, attempt {attempt}"),
            Reply::InFlight => "in flight".into(),
            Reply::Done => "done".into(),
            Reply::Is(answer) => answer.to_string(),
            Reply::Found(held) => self.held(*held),
        }
    }

    fn tell(&self, what: &What) -> String {
        match what {
            What::Booted => "boots".into(),
            What::Killed => "is killed".into(),
            What::Froze => "freezes".into(),
            What::Thawed => "goes on".into(),
            What::Draining => "drains".into(),
            What::Drained { complete: true } => "has drained".into(),
            What::Drained { complete: false } => "has not drained in time".into(),
            What::Exited => "ends".into(),
            What::OutageBegan => "the store is away".into(),
            What::OutageEnded => "the store is back".into(),
            What::Filled => "the store is full".into(),
            What::HasRoom => "the store has room".into(),
            What::Forgot => "the store loses its memory".into(),
            What::RolledBack => "the store falls back to an earlier state".into(),
            What::Arrived { delivery } => format!("delivery {delivery} arrives"),
            What::Unreachable { delivery } => format!("delivery {delivery} finds nobody"),
            What::Answered {
                delivery,
                status,
                outcome,
            } => {
                format!("delivery {delivery} is answered {status} {outcome}")
            }
            What::HungUp { delivery } => format!("delivery {delivery}: the sender hangs up"),
            What::Broke { delivery } => format!("delivery {delivery}: the connection breaks"),
            What::Called {
                call,
                trouble: None,
            } => self.call(call),
            What::Called {
                call,
                trouble: Some(trouble),
            } => {
                format!("{}: trouble: {trouble:?}", self.call(call))
            }
            What::Landed {
                call,
                reply,
                holder,
                then,
            } => format!(
                "  {} lands: {} ({}{})",
                self.call(call),
                self.reply(reply),
                self.held(*holder),
                if holder == then {
                    String::new()
                } else {
                    format!(" → {}", self.held(*then))
                },
            ),
            What::Bounced { call } => format!("  {} does not get through", self.call(call)),
            What::Replied { call, reply } => format!(
                "  {} → {}",
                self.call(call),
                reply.map_or(String::from("error"), |reply| self.reply(&reply)),
            ),
            What::Began {
                run,
                token,
                protected,
                attempt,
            } => {
                let token = token.map_or("no token", |token| self.name(token));
                let how = if *protected {
                    "under"
                } else {
                    "unprotected, with"
                };
                format!("run {run} begins {how} {token}, attempt {attempt}")
            }
            What::Told { run } => format!("run {run} is told that its lease is lost"),
            What::Ended { run, how } => format!("run {run}: {how:?}"),
            What::Lost { reason } => format!("reports the event as lost: {reason}"),
            What::Emitted(name) => format!("reports {name}"),
            What::Left { tasks, when } => format!("{tasks} tasks are left {when}"),
            What::AtRest => "all is at rest".into(),
            What::Differs { memory, model } => {
                format!("the memory store differs: {memory}, the model: {model}")
            }
        }
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.slot)?;
        match self.generation {
            0 => Ok(()),
            n => write!(f, ".{n}"),
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sent => "is sent",
            Self::Landed => "lands",
            Self::Replied => "is answered",
        })
    }
}
