//! What became of a delivery.

use std::time::Duration;

/// What the sender hears.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) outcome: String,
    pub(crate) retry_after: Option<u64>,
    pub(crate) took: Duration,
}

impl Answer {
    #[track_caller]
    pub(crate) fn is(&self, status: u16, outcome: &str) {
        assert_eq!((self.status, &*self.outcome), (status, outcome), "{self:?}");
    }
}
