//! Promise 5: trouble in the store becomes an answer, never a hang.

mod completions;
mod panics;
mod policy;
mod timeouts;
mod transactions;

#[path = "../support/http.rs"]
mod http_support;
#[path = "../support/stores.rs"]
mod stores;

use std::time::Duration;

use tower_webhook_dedup::{Error, Outcome, Refusal, Unprotected};

use self::http_support::{Answer, millis};

/// The store timeout of `C0`, and the slack on it.
const AT_MOST: Duration = millis(300 + 100);

fn store_error(answer: &Answer) -> Error {
    match answer.outcome() {
        Outcome::Refused(Refusal::StoreFailed { error, .. })
        | Outcome::Unprotected(Unprotected::StoreFailed(error)) => error,
        other => panic!("{other:?}"),
    }
}
