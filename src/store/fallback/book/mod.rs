//! What this process did by itself, and what of it the two stores know.

mod debts;
mod tally;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use self::tally::Tally;
use super::line::{Known, Line, What};
use crate::{Acquire, Key, Record, Release, Token, store::after};

/// At the cap a new lease is not carried back.
const MOST_LEASES: usize = 65_536;

/// At the cap the oldest answers go, and their events are done without.
const MOST_ANSWER_BYTES: usize = 64 * 1024 * 1024;

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
    local: Tally,
    /// Where the secondary does not know, or not yet.
    missing: HashMap<Key, Token>,
    /// Events that the secondary is about to forget: what it is told of them may go, too.
    overruled: Tally,
    /// Completions, oldest first; some may be gone.
    done: VecDeque<Token>,
    /// Those of them that have an answer, by the change that they got it with.
    answered: BTreeMap<u64, Token>,
    answer_bytes: usize,
    /// Releases and the like, oldest first; some may be gone.
    errands: VecDeque<Token>,
    leases: usize,
    purged: Option<Instant>,
    changes: u64,
    /// Completions that had to go before the primary knew of them.
    pub(super) dropped: usize,
}

impl Book {
    pub(super) fn is_local(&self, key: &Key) -> bool {
        self.local.contains(key)
    }

    /// A call for this event is on its way to the secondary.
    pub(super) fn enter(&mut self, key: &Key) {
        self.local.add(key);
    }

    pub(super) fn leave(&mut self, key: &Key) {
        self.local.remove(key);
    }

    /// The token has acquired the event.
    pub(super) fn acquired(&mut self, key: &Key, token: Token, lease: Duration, mut known: Known) {
        let line = self.lines.get(&token);
        known.sent |= line.is_some_and(|line| line.sent);
        let is_new = line.is_none_or(|line| !line.what.is_lease());
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
        let until = after(now, lease);
        self.write(key, token, What::Lease(lease), until, known);
    }

    /// The token still has it. A renewal that is overtaken by the end of the run says nothing.
    pub(super) fn renewed(&mut self, key: &Key, token: Token, lease: Duration, mut known: Known) {
        let line = self.lines.get(&token);
        if line.is_none_or(|line| line.what.is_lease()) {
            // A token that is not in the book may be in the primary.
            known.sent |= line.is_none();
            known.mirrored |= line.is_some_and(|line| line.mirrored);
            self.acquired(key, token, lease, known);
        }
    }

