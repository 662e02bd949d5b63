//! What a layer reported.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "no test uses all of it"
)]

use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tower_webhook_dedup::{DedupEvent, Lost};

/// Whether an event is of this kind.
macro_rules! is {
    ($kind:ident) => {
        |event: &tower_webhook_dedup::DedupEvent| {
            matches!(event, tower_webhook_dedup::DedupEvent::$kind { .. })
        }
    };
}
pub(crate) use is;

/// All events of a layer, in order, and when each was reported.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<(Instant, DedupEvent)>>>);

impl Events {
    /// To be given to `on_event`.
    pub(crate) fn hook(&self) -> impl Fn(&DedupEvent) + Send + Sync + 'static {
        let events = self.clone();
        move |event| {
            let mut events = events.0.lock().unwrap();
            events.push((Instant::now(), event.clone()));
        }
    }

    pub(crate) fn all(&self) -> Vec<(Instant, DedupEvent)> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, which: impl Fn(&DedupEvent) -> bool) -> usize {
        self.all().iter().filter(|(_, event)| which(event)).count()
    }

    pub(crate) fn lost(&self) -> Vec<Lost> {
        let lost = |(_, event)| match event {
            DedupEvent::Lost(lost) => Some(lost),
            _ => None,
        };
        self.all().into_iter().filter_map(lost).collect()
    }
}
