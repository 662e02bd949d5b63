//! How long to pause between tries.

use std::{
    future::{Future, pending},
    pin::pin,
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures_util::{
    FutureExt, StreamExt,
    future::{Either, select},
    stream::FuturesUnordered,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

/// Pauses that double from `first` up to `cap`.
pub(crate) struct Pace {
    first: Duration,
    cap: Duration,
    pauses: ExponentialBackoff,
}

impl Pace {
    pub(crate) fn new(first: Duration, cap: Duration) -> Self {
        let first = first.min(cap);
        let pauses = ExponentialBuilder::new()
            .with_min_delay(first)
            .with_max_delay(cap)
            .without_max_times()
            .build();
        Self { first, cap, pauses }
    }

    pub(crate) fn pause(&mut self) -> Duration {
        self.pauses.next().unwrap_or(self.cap)
    }

    pub(crate) fn restart(&mut self) {
        *self = Self::new(self.first, self.cap);
    }
}

/// Sleeps until then, or until one of these has ended, while all of them go on. `true`: it was
/// woken.
pub(super) async fn sleep(
    next: Option<Instant>,
    wake: &Notify,
    going_on: &mut FuturesUnordered<impl Future<Output = ()>>,
) -> bool {
    let woken = pin!(wake.notified());
    let ended = pin!(async {
        match going_on.next().await {
            // All that have, so that the caller looks around once.
            Some(()) => while let Some(Some(())) = going_on.next().now_or_never() {},
            None => pending().await,
        }
    });
    let either = select(woken, ended);
    let ended = match next {
        Some(next) => timeout_at(next, either).await.ok(),
        None => Some(either.await),
    };
    matches!(ended, Some(Either::Left(_)))
}