    pub(super) fn completed(
        &mut self,
        key: &Key,
        token: Token,
        record: Record,
        retention: Duration,
        known: Known,
        most: usize,
    ) {
        if most == 0 {
            self.dropped += usize::from(known.owed);
            self.remove(token);
            return;
        }
        let is_done = |line: &Line| matches!(line.what, What::Done(_));
        if !self.lines.get(&token).is_some_and(is_done) {
            self.done.push_back(token);
        }
        let until = after(Instant::now(), retention);
        self.write(key, token, What::Done(record), until, known);
        while self.answer_bytes > MOST_ANSWER_BYTES
            && let Some((_, oldest)) = self.answered.pop_first()
        {
            if let Some(line) = self.lines.get_mut(&oldest) {
                self.answer_bytes -= line.what.answer_size();
                line.strip();
            }
        }
        while self.done.len() > most
            && let Some(oldest) = self.done.pop_front()
        {
            if self.lines.get(&oldest).is_some_and(is_done)
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
        self.remove_all(key, |_, what| match what {
            What::Done(_) => true,
            What::Lease(_) => force,
            What::Release { .. } | What::Forget => false,
        });
    }

    /// The primary decided for this token, and the secondary remembers another, which it is to
    /// forget. `false`: the book says something else of the token by now.
    pub(super) fn overrule(&mut self, key: &Key, token: Token, lease: bool) -> bool {
        let line = self.lines.get(&token);
        if line.is_none_or(|line| line.mirrored || line.what.is_lease() != lease) {
            return false;
        }
        self.remove_all(key, |other, what| {
            other != token && matches!(what, What::Done(_))
        });
        self.overruled.add(key);
        true
    }

    pub(super) fn overruled(&mut self, key: &Key) {
        self.overruled.remove(key);
    }

    fn remove_all(&mut self, key: &Key, which: impl Fn(Token, &What) -> bool) {
        let lines = self.lines.iter().filter(|(_, line)| line.key == *key);
        let lines = lines.filter(|(token, line)| which(**token, &line.what));
        let tokens: Vec<_> = lines.map(|(token, _)| *token).collect();
        for token in tokens {
            self.remove(token);
        }
    }

    fn errand(&mut self, key: &Key, token: Token, what: What, lease: Duration) {
        let is_errand = |line: &Line| matches!(line.what, What::Release { .. } | What::Forget);
        if !self.lines.get(&token).is_some_and(is_errand) {
            self.errands.push_back(token);
        }
        let known = Known {
            owed: true,
            sent: true,
            mirrored: true,
        };
        self.write(key, token, what, after(Instant::now(), lease), known);
        while self.errands.len() > MOST_ERRANDS
            && let Some(oldest) = self.errands.pop_front()
        {
            if self.lines.get(&oldest).is_some_and(is_errand) {
                self.remove(oldest);
            }
        }
    }

    fn write(&mut self, key: &Key, token: Token, what: What, until: Instant, known: Known) {
        let old = self.remove(token);
        let old = old.filter(|line| line.what.rank() == what.rank());
        // Where it is contested, it is not tried again at once.
        let contested = known.owed && old.as_ref().is_some_and(|line| line.contested);
        self.changes += 1;
        let line = Line {
            key: key.clone(),
            what,
            until,
            owed: known.owed,
            contested,
            sent: known.sent,
            mirrored: known.mirrored && !self.overruled.contains(key),
            stripped: false,
            since: old.map_or_else(SystemTime::now, |line| line.since),
            change: self.changes,
        };
        self.leases += usize::from(line.what.is_lease());
        if line.what.answer_size() > 0 {
            self.answer_bytes += line.what.answer_size();
            self.answered.insert(line.change, token);
        }
        if line.is_local() {
            self.enter(key);
        }
        if !line.mirrored {
            self.missing.insert(key.clone(), token);
        }
        self.lines.insert(token, line);
    }

    /// The secondary knows that the token has acquired the event. `false`: it has given it up
    /// since.
    pub(super) fn lease_mirrored(&mut self, key: &Key, token: Token) -> bool {
        let Some(line) = self.lines.get_mut(&token) else {
            return false;
        };
        if line.what.is_lease() {
            line.mirrored = true;
            self.not_missing(key, token);
            return true;
        }
        matches!(line.what, What::Done(_))
    }

    /// The secondary knows that the token has completed the event.
    pub(super) fn done_mirrored(&mut self, key: &Key, token: Token) {
        if let Some(line) = self.lines.get_mut(&token) {
            line.mirrored = true;
            self.not_missing(key, token);
        }
    }

    fn not_missing(&mut self, key: &Key, token: Token) {
        if self.missing.get(key) == Some(&token) {
            self.missing.remove(key);
        }
    }

    /// The line that has the word about an event of which the secondary does not know.
    pub(super) fn missing(&self, key: &Key) -> Option<(Token, &Line)> {
        let token = *self.missing.get(key)?;
        let line = self.lines.get(&token)?;
        (line.until > Instant::now()).then_some((token, line))
    }

    /// What the book says to another token about such an event.
    pub(super) fn answer(&self, key: &Key, token: Token) -> Option<Acquire> {
        let (holder, line) = self.missing(key)?;
        if holder == token { None } else { line.answer() }
    }

    fn remove(&mut self, token: Token) -> Option<Line> {
        let line = self.lines.remove(&token)?;
        self.leases -= usize::from(line.what.is_lease());
        self.answer_bytes -= line.what.answer_size();
        self.answered.remove(&line.change);
        if line.is_local() {
            self.leave(&line.key);
        }
        if !line.mirrored {
            self.not_missing(&line.key, token);
        }
        Some(line)
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
}
