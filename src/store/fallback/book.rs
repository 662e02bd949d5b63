//! What this process did by itself, and what of it the primary does not know.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::{Key, Record, Release, Token, store::after};

/// At the cap a new lease is not carried back.
const MOST_LEASES: usize = 65_536;

/// At the cap the oldest is let go: its lease runs out.
const MOST_ERRANDS: usize = 4096;

/// How long to try to release a token whose lease is not known.
const LEASE: Duration = Duration::from_secs(5 * 60);

/// A full book is searched for what has run out no more often than this.
const PURGE: Duration = Duration::from_secs(1);

/// One line a token. An event is *local* while the secondary decides about it.
#[derive(Default)]
pub(super) struct Book {
    lines: HashMap<Token, Line>,
    /// How many lines, and calls on their way to the secondary, make an event local.
    local: HashMap<Key, usize>,
    /// Completions, oldest first; some may be gone.
    done: VecDeque<Token>,
    /// Releases and the like, oldest first; some may be gone.
    errands: VecDeque<Token>,
    leases: usize,
    purged: Option<Instant>,
    changes: u64,
    /// Completions that had to go before the primary knew of them.
    pub(super) dropped: usize,
}

struct Line {
    key: Key,
    what: What,
    /// What it says is of no use from then on.
    until: Instant,
    /// The primary does not know.
    owed: bool,
    /// The primary was told, and had given the event to another token.
    contested: bool,
    /// The primary may have heard of this token.
    sent: bool,
    /// Tells whether the line has changed while it was carried.
    change: u64,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    /// The token runs the event, under a lease of this length.
    Lease(Duration),
    /// It has completed it.
    Done(Record),
    /// It has given it up; with `again`, an old command may still land after the release.
    Release {
        release: Release,
        keep: Duration,
        again: bool,
    },
    /// An operator lets the event run again.
    Forget,
}

/// A line, copied out of the lock to be carried to the primary.
pub(super) struct Debt {
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) what: What,
    pub(super) until: Instant,
    change: u64,
}

impl What {
    /// Which are carried first: what makes room for the others.
    pub(super) const fn rank(&self) -> u8 {
        match self {
            Self::Forget => 0,
            Self::Release { .. } => 1,
            Self::Done(_) => 2,
            Self::Lease(_) => 3,
        }
    }

    const fn is_lease(&self) -> bool {
        matches!(self, Self::Lease(_))
    }
}

impl Line {
    /// Whether the secondary decides because of it.
    const fn is_local(&self) -> bool {
        self.owed && matches!(self.what, What::Lease(_) | What::Done(_))
    }
}

impl Book {
    pub(super) fn is_local(&self, key: &Key) -> bool {
        self.local.contains_key(key)
    }

    /// A call for this event is on its way to the secondary.
    pub(super) fn enter(&mut self, key: &Key) {
        *self.local.entry(key.clone()).or_default() += 1;
    }

