//! What is going to happen, all of it drawn from one seed.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// One event, and how it is going to be sent.
pub(crate) struct Event {
    pub(crate) id: String,
    /// When it happens.
    pub(crate) at: Duration,
    pub(crate) body: Bytes,
    /// The delivery that is repeated until one is acknowledged.
    pub(crate) first: Delivery,
    /// Deliveries that nobody needs, each sent once.
    pub(crate) needless: Vec<Delivery>,
}

pub(crate) struct Delivery {
    /// When it is sent, from when the event happened.
    pub(crate) after: Duration,
    /// How long the sender waits for the answer.
    pub(crate) patience: Duration,
    /// Only half of the body gets through.
    pub(crate) mangled: bool,
}

/// The body of an event. It tells the handler what to do.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Payload {
    pub(crate) id: String,
    /// How long a run takes.
    pub(crate) work_ms: u64,
    /// How the first runs end. Those after them complete.
    pub(crate) faults: Vec<Fault>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) enum Fault {
    /// Answers 500.
    Fail,
    Panic,
}

/// The longest that the sender waits for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How many events happen at once.
const BURST: usize = 100;

/// Events in bursts, with pauses between them of about this length.
pub(crate) fn events(count: usize, seed: u64, pause: Duration) -> Vec<Event> {
    let pause = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX / 4);
    let mut rng = Rng::with_seed(seed);
    let mut at = Duration::ZERO;
    let mut events = Vec::with_capacity(count);
    for n in 0..count {
        if n > 0 && n % BURST == 0 {
            at += ms(rng.u64(pause / 2..pause * 3 / 2));
        }
        events.push(event(n, seed, at + ms(rng.u64(0..20)), &mut rng));
    }
    events
}

fn event(n: usize, seed: u64, at: Duration, rng: &mut Rng) -> Event {
    let id = format!("evt_{seed}_{n}");
    let slow = chance(rng, 30);
    let faults = match rng.u8(0..100) {
        0..10 => vec![Fault::Fail],
        10..17 => vec![Fault::Panic],
        17..20 => vec![Fault::Fail, Fault::Panic],
        20..22 => vec![Fault::Panic, Fault::Fail, Fault::Fail],
        _ => vec![],
    };
    let work_ms = if slow {
        rng.u64(100..400)
    } else {
        rng.u64(0..3)
    };
    let impatient = slow && chance(rng, 40);
    let first = Delivery {
        after: Duration::ZERO,
        patience: if impatient {
            ms(rng.u64(20..80))
        } else {
            PATIENCE
        },
        mangled: chance(rng, 3),
    };
    let needless = (0..rng.usize(1..5)).map(|_| needless(rng)).collect();
    let payload = Payload {
        id: id.clone(),
        work_ms,
        faults,
    };
    let body = serde_json::to_vec(&payload).map_or_else(|_| Bytes::new(), Bytes::from);
    Event {
        id,
        at,
        body,
        first,
        needless,
    }
}

/// In a burst with the first, while that may still be running, or long after.
fn needless(rng: &mut Rng) -> Delivery {
    let after = match rng.u8(0..3) {
        0 => rng.u64(0..5),
        1 => rng.u64(5..300),
        _ => rng.u64(500..2500),
    };
    Delivery {
        after: ms(after),
        patience: if chance(rng, 5) {
            ms(rng.u64(20..80))
        } else {
            PATIENCE
        },
        mangled: chance(rng, 1),
    }
}

fn chance(rng: &mut Rng, percent: u8) -> bool {
    rng.u8(0..100) < percent
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
