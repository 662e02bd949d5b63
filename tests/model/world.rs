//! Two owners, one key, a network that repeats and loses, and a clock.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

use super::protocol::{Answer, Command, LEASE, Stored, Time, Token};

/// What may happen besides the normal course of things, and how far to look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    /// How often the event is delivered to each.
    pub(crate) attempts: [u8; 2],
    pub(crate) end: Time,
    /// A process may end at any moment.
    pub(crate) crashes: bool,
    /// A process may stand still past its lease, and go on without noticing.
    pub(crate) freezes: bool,
    /// The store may lose what it keeps, once.
    pub(crate) amnesia: bool,
    /// A deliberate bug, which the check has to find.
    pub(crate) bug: Option<Bug>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The lease is counted from the reply, not from before the first send.
    DeadlineFromReply,
    /// Release does not compare the token.
    ReleaseOfAnybody,
    /// Complete does not compare the token.
    CompleteOverAnything,
    /// An event is recorded when its run begins.
    CompleteBeforeRun,
    /// The repeat of an acquire does not know its own token.
    StrangeToItself,
    /// A failed completion is released as if the run had failed.
    ReleaseAfterComplete,
    /// Renew sets the lease, whoever holds it.
    RenewOverAnything,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    now: Time,
    stored: Stored,
    owners: [Owner; 2],
    /// Sent, and whether it has landed once. Any of them may never land, or land late, or once more.
    commands: BTreeMap<Sent, bool>,
    /// Those that somebody still waits for.
    replies: BTreeSet<(Sent, Answer)>,
    forgot: bool,
    /// For the properties only: whose handler has completed, and what must never happen.
    completed: BTreeSet<Token>,
    breach: Option<Breach>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sent {
    token: Token,
    command: Command,
    at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Breach {
    /// What one token held, another overwrote.
    Overwritten,
    /// A completed event became anything else.
    Undone,
    /// A run whose handler had completed was released as failed, where nobody else failed.
    Denied,
    /// A run began although the event was completed.
    RunAfterDone,
    /// An owner was told that another is running, and it was itself.
    ToldOfItself,
}

/// One process, with the delivery that it is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Owner {
    attempt: u8,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Acquiring {
        sent: Time,
    },
    Running {
        deadline: Time,
    },
    /// The handler goes on, but was told that the lease is lost.
    Lost,
    Completing,
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Begin(u8),
    /// The command takes effect; a client or a network may make it do so `again` later.
    Land {
        sent: Sent,
        again: bool,
    },
    /// A reply that is never delivered is lost.
    Deliver(Sent, Answer),
    /// The acquire took too long: the request is answered, the token released.
    GiveUp(u8),
    Renew(u8),
    Succeed(u8),
    Fail(u8),
    Crash(u8),
    Forget,
    Tick,
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let owner = Owner {
            attempt: 0,
            phase: Phase::Idle,
        };
        vec![State {
            now: 0,
            stored: Stored::Nothing,
            owners: [owner; 2],
            commands: BTreeMap::new(),
            replies: BTreeSet::new(),
            forgot: false,
            completed: BTreeSet::new(),
            breach: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (n, owner) in (0..).zip(&state.owners) {
            match owner.phase {
                // Who begins is a matter of names.
                Phase::Idle if n == 1 && state.owners[0].attempt == 0 => {}
                Phase::Idle if owner.attempt < self.attempts[usize::from(n)] => {
                    actions.push(Action::Begin(n));
                }
                Phase::Acquiring { .. } => actions.push(Action::GiveUp(n)),
                Phase::Running { .. } => {
                    actions.extend([Action::Succeed(n), Action::Fail(n)]);
                    if !state.is_renewing(n) {
                        actions.push(Action::Renew(n));
                    }
                }
                Phase::Lost => actions.extend([Action::Succeed(n), Action::Fail(n)]),
                Phase::Completing if self.bug == Some(Bug::ReleaseAfterComplete) => {
                    actions.push(Action::Fail(n));
                }
                Phase::Idle | Phase::Completing | Phase::Dead => {}
            }
            if self.crashes && !matches!(owner.phase, Phase::Idle | Phase::Dead) {
                actions.push(Action::Crash(n));
            }
        }
        for (&sent, &landed) in &state.commands {
            let again = false;
            actions.push(Action::Land { sent, again });
            if !landed {
                let again = true;
                actions.push(Action::Land { sent, again });
            }
        }
        for &(sent, answer) in &state.replies {
            actions.push(Action::Deliver(sent, answer));
        }
        if self.amnesia && !state.forgot {
            actions.push(Action::Forget);
        }
        if state.now < self.end {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(n) => {
                state.owners[usize::from(n)].attempt += 1;
                let sent = state.now;
                state.become_(n, Phase::Acquiring { sent });
                state.send(n, Command::Acquire);
            }
            Action::Land { sent, again } => {
                let answer = self.land(&mut state, sent);
                if again {
                    state.commands.insert(sent, true);
                } else {
                    state.commands.remove(&sent);
                }
                state.replies.insert((sent, answer));
            }
            Action::Deliver(sent, answer) => {
                state.replies.remove(&(sent, answer));
                self.deliver(&mut state, sent, answer);
            }
            Action::GiveUp(n) => {
                state.send(n, Command::Release { failed: false });
                state.become_(n, Phase::Idle);
            }
            Action::Renew(n) => state.send(n, Command::Renew),
            Action::Succeed(n) => {
                state.completed.insert(state.token(n));
                state.send(n, Command::Complete);
                state.become_(n, Phase::Completing);
            }
            Action::Fail(n) => {
                state.send(n, Command::Release { failed: true });
                state.become_(n, Phase::Idle);
            }
            Action::Crash(n) => state.become_(n, Phase::Dead),
            Action::Forget => {
                state.stored = Stored::Nothing;
                state.forgot = true;
            }
            Action::Tick => {
                state.now += 1;
                for owner in &mut state.owners {
                    if let Phase::Running { deadline } = owner.phase
                        && deadline <= state.now
                        && !self.freezes
                    {
                        owner.phase = Phase::Lost;
                    }
                }
            }
        }
        state.forget_replies();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::always("nothing of another token is overwritten", |_, state| {
                state.breach != Some(Breach::Overwritten)
            }),
            Property::<Self>::always("a completed event stays completed", |_, state| {
                state.breach != Some(Breach::Undone)
            }),
            Property::<Self>::always("only a handler makes an event completed", |_, state| {
                match state.stored {
                    Stored::Done { token } => state.completed.contains(&token),
                    _ => true,
                }
            }),
            Property::<Self>::always("an owner is not kept out by itself", |_, state| {
                state.breach != Some(Breach::ToldOfItself)
            }),
            Property::<Self>::always(
                "a completed handler is not reported as failed",
                |_, state| state.breach != Some(Breach::Denied),
            ),
            // The check would prove nothing if these were out of its reach.
            Property::<Self>::sometimes("the last delivery completes", |world, state| {
                let owner = u8::from(world.attempts[1] > 0);
                let attempt = world.attempts[usize::from(owner)];
                matches!(state.stored, Stored::Done { token } if token == Token { owner, attempt })
            }),
            Property::<Self>::sometimes("a reply comes after its lease is over", |_, state| {
                let over = |(sent, _): &(Sent, Answer)| sent.at + LEASE <= state.now;
                state.replies.iter().any(over) || state.now == 0
            }),
        ];
        if !self.freezes && !self.amnesia {
            properties.extend([
                Property::<Self>::always("one owner at a time", |_, state| {
                    let holds = |owner: &&Owner| matches!(owner.phase, Phase::Running { .. });
                    state.owners.iter().filter(holds).count() < 2
                }),
                Property::<Self>::always("no run begins after completion", |_, state| {
                    state.breach != Some(Breach::RunAfterDone)
                }),
            ]);
        }
        properties
    }
}

