//! A connection that the store makes by itself, and replaces when it is of no more use.

use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use redis::Value;
use tokio::time::Instant;

use super::{
    attempt::{Attempt, Attempting},
    error::RedisStoreError,
    sending::{Reply, Sending, Wait, answer},
    target::Target,
    wire::Wire,
};
use crate::{StoreError, StoreErrorKind, mutex::Mutex};

/// One connection that all calls share, made by the first of them.
pub(super) struct Own {
    target: Target,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    attempt: Option<Attempt<Arc<Link>>>,
    /// Connections in a row that did not come about or were of no use.
    failures: u32,
    /// Until then nobody connects, and calls get the error at once.
    pause: Option<(Instant, RedisStoreError)>,
}

/// A connection.
struct Link {
    wire: Wire,
    /// Commands in a row without a reply.
    timeouts: AtomicU32,
    /// Whether it was of use.
    proven: AtomicBool,
    /// Where it leads, if that may change, and when somebody last looked whether it has.
    place: Option<(String, Mutex<Instant>)>,
}

impl Own {
    /// After so many commands in a row without a reply a connection is given up.
    const MOST_TIMEOUTS: u32 = 3;
    /// How often to look whether a connection that may have to lead elsewhere has to.
    const LOOKS_EVERY: Duration = Duration::from_secs(1);
    const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
    const LONGEST_PAUSE: Duration = Duration::from_secs(1);

    pub(super) fn new(target: Target) -> Self {
        Self {
            target,
            state: Mutex::default(),
        }
    }

