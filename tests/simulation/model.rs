//! What a lease store is, in few words: the rules of `LeaseStore`, one event a slot, one step a
//! call.

use std::time::Duration;

use tower_webhook_dedup::{Operation, Record, Release, Token};

use crate::{
    log::{Held, Reply},
    plan::Millis,
};

/// A call with all that it carries.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Acquire {
        token: Token,
        lease: Duration,
    },
    Renew {
        token: Token,
        lease: Duration,
    },
    Complete {
        token: Token,
        record: Record,
        retention: Duration,
    },
    Release {
        token: Token,
        release: Release,
        keep: Duration,
    },
    Inspect,
    Forget {
        force: bool,
    },
}

impl Command {
    pub(crate) const fn operation(&self) -> Operation {
        match self {
            Self::Acquire { .. } => Operation::Acquire,
            Self::Renew { .. } => Operation::Renew,
            Self::Complete { .. } => Operation::Complete,
            Self::Release { .. } => Operation::Release,
            Self::Inspect => Operation::Inspect,
            Self::Forget { .. } => Operation::Forget,
        }
    }

    pub(crate) const fn token(&self) -> Option<Token> {
        match self {
            Self::Acquire { token, .. }
            | Self::Renew { token, .. }
            | Self::Complete { token, .. }
            | Self::Release { token, .. } => Some(*token),
            Self::Inspect | Self::Forget { .. } => None,
        }
    }
}

#[derive(Clone, Debug)]
struct Slot {
    state: State,
    /// By the store's clock.
    until: Millis,
}

#[derive(Clone, Debug)]
enum State {
    Running {
        token: Token,
        attempt: u32,
        lease: Duration,
    },
    Failed {
        token: Token,
        attempts: u32,
    },
    Done {
        token: Token,
        record: Record,
    },
}

/// The entries of all events, and how they were before each change.
#[derive(Debug)]
pub(crate) struct Model {
    slots: Vec<Option<Slot>>,
    before: Vec<(Millis, usize, Option<Slot>)>,
    /// Its clock, in thousandths of the world's.
    clock: u64,
    /// It gives a lease to everybody who asks.
    sabotaged: bool,
}

/// What the caller is told.
pub(crate) struct Told {
    pub(crate) reply: Reply,
    pub(crate) record: Option<Record>,
    pub(crate) at_most: Duration,
}

impl From<Reply> for Told {
    fn from(reply: Reply) -> Self {
        Self {
            reply,
            record: None,
            at_most: Duration::ZERO,
        }
    }
}

impl Model {
    pub(crate) fn new(events: usize, clock: u64, sabotaged: bool) -> Self {
        Self {
            slots: vec![None; events],
            before: Vec::new(),
            clock,
            sabotaged,
        }
    }

    /// What stands under the event, for this moment of the world.
    pub(crate) fn held(&mut self, event: usize, at: Millis) -> Held {
        match self.state(event, at) {
            None => Held::Nothing,
            Some(State::Running { token, .. }) => Held::Running(token),
            Some(State::Failed { token, .. }) => Held::Failed(token),
            Some(State::Done { token, .. }) => Held::Done(token),
        }
    }

    pub(crate) fn forget_all(&mut self) {
        self.slots.fill(None);
        self.before.clear();
    }

    /// Back to how it was at that moment.
    pub(crate) fn roll_back(&mut self, to: Millis) {
        while let Some((_, event, slot)) = self.before.pop_if(|(at, ..)| *at > to) {
            self.slots[event] = slot;
        }
    }

    pub(crate) fn step(&mut self, event: usize, command: &Command, at: Millis) -> Told {
        let state = self.state(event, at);
        match command {
            Command::Acquire { token, lease } => self.acquire(event, *token, *lease, state, at),
            Command::Renew { token, lease } => {
                let renewed = match state {
                    Some(State::Running { token: holder, .. }) if holder == *token => state,
                    Some(_) => return Reply::Is(false).into(),
                    None => Some(State::Running {
                        token: *token,
                        attempt: 1,
                        lease: *lease,
                    }),
                };
                self.put(event, renewed, *lease, at);
                Reply::Is(true).into()
            }
            Command::Complete {
                token,
                record,
                retention,
            } => {
                let holder = match state {
                    Some(State::Running { token, .. } | State::Done { token, .. }) => Some(token),
                    _ => None,
                };
                if holder.is_some_and(|holder| holder != *token) {
                    return Reply::Is(false).into();
                }
                let done = State::Done {
                    token: *token,
                    record: record.clone(),
                };
                self.put(event, Some(done), *retention, at);
                Reply::Is(true).into()
            }
            Command::Release {
                token,
                release,
                keep,
            } => {
                let attempt = match state {
                    Some(State::Running {
                        token: holder,
                        attempt,
                        ..
                    }) if holder == *token => attempt,
                    _ => return Reply::Is(false).into(),
                };
                let attempts = match release {
                    Release::Failed { .. } => attempt,
                    _ => attempt - 1,
                };
                let failed = State::Failed {
                    token: *token,
                    attempts,
                };
                self.put(event, (attempts > 0).then_some(failed), *keep, at);
                Reply::Is(true).into()
            }
            Command::Inspect => {
                let told = Told::from(Reply::Found(self.held(event, at)));
                match state {
                    Some(State::Done { record, .. }) => Told {
                        record: Some(record),
                        ..told
                    },
                    _ => told,
                }
            }
            Command::Forget { force } => {
                let kept = !force && matches!(state, Some(State::Running { .. }));
                if state.is_some() && !kept {
                    self.put(event, None, Duration::ZERO, at);
                }
                Reply::Is(state.is_some() && !kept).into()
            }
        }
    }

    fn acquire(
        &mut self,
        event: usize,
        token: Token,
        lease: Duration,
        state: Option<State>,
        at: Millis,
    ) -> Told {
        let attempt = match state {
            Some(State::Running {
                token: holder,
                attempt,
                ..
            }) if holder == token => {
                return Reply::Acquired(attempt).into();
            }
            Some(State::Running { lease, .. }) if !self.sabotaged => {
                return Told {
                    at_most: lease,
                    ..Reply::InFlight.into()
                };
            }
            Some(State::Done { record, .. }) => {
                return Told {
                    record: Some(record),
                    ..Reply::Done.into()
                };
            }
            Some(State::Failed { attempts, .. }) => attempts + 1,
            Some(State::Running { .. }) | None => 1,
        };
        self.put(
            event,
            Some(State::Running {
                token,
                attempt,
                lease,
            }),
            lease,
            at,
        );
        Reply::Acquired(attempt).into()
    }

    fn state(&self, event: usize, at: Millis) -> Option<State> {
        let slot = self.slots[event].as_ref()?;
        (self.now(at) < slot.until).then(|| slot.state.clone())
    }

    fn put(&mut self, event: usize, state: Option<State>, time: Duration, at: Millis) {
        let until = self.now(at) + time.as_millis() as Millis;
        let slot = state.map(|state| Slot { state, until });
        let before = std::mem::replace(&mut self.slots[event], slot);
        self.before.push((at, event, before));
    }

    fn now(&self, at: Millis) -> Millis {
        at * self.clock / 1_000
    }
}
