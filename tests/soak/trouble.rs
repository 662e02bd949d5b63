//! What happens to Redis meanwhile.

use std::{fs, time::Duration};

use crate::support::RedisServer;

/// How often all of it happens: twice in each quarter of the soak.
const ROUNDS: u32 = 8;

/// Longer than a lease.
const FROZEN: Duration = Duration::from_secs(8);
const AWAY: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug)]
enum Step {
    Freeze,
    Thaw,
    RestartWithData,
    Kill,
    StartEmpty,
}

/// The steps, and which of them come next.
#[derive(Debug)]
pub(crate) struct Trouble {
    steps: Vec<(Duration, Step)>,
    next: usize,
    answers: bool,
}

impl Trouble {
    pub(crate) fn new(length: Duration) -> Self {
        let round = length / ROUNDS;
        let steps = (0..ROUNDS).flat_map(|n| {
            let start = round * n;
            let frozen = start + round / 5;
            let killed = start + round * 4 / 5;
            [
                (frozen, Step::Freeze),
                (frozen + FROZEN.min(round / 5), Step::Thaw),
                (start + round * 3 / 5, Step::RestartWithData),
                (killed, Step::Kill),
                (killed + AWAY.min(round / 10), Step::StartEmpty),
            ]
        });
        Self {
            steps: steps.collect(),
            next: 0,
            answers: true,
        }
    }

    /// Does all that is due, and tells whether Redis answers after it.
    pub(crate) fn make(&mut self, now: Duration, redis: &mut RedisServer) -> bool {
        while let Some(&(at, step)) = self.steps.get(self.next)
            && at <= now
        {
            println!("        {step:?}");
            self.answers = do_it(step, redis);
            self.next += 1;
        }
        self.answers
    }

    /// Does the rest at once, so that Redis answers in the end.
    pub(crate) fn end(&mut self, redis: &mut RedisServer) {
        assert!(self.make(Duration::MAX, redis), "the last step is a start");
    }
}

/// Whether Redis answers now.
fn do_it(step: Step, redis: &mut RedisServer) -> bool {
    let dump = redis.socket().with_file_name("dump.rdb");
    match step {
        Step::Freeze => redis.freeze(),
        Step::Thaw => redis.thaw(),
        Step::RestartWithData => {
            redis.command(&["SAVE"]);
            redis.restart();
            // What completed after SAVE is gone, as in a failover; nearly all is back.
            assert!(redis.number(&["DBSIZE"]) > 0, "the data is back");
            fs::remove_file(dump).unwrap();
        }
        Step::Kill => redis.kill(),
        Step::StartEmpty => redis.restart(),
    }
    !matches!(step, Step::Freeze | Step::Kill)
}
