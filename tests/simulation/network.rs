//! Calls and replies on their way, and what goes wrong with them.

use std::{panic::resume_unwind, sync::Arc};

use futures_util::FutureExt;
use tokio::{sync::oneshot, time::Instant};
use tower_webhook_dedup::{
    Acquire, Entry, Key, LeaseStore, MemoryStore, MemoryStoreError, Operation,
};

use crate::{
    draw::draw,
    log::{Call, Held, Pid, Reply, What},
    model::{Command, Told},
    plan::{Fault, Millis, Moment, Trouble},
    process::Process,
    server::Planned,
    store::Broken,
    world::{Due, Order, World},
};

type Answer = oneshot::Sender<Result<Told, Broken>>;

pub(crate) struct Message {
    pid: Pid,
    event: usize,
    key: Key,
    command: Command,
    call: Call,
    trouble: Option<Trouble>,
    leg: Leg,
    answer: Option<Answer>,
}

enum Leg {
    /// On its way to the store; `again`: once more after this one.
    There {
        again: Option<Millis>,
    },
    Back(Result<Told, Broken>),
}

/// Which event a key is about: ids are `e0`, `e1` and so on.
pub(crate) fn event_of(key: &Key) -> usize {
    let text = key.to_string();
    text.split(':')
        .nth(3)
        .and_then(|id| id.strip_prefix('e')?.parse().ok())
        .unwrap()
}

impl World {
    /// A process calls the store.
    pub(crate) fn send(
        self: &Arc<Self>,
        process: &Process,
        key: &Key,
        command: Command,
        answer: Answer,
    ) {
        let (pid, event, operation) = (process.pid, event_of(key), command.operation());
        let n = {
            let mut state = self.state();
            let n = state
                .calls
                .entry((pid.slot, event, operation as usize))
                .or_default();
            *n += 1;
            *n
        };
        let trouble = self.plan.faults.iter().find_map(|fault| match fault {
            Fault::Call {
                process,
                event: of,
                operation: kind,
                n: nth,
                trouble,
            } if (*process, *of, *kind, *nth) == (pid.slot, event, operation, n) => Some(*trouble),
            _ => None,
        });
        let call = Call {
            operation,
            n,
            token: command.token(),
        };
        self.log(Some(pid), Some(event), What::Called { call, trouble });
        let ends = matches!(operation, Operation::Complete | Operation::Release);
        if let (Some(token), true) = (call.token, ends) {
            self.state().acquired.retain(|(.., it)| *it != token);
        }
        match trouble {
            Some(Trouble::Panics) => resume_unwind(Box::new(Planned)),
            Some(Trouble::LostCall) => {}
            _ => {
                let (late, again) = match trouble {
                    Some(Trouble::Late(time)) => (time, None),
                    Some(Trouble::Twice(time)) => (0, Some(time)),
                    _ => (0, None),
                };
                let leg = Leg::There { again };
                let (key, answer) = (key.clone(), Some(answer));
                let message = Message {
                    pid,
                    event,
                    key,
                    command,
                    call,
                    trouble,
                    leg,
                    answer,
                };
                self.travel(message, 0, late);
            }
        }
        self.trigger(pid, event, operation, n, Moment::Sent);
    }

    /// The time of travel is drawn, from 1 to 8 ms; in one case of sixteen it is longer.
    fn travel(&self, message: Message, leg: u8, late: Millis) {
        let Message {
            pid, event, call, ..
        } = message;
        let which = (call.operation as usize, call.n, leg);
        let question = [
            pid.slot as u64,
            event as u64,
            which.0 as u64,
            which.1,
            u64::from(which.2),
        ];
        let rng = &mut draw(self.plan.seed, &question);
        let time = if rng.u8(0..16) == 0 {
            rng.u64(8..40)
        } else {
            rng.u64(1..=8)
        };
        let order = Order {
            at: self.now() + time + late,
            pid: Some(pid),
            event,
            what: which,
        };
        self.at(order, Due::Message(Box::new(message)));
    }

