//! Bodies that came more than once lately, and what was made of them.

use std::{fmt, hash::BuildHasher};

use bytes::Bytes;
use foldhash::quality::RandomState;

use crate::{BodyHash, identity::IdText, mutex::Mutex};

/// Longer bodies are not kept; with the text of an id that had to be made.
const LONGEST: usize = 16 * 1024;

/// Recognises the very bytes of a body, so that a storm of one event is neither hashed nor parsed
/// again.
///
/// It says nothing about an event, only what its body says: hash and id. Found by a fast hash with a
/// secret of its own, and compared byte for byte.
pub(crate) struct RecentBodies {
    slots: Box<[Mutex<Option<Recent>>]>,
    secret: RandomState,
}

/// A body, and what stands in it.
#[derive(Clone)]
struct Recent {
    fast_hash: u64,
    body: Bytes,
    seen: Seen,
}

/// What was made of a body.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) body_hash: BodyHash,
    /// `None` where it does not depend on the body alone.
    pub(crate) event_id: Option<IdText>,
}

impl RecentBodies {
    /// Room for so many; for none there is no need of this.
    pub(crate) fn new(count: usize) -> Self {
        let slots = std::iter::repeat_with(Mutex::default).take(count);
        Self {
            slots: slots.collect(),
            secret: RandomState::default(),
        }
    }

    /// What was made of the same body.
    pub(crate) fn look(&self, body: &Bytes) -> Option<Seen> {
        let (slot, fast_hash) = self.slot(body)?;
        let recent = {
            let slot = slot.lock();
            slot.as_ref()
                .filter(|it| it.fast_hash == fast_hash)?
                .clone()
        };
        (recent.body == body).then_some(recent.seen)
    }

    /// Keeps a body that came again, in memory of its own: `Bytes` would keep the whole buffer of
    /// the server alive. It takes the place of another one.
    pub(crate) fn keep(&self, body: &Bytes, seen: impl FnOnce() -> Seen) {
        let Some((slot, fast_hash)) = self.slot(body) else {
            return;
        };
        let mut slot = slot.lock();
        // If it is another one with the same hash, it may stay.
        if slot.as_ref().is_some_and(|it| it.fast_hash == fast_hash) {
            return;
        }
        let seen = seen();
        let id = seen.event_id.as_ref().map_or(0, IdText::size);
        if body.len() + id <= LONGEST {
            *slot = Some(Recent {
                fast_hash,
                body: Bytes::copy_from_slice(body),
                seen,
            });
        }
    }

    /// The one place where a body can be.
    fn slot(&self, body: &Bytes) -> Option<(&Mutex<Option<Recent>>, u64)> {
        if body.len() > LONGEST {
            return None;
        }
        let fast_hash = self.secret.hash_one(&body[..]);
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let n = fast_hash as usize % self.slots.len();
        Some((&self.slots[n], fast_hash))
    }
}

impl fmt::Debug for RecentBodies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {}", self.slots.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(body: &Bytes) -> Seen {
        Seen {
            body_hash: BodyHash::of(body),
            event_id: None,
        }
    }

    #[test]
    fn bodies_are_compared_and_not_only_their_hashes() {
        let bodies = RecentBodies::new(1);
        let (known, other) = (Bytes::from("known"), Bytes::from("other"));
        bodies.keep(&known, || seen(&known));
        assert!(bodies.look(&known).is_some());
        assert!(bodies.look(&other).is_none());

        // As if both had the same hash.
        let (_, fast_hash) = bodies.slot(&other).unwrap();
        bodies.slots[0].lock().as_mut().unwrap().fast_hash = fast_hash;
        assert!(bodies.look(&other).is_none());
    }

    #[test]
    fn the_last_body_that_came_again_is_kept() {
        let bodies = RecentBodies::new(1);
        let (one, other) = (Bytes::from("one"), Bytes::from("other"));
        for (body, past) in [(&one, &other), (&other, &one)] {
            bodies.keep(body, || seen(body));
            assert!(bodies.look(body).is_some());
            assert!(bodies.look(past).is_none());
            bodies.keep(body, || panic!("it is there"));
        }
    }

    #[test]
    fn long_bodies_are_not_kept() {
        let bodies = RecentBodies::new(1);
        let longest = Bytes::from(vec![b' '; 16 * 1024]);
        let longer = Bytes::from(vec![b' '; 16 * 1024 + 1]);
        for (body, kept) in [(longest, true), (longer, false)] {
            bodies.keep(&body, || seen(&body));
            assert_eq!(bodies.look(&body).is_some(), kept, "{}", body.len());
        }
    }

    /// A join stands in no body, and escapes what it is made of.
    #[test]
    fn the_text_of_an_id_counts_too() {
        let bodies = RecentBodies::new(1);
        let body = Bytes::from(vec![b'|'; LONGEST / 2]);
        for (length, kept) in [(LONGEST / 2 + 1, false), (LONGEST / 2, true)] {
            bodies.keep(&body, || Seen {
                event_id: Some(IdText::Made("x".repeat(length).into())),
                ..seen(&body)
            });
            assert_eq!(bodies.look(&body).is_some(), kept, "{length}");
        }
    }
}
