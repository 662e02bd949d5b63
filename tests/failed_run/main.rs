//! Promise 3: a failed run never looks done, and the event stays runnable.

mod answers;
mod attempts;
mod detached;
mod hang_ups;
mod panics;
mod run_limit;
mod runtimes;

#[path = "../support/http.rs"]
mod http_support;
#[path = "../support/runtime.rs"]
mod runtime;
#[path = "../support/stores.rs"]
mod stores;

use std::{error::Error, fmt};

use tokio::time::sleep;
use tower_webhook_dedup::{LeaseStore, WebhookDedupLayer};

use self::http_support::{Handler, Run, by_id, millis, secs};

/// `C0` with a lease so long that only a release explains that an event runs again.
fn long_lease<St: LeaseStore>(store: St) -> WebhookDedupLayer<St> {
    by_id(store).lease(secs(3600))
}

/// Panics first, and then does as it should.
fn panicking() -> Handler {
    Handler::new(|run: Run| async move {
        sleep(millis(10)).await;
        assert!(run.n > 1, "a handler that panics");
        200
    })
}

#[derive(Debug, PartialEq)]
struct Refused(&'static str);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for Refused {}