    pub(crate) fn deliver(self: &Arc<Self>, order: Order, mut message: Message) {
        let (pid, event, call) = (message.pid, message.event, message.call);
        let leg = order.what.2;
        match message.leg {
            Leg::There { again } => {
                let result = self.land(&message);
                if let (Some(late), Ok(_)) = (again, &result) {
                    message.leg = Leg::There { again: None };
                    self.travel(message, leg + 1, late);
                } else if let Some(result) = self.comes_back(&message, result) {
                    let late = match message.trouble {
                        Some(Trouble::SlowReply(time)) => time,
                        _ => 0,
                    };
                    message.leg = Leg::Back(result);
                    self.travel(message, leg + 1, late);
                }
                self.trigger(pid, event, call.operation, call.n, Moment::Landed);
            }
            Leg::Back(result) => {
                let reply = result.as_ref().ok().map(|told| told.reply);
                let heard = message
                    .answer
                    .take()
                    .is_some_and(|answer| answer.send(result).is_ok());
                if !heard {
                    return;
                }
                self.log(Some(pid), Some(event), What::Replied { call, reply });
                if let (Some(Reply::Acquired(_)), Some(token)) = (reply, call.token) {
                    self.state().acquired.push((pid, event, token));
                }
                self.trigger(pid, event, call.operation, call.n, Moment::Replied);
            }
        }
    }

    /// The call takes effect; `None`: it does not, and nobody is told.
    fn land(&self, message: &Message) -> Result<Told, Option<Broken>> {
        let Message {
            pid, event, call, ..
        } = *message;
        let sure = match message.trouble {
            Some(Trouble::Before { sure }) => Some(sure),
            _ => None,
        };
        let mut state = self.state();
        let full = state.full > 0 && call.operation == Operation::Complete;
        if sure.is_some() || full || !state.outages.is_empty() {
            let hangs = sure.is_none() && state.outages.contains(&true);
            drop(state);
            self.log(Some(pid), Some(event), What::Bounced { call });
            let may_have_landed = sure != Some(true);
            return Err((!hangs).then_some(Broken { may_have_landed }));
        }
        let at = self.now();
        let holder = state.model.held(event, at);
        let told = state.model.step(event, &message.command, at);
        let (then, reply) = (state.model.held(event, at), told.reply);
        let memory = state.memory.clone();
        drop(state);
        self.log(
            Some(pid),
            Some(event),
            What::Landed {
                call,
                reply,
                holder,
                then,
            },
        );
        if let Some(memory) = memory {
            let answered = ask(&memory, &message.key, &message.command);
            if answered != reply {
                let (memory, model) = (format!("{answered:?}"), format!("{reply:?}"));
                self.log(Some(pid), Some(event), What::Differs { memory, model });
            }
        }
        Ok(told)
    }

    fn comes_back(
        &self,
        message: &Message,
        result: Result<Told, Option<Broken>>,
    ) -> Option<Result<Told, Broken>> {
        match (message.trouble, result) {
            (Some(Trouble::LostReply), _) | (_, Err(None)) => None,
            (_, Err(Some(broken))) => Some(Err(broken)),
            (Some(Trouble::After), Ok(_)) => Some(Err(Broken {
                may_have_landed: true,
            })),
            (_, Ok(told)) => Some(Ok(told)),
        }
    }
}

/// The same question to the crate's own store.
fn ask(store: &MemoryStore, key: &Key, command: &Command) -> Reply {
    let by = Instant::now();
    let whether = |answer: Option<Result<bool, _>>| -> Result<Reply, MemoryStoreError> {
        Ok(Reply::Is(answer.unwrap()?))
    };
    let reply = match command {
        Command::Acquire { token, lease } => {
            let acquired = store
                .acquire(key, *token, *lease, by)
                .now_or_never()
                .unwrap();
            acquired.map(|acquired| match acquired {
                Acquire::Acquired { attempt } => Reply::Acquired(attempt),
                Acquire::Done(_) => Reply::Done,
                _ => Reply::InFlight,
            })
        }
        Command::Renew { token, lease } => {
            whether(store.renew(key, *token, *lease, by).now_or_never())
        }
        Command::Complete {
            token,
            record,
            retention,
        } => whether(
            store
                .complete(key, *token, record, *retention, by)
                .now_or_never(),
        ),
        Command::Release {
            token,
            release,
            keep,
        } => whether(
            store
                .release(key, *token, *release, *keep, by)
                .now_or_never(),
        ),
        Command::Inspect => {
            let entry = store.inspect(key, by).now_or_never().unwrap();
            entry.map(|entry| {
                Reply::Found(match entry {
                    Some(Entry::Running { token, .. }) => Held::Running(token),
                    Some(Entry::Failed { token, .. }) => Held::Failed(token),
                    Some(Entry::Done { token, .. }) => Held::Done(token),
                    _ => Held::Nothing,
                })
            })
        }
        Command::Forget { force } => whether(store.forget(key, *force, by).now_or_never()),
    };
    reply.unwrap()
}
