//! What of it the primary does not know.

use super::Book;
use crate::store::fallback::line::{Debt, Line, What};

impl Book {
    /// From now on nothing is certain of what the primary knew.
    pub(in crate::store::fallback) fn owe_all(&mut self) {
        let lines = self.lines.values_mut();
        for line in lines.filter(|line| !line.owed) {
            line.owed = true;
            if line.is_local() {
                self.local.add(&line.key);
            }
        }
    }

    /// What is to be carried; of the contested ones, only where they are asked for. From here on
    /// the primary may hear of it.
    pub(in crate::store::fallback) fn debts(&mut self, contested: bool) -> Vec<Debt> {
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
                    stripped: line.stripped,
                    change: line.change,
                }
            })
            .collect();
        debts.sort_by_key(|debt| debt.what.rank());
        debts
    }

    /// The primary was told.
    pub(in crate::store::fallback) fn settle(&mut self, debt: &Debt) {
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
    pub(in crate::store::fallback) fn contest(&mut self, debt: &Debt) {
        if let Some(line) = self.lines.get_mut(&debt.token)
            && line.change == debt.change
        {
            line.contested = true;
        }
    }

    /// How much is owed: what was not tried yet, and how many events are contested.
    pub(in crate::store::fallback) fn owed(&self) -> (usize, usize) {
        let owed = self.lines.values().filter(|line| line.owed);
        let (contested, fresh): (Vec<_>, Vec<_>) = owed.partition(|line| line.contested);
        let contested = contested.into_iter().filter(|line| line.is_local());
        (fresh.len(), contested.count())
    }

    pub(in crate::store::fallback) fn owes(&self) -> bool {
        self.lines.values().any(|line| line.owed)
    }
}