    /// Sends the command over the current connection, or a new one.
    #[expect(clippy::manual_async_fn, reason = "see `connection`")]
    pub(super) fn send<'a>(
        self: &'a Arc<Self>,
        sending: Sending<'a>,
        by: Instant,
    ) -> impl Future<Output = Result<Reply, RedisStoreError>> + Send + 'a {
        async move {
            let link = match self.link_or_attempt()? {
                Ready::Link(link) => link,
                Ready::Not(_) => Box::pin(self.link(by)).await?,
            };
            self.look_after(&link);
            let send = || {
                let command = (sending.command)(link.wire.spare());
                link.wire.send(command, sending.asking)
            };
            let reply = answer(by, send).await;
            self.judge(&link, &reply);
            let value = reply?;
            match sending.wait {
                Some(wait) if (wait.wrote)(&value) => {
                    Box::pin(self.confirm(value, wait, &link, by)).await
                }
                _ => Ok(Reply::from(value)),
            }
        }
    }

    /// Waits for replicas. On the same connection: WAIT speaks of what this one has written.
    async fn confirm(
        &self,
        value: Value,
        wait: Wait,
        link: &Arc<Link>,
        by: Instant,
    ) -> Result<Reply, RedisStoreError> {
        let command = wait.command(by);
        let reply = answer(by, || link.wire.send(command, false)).await;
        self.judge(link, &reply);
        match reply {
            Ok(confirmations) => Ok(Reply::confirmed(value, &confirmations)),
            Err(error) => Err(error.after_a_write()),
        }
    }

    /// Waits for a connection, or for the reason why there is none.
    pub(super) async fn connected(self: &Arc<Self>, by: Instant) -> Result<(), RedisStoreError> {
        self.link(by).await.map(drop)
    }

    pub(super) const fn target(&self) -> &Target {
        &self.target
    }

    /// Now and then, in the background, looks whether the connection still leads to the right
    /// place.
    fn look_after(self: &Arc<Self>, link: &Arc<Link>) {
        let Some((_, looked)) = &link.place else {
            return;
        };
        {
            let now = Instant::now();
            let mut looked = looked.lock();
            if now < *looked + Self::LOOKS_EVERY {
                return;
            }
            *looked = now;
        }
        let (own, link) = (Arc::clone(self), Arc::clone(link));
        tokio::spawn(async move {
            if let Some((place, _)) = &link.place
                && let Some(error) = own.target.has_moved(place).await
            {
                own.discard(&link, &error);
            }
        });
    }

    /// Learns from a reply whether the connection is of use.
    fn judge(&self, link: &Arc<Link>, reply: &Result<Value, RedisStoreError>) {
        match reply {
            Err(error) if error.is_broken() || error.is_demoted() => self.discard(link, error),
            Err(error) if error.kind() == StoreErrorKind::TimedOut => {
                // A command that was not even sent says nothing about the connection.
                if error.may_have_landed()
                    && link.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= Self::MOST_TIMEOUTS
                {
                    self.discard(link, error);
                }
            }
            _ => {
                link.timeouts.store(0, Ordering::Relaxed);
                if !link.proven.swap(true, Ordering::Relaxed) {
                    self.state.lock().failures = 0;
                }
            }
        }
    }

    /// Gives the connection up, so that the next call makes another.
    fn discard(&self, link: &Arc<Link>, error: &RedisStoreError) {
        let mut state = self.state.lock();
        if !state.link.as_ref().is_some_and(|it| Arc::ptr_eq(it, link)) {
            return;
        }
        state.link = None;
        if link.proven.load(Ordering::Relaxed) {
            return;
        }
        // A new connection may break once without harm, a server that breaks each must not be
        // stormed.
        if state.failures == 0 {
            state.failures = 1;
        } else {
            state.fail(error.clone().before_sending());
        }
    }

    /// The current connection, or a new one if it comes about by then.
    async fn link(self: &Arc<Self>, by: Instant) -> Result<Arc<Link>, RedisStoreError> {
        loop {
            let attempt = match self.link_or_attempt()? {
                Ready::Link(link) => return Ok(link),
                Ready::Not(attempt) => attempt,
            };
            if let Some(outcome) = attempt.outcome(by).await {
                return outcome;
            }
            // The time is over; or the task is gone with its runtime, and another is needed.
            tokio::task::yield_now().await;
            if Instant::now() >= by {
                return Err(RedisStoreError::timed_out(
                    false,
                    format!("still connecting to {:?}", self.target),
                ));
            }
        }
    }

    /// Starts to connect if nobody does.
    fn link_or_attempt(self: &Arc<Self>) -> Result<Ready, RedisStoreError> {
        let mut state = self.state.lock();
        if let Some(link) = &state.link {
            return Ok(Ready::Link(Arc::clone(link)));
        }
        if let Some(attempt) = &state.attempt
            && attempt.goes_on()
        {
            return Ok(Ready::Not(attempt.clone()));
        }
        if let Some((until, error)) = &state.pause
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        let (attempt, attempting) = Attempt::new(2 * self.target.connect_timeout());
        state.attempt = Some(attempt.clone());
        tokio::spawn(Arc::clone(self).connect(attempting));
        Ok(Ready::Not(attempt))
    }

    async fn connect(self: Arc<Self>, attempting: Attempting<Arc<Link>>) {
        // A panic is as good as a failure: those who wait must not start one after the other.
        let outcome = AssertUnwindSafe(self.target.connect()).catch_unwind().await;
        let outcome = outcome.unwrap_or_else(|_| {
            Err(RedisStoreError::unreachable(
                "connecting panicked, as it does in a runtime without I/O",
            ))
        });
        let outcome = outcome.map(|(wire, place)| Arc::new(Link::new(wire, place)));
        {
            let mut state = self.state.lock();
            // Another may have taken this one's place, if it was held up.
            let current = state.attempt.as_ref();
            if !current.is_some_and(|attempt| attempt.is_of(&attempting)) {
                return;
            }
            state.attempt = None;
            match &outcome {
                Ok(link) => state.link = Some(Arc::clone(link)),
                Err(error) => state.fail(error.clone()),
            }
        }
        attempting.tell(outcome);
    }
}

enum Ready {
    Link(Arc<Link>),
    Not(Attempt<Arc<Link>>),
}

impl Link {
    fn new(wire: Wire, place: Option<String>) -> Self {
        Self {
            wire,
            place: place.map(|place| (place, Mutex::new(Instant::now()))),
            timeouts: AtomicU32::new(0),
            proven: AtomicBool::new(false),
        }
    }
}

impl State {
    /// Counts a connection that was of no use, and lets the next one wait: twice as long each time,
    /// and a random part less, so that many processes do not come back at the same moment.
    fn fail(&mut self, error: RedisStoreError) {
        let doublings = self.failures.min(10);
        self.failures = self.failures.saturating_add(1);
        let pause = (Own::SHORTEST_PAUSE * (1 << doublings)).min(Own::LONGEST_PAUSE);
        let random = getrandom::u32().unwrap_or(0) % 512;
        let pause = pause - pause * random / 1024;
        self.pause = Some((Instant::now() + pause, error));
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)
    }
}