impl World {
    fn land(&self, state: &mut State, sent: Sent) -> Answer {
        let before = state.stored;
        let (after, answer) = self.step(before, sent, state.now);
        state.stored = after;
        let live = match before {
            Stored::Running { token, until } if until > state.now => Some(token),
            Stored::Done { token } => Some(token),
            _ => None,
        };
        if let Some(token) = live
            && token != sent.token
            && after != before
        {
            state.breach = Some(Breach::Overwritten);
        }
        if let Stored::Done { token } = before
            && after != (Stored::Done { token })
        {
            state.breach = Some(Breach::Undone);
        }
        if after == Stored::Failed && before != after && state.completed.contains(&sent.token) {
            state.breach = Some(Breach::Denied);
        }
        if answer == Answer::InFlight && live == Some(sent.token) {
            state.breach = Some(Breach::ToldOfItself);
        }
        answer
    }

    /// The store's step, or that of a store with the bug.
    fn step(&self, stored: Stored, sent: Sent, now: Time) -> (Stored, Answer) {
        let Sent { token, command, .. } = sent;
        let mut meant = token;
        if let (Some(bug), Some(holder)) = (self.bug, stored.token()) {
            let as_holder = match command {
                Command::Release { .. } => bug == Bug::ReleaseOfAnybody,
                Command::Renew => bug == Bug::RenewOverAnything,
                Command::Complete => bug == Bug::CompleteOverAnything,
                Command::Acquire => false,
            };
            if as_holder {
                meant = holder;
            }
            if command == Command::Acquire && bug == Bug::StrangeToItself && holder == token {
                return (stored, Answer::InFlight);
            }
        }
        let (after, answer) = stored.apply(command, meant, now);
        let after = match after {
            Stored::Running { until, .. } if after != stored => Stored::Running { token, until },
            Stored::Done { .. } if command == Command::Complete && answer == Answer::Held(true) => {
                Stored::Done { token }
            }
            after => after,
        };
        (after, answer)
    }

