//! A load generator that costs as little as it can: one thread, keep-alive connections, each with
//! one request at a time, bytes written as they stand.

mod connection;
mod event;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token};

pub(crate) use self::event::{Event, Ids, Path};
use self::{connection::Connection, event::Request};
use crate::Result;

/// An answer may take this long; then the test has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// When to stop sending.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Time(Duration),
    Requests(usize),
}

/// What the senders saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// From the first request to the last answer.
    pub(crate) time: Duration,
    /// Answers with another status than 2xx.
    pub(crate) refused: usize,
    /// How long each request took, in nanoseconds.
    pub(crate) latencies: Vec<u32>,
}

impl Seen {
    pub(crate) fn requests(&self) -> usize {
        self.latencies.len()
    }

    /// The time that `share` of all requests took at most.
    pub(crate) fn percentile(&mut self, share: f64) -> Duration {
        if self.latencies.is_empty() {
            return Duration::ZERO;
        }
        let rank = ((self.latencies.len() - 1) as f64 * share) as usize;
        let (_, &mut nanos, _) = self.latencies.select_nth_unstable(rank);
        Duration::from_nanos(nanos.into())
    }
}

/// Connections that send events.
pub(crate) struct Generator {
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
}

impl Generator {
    /// Connects to the servers in turn; every connection sends requests of this shape.
    pub(crate) fn connect(
        ports: &[u16],
        connections: usize,
        body: usize,
        path: Path,
    ) -> Result<Self> {
        let poll = Poll::new()?;
        let request = Request::new(path, body);
        let connect = |index: usize| -> Result<Connection> {
            let address = SocketAddr::from(([127, 0, 0, 1], ports[index % ports.len()]));
            let mut connection = Connection::new(address, request.clone())?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry()
                .register(connection.stream(), Token(index), interest)?;
            Ok(connection)
        };
        Ok(Self {
            connections: (0..connections).map(connect).collect::<Result<_>>()?,
            events: Events::with_capacity(1024),
            poll,
        })
    }

    /// Sends events until it is time to stop, and waits for the answers that are left.
    pub(crate) fn run(&mut self, mut event: Event<'_>, until: Until) -> Result<Seen> {
        let began = Instant::now();
        let mut now = began;
        let mut sent = 0;
        let mut seen = Seen::default();
        let mut goes_on = |now: Instant| {
            let goes_on = match until {
                Until::Time(time) => now.duration_since(began) < time,
                Until::Requests(requests) => sent < requests,
            };
            sent += usize::from(goes_on);
            goes_on
        };
        let mut open = 0;
        for connection in &mut self.connections {
            if goes_on(now) {
                connection.begin(event.id(), now)?;
                open += 1;
            }
        }
        while open > 0 {
            self.poll.poll(&mut self.events, Some(PATIENCE))?;
            now = Instant::now();
            if self.events.is_empty() {
                return Err(format!("no answer for {PATIENCE:?}").into());
            }
            for ready in &self.events {
                let connection = &mut self.connections[ready.token().0];
                // Later answers wake us again, so there is no need to read until there is nothing.
                let Some(answer) = connection.proceed()? else {
                    continue;
                };
                now = Instant::now();
                seen.refused += usize::from(!answer.is_success());
                let nanos = now.duration_since(connection.began()).as_nanos();
                seen.latencies.push(nanos.try_into().unwrap_or(u32::MAX));
                if goes_on(now) {
                    connection.begin(event.id(), now)?;
                } else {
                    open -= 1;
                }
            }
        }
        seen.time = now.duration_since(began);
        Ok(seen)
    }
}