    pub(super) fn leave(&mut self, key: &Key) {
        if let Some(count) = self.local.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.local.remove(key);
            }
        }
    }

    /// The token has acquired the event.
    pub(super) fn acquired(
        &mut self,
        key: &Key,
        token: Token,
        lease: Duration,
        owed: bool,
        sent: bool,
    ) {
        let known = self.lines.get(&token);
        let is_new = known.is_none_or(|line| !line.what.is_lease());
        let now = Instant::now();
        if is_new && self.leases >= MOST_LEASES {
            let recent = self.purged.is_some_and(|purged| now - purged < PURGE);
            if !recent {
                self.purge(now);
            }
            if self.leases >= MOST_LEASES {
                return;
            }
        }
        let sent = sent || known_sent(self.lines.get(&token));
        self.write(
            key,
            token,
            What::Lease(lease),
            after(now, lease),
            owed,
            sent,
        );
    }

    /// The token still has it. A renewal that is overtaken by the end of the run says nothing.
    pub(super) fn renewed(
        &mut self,
        key: &Key,
        token: Token,
        lease: Duration,
        owed: bool,
        sent: bool,
    ) {
        let line = self.lines.get(&token);
        if line.is_none_or(|line| line.what.is_lease()) {
            // A token that is not in the book may be in the primary.
            let sent = sent || line.is_none();
            self.acquired(key, token, lease, owed, sent);
        }
    }

    pub(super) fn completed(
        &mut self,
        key: &Key,
        token: Token,
        record: Record,
        retention: Duration,
        owed: bool,
        most: usize,
    ) {
        if most == 0 {
            self.dropped += usize::from(owed);
            self.remove(token);
            return;
        }
        let known = self.lines.get(&token);
        if !known.is_some_and(|line| matches!(line.what, What::Done(_))) {
            self.done.push_back(token);
        }
        let until = after(Instant::now(), retention);
        self.write(key, token, What::Done(record), until, owed, true);
        while self.done.len() > most
            && let Some(oldest) = self.done.pop_front()
        {
            if self
                .lines
                .get(&oldest)
                .is_some_and(|line| matches!(line.what, What::Done(_)))
                && self.remove(oldest).is_some_and(|line| line.owed)
            {
                self.dropped += 1;
            }
        }
    }

    /// The token has given the event up, or has lost it, and the primary knows.
    pub(super) fn ended(&mut self, token: Token) {
        if self
            .lines
            .get(&token)
            .is_some_and(|line| line.what.is_lease())
        {
            self.remove(token);
        }
    }

    /// The token has given the event up, or has lost it, and the primary does not know.
    pub(super) fn owe_release(
        &mut self,
        key: &Key,
        token: Token,
        release: Release,
        keep: Duration,
        again: bool,
    ) {
        let lease = match self.lines.get(&token) {
            // It has never heard of it.
            Some(line) if line.what.is_lease() && !line.sent => {
                self.remove(token);
                return;
            }
            Some(Line {
                what: What::Lease(lease),
                ..
            }) => *lease,
            Some(Line {
                what: What::Done(_),
                ..
            }) => return,
            _ => LEASE,
        };
        let what = What::Release {
            release,
            keep,
            again,
        };
        self.errand(key, token, what, lease);
    }

    /// Whatever the book says of this event, it may run again, as the primary is to learn. A live
    /// lease stays unless `force`d.
    pub(super) fn owe_forget(&mut self, key: &Key, force: bool) {
        self.forget(key, force);
        self.errand(key, Token::random(), What::Forget, LEASE);
    }

    /// The event may run again, and the primary knows.
    pub(super) fn forget(&mut self, key: &Key, force: bool) {
        let lines = self.lines.iter().filter(|(_, line)| line.key == *key);
        let stale = lines.filter(|(_, line)| match line.what {
            What::Done(_) => true,
            What::Lease(_) => force,
            What::Release { .. } | What::Forget => false,
        });
        let stale: Vec<_> = stale.map(|(token, _)| *token).collect();
        for token in stale {
            self.remove(token);
        }
    }

    fn errand(&mut self, key: &Key, token: Token, what: What, lease: Duration) {
        let is_errand = |line: &Line| matches!(line.what, What::Release { .. } | What::Forget);
        if !self.lines.get(&token).is_some_and(is_errand) {
            self.errands.push_back(token);
        }
        self.write(key, token, what, after(Instant::now(), lease), true, true);
        while self.errands.len() > MOST_ERRANDS
            && let Some(oldest) = self.errands.pop_front()
        {
            if self.lines.get(&oldest).is_some_and(is_errand) {
                self.remove(oldest);
            }
        }
    }

    fn write(
        &mut self,
        key: &Key,
        token: Token,
        what: What,
        until: Instant,
        owed: bool,
        sent: bool,
    ) {
        // Where it is contested, it is not tried again at once.
        let old = self.remove(token);
        let same = |line: &Line| line.what.rank() == what.rank() && line.contested;
        let contested = owed && old.as_ref().is_some_and(same);
        self.changes += 1;
        let line = Line {
            key: key.clone(),
            what,
            until,
            owed,
            contested,
            sent,
            change: self.changes,
        };
        self.leases += usize::from(line.what.is_lease());
        if line.is_local() {
            self.enter(key);
        }
        self.lines.insert(token, line);
    }

    fn remove(&mut self, token: Token) -> Option<Line> {
        let line = self.lines.remove(&token)?;
        self.leases -= usize::from(line.what.is_lease());
        if line.is_local() {
            self.leave(&line.key);
        }
        Some(line)
    }

    /// From now on nothing is certain of what the primary knew.
    pub(super) fn owe_all(&mut self) {
        let lines = self.lines.values_mut();
        for line in lines.filter(|line| !line.owed) {
            line.owed = true;
            if line.is_local() {
                *self.local.entry(line.key.clone()).or_default() += 1;
            }
        }
    }

    /// Drops the lines that are of no use any more.
    pub(super) fn purge(&mut self, now: Instant) {
        self.purged = Some(now);
        let old = self.lines.iter().filter(|(_, line)| line.until <= now);
        let old: Vec<_> = old.map(|(token, _)| *token).collect();
        for token in old {
            self.remove(token);
        }
    }

    /// What is to be carried; of the contested ones, only where they are asked for. From here on
    /// the primary may hear of it.
    pub(super) fn debts(&mut self, contested: bool) -> Vec<Debt> {
        let owed = |line: &&mut Line| line.owed && (contested || !line.contested);
        let lines = self.lines.iter_mut();
        let mut debts: Vec<_> = lines
            .filter_map(|(token, line)| Some((token, Some(line).filter(owed)?)))
            .map(|(token, line)| {
                line.sent = true;
                Debt {
                    key: line.key.clone(),
                    token: *token,
                    what: line.what.clone(),
                    until: line.until,
                    change: line.change,
                }
            })
            .collect();
        debts.sort_by_key(|debt| debt.what.rank());
        debts
    }

    /// The primary was told.
    pub(super) fn settle(&mut self, debt: &Debt) {
        let Some(line) = self.lines.get_mut(&debt.token) else {
            return;
        };
        if line.change != debt.change || !line.owed {
            return;
        }
        match &mut line.what {
            // It stays owed, to be told once more.
            What::Release { again, .. } if *again => {
                *again = false;
                line.contested = true;
            }
            What::Release { .. } | What::Forget => {
                self.remove(debt.token);
            }
            What::Lease(_) | What::Done(_) => {
                (line.owed, line.contested) = (false, false);
                self.leave(&debt.key);
            }
        }
    }

    /// The primary was told, and knows better.
    pub(super) fn contest(&mut self, debt: &Debt) {
        if let Some(line) = self.lines.get_mut(&debt.token)
            && line.change == debt.change
        {
            line.contested = true;
        }
    }

    /// How much is owed: what was not tried yet, and how many events are contested.
    pub(super) fn owed(&self) -> (usize, usize) {
        let owed = self.lines.values().filter(|line| line.owed);
        let (contested, fresh): (Vec<_>, Vec<_>) = owed.partition(|line| line.contested);
        let contested = contested.into_iter().filter(|line| line.is_local());
        (fresh.len(), contested.count())
    }

    pub(super) fn owes(&self) -> bool {
        self.lines.values().any(|line| line.owed)
    }
}

fn known_sent(line: Option<&Line>) -> bool {
    line.is_some_and(|line| line.sent)
}