    fn deliver(&self, state: &mut State, sent: Sent, answer: Answer) {
        let n = sent.token.owner;
        if state.token(n) != sent.token {
            return;
        }
        let counted_from = match self.bug {
            Some(Bug::DeadlineFromReply) => state.now,
            _ => sent.at,
        };
        let until = counted_from + LEASE;
        match (state.owners[usize::from(n)].phase, sent.command, answer) {
            (Phase::Acquiring { .. }, Command::Acquire, Answer::Acquired) => {
                if until <= state.now && !self.freezes {
                    state.send(n, Command::Release { failed: false });
                    state.become_(n, Phase::Idle);
                    return;
                }
                if matches!(state.stored, Stored::Done { .. }) {
                    state.breach = Some(Breach::RunAfterDone);
                }
                if self.bug == Some(Bug::CompleteBeforeRun) {
                    state.send(n, Command::Complete);
                }
                state.become_(n, Phase::Running { deadline: until });
            }
            (Phase::Acquiring { .. }, Command::Acquire, _)
            | (Phase::Completing, Command::Complete, _) => state.become_(n, Phase::Idle),
            (Phase::Running { deadline }, Command::Renew, Answer::Held(true)) => {
                let deadline = deadline.max(until);
                state.become_(n, Phase::Running { deadline });
            }
            (Phase::Running { .. }, Command::Renew, _) => state.become_(n, Phase::Lost),
            _ => {}
        }
    }
}

impl State {
    const fn token(&self, n: u8) -> Token {
        Token {
            owner: n,
            attempt: self.owners[n as usize].attempt,
        }
    }

    fn become_(&mut self, n: u8, phase: Phase) {
        self.owners[usize::from(n)].phase = phase;
    }

    fn send(&mut self, n: u8, command: Command) {
        let (token, at) = (self.token(n), self.now);
        self.commands.insert(Sent { token, command, at }, false);
    }

    /// A renewal begins when the one before was answered.
    fn is_renewing(&self, n: u8) -> bool {
        let token = self.token(n);
        let renews = |sent: &Sent| sent.token == token && sent.command == Command::Renew;
        self.commands.keys().any(renews) || self.replies.iter().any(|(sent, _)| renews(sent))
    }

    /// Fewer states to look at: what nobody waits for changes nothing.
    fn forget_replies(&mut self) {
        let mut replies = std::mem::take(&mut self.replies);
        replies.retain(|(sent, _)| {
            let owner = self.owners[usize::from(sent.token.owner)];
            let awaited = match owner.phase {
                Phase::Acquiring { .. } => Command::Acquire,
                Phase::Running { .. } => Command::Renew,
                Phase::Completing => Command::Complete,
                Phase::Idle | Phase::Lost | Phase::Dead => return false,
            };
            owner.attempt == sent.token.attempt && awaited == sent.command
        });
        self.replies = replies;
    }
}
