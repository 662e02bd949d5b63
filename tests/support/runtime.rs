//! Runtimes for tests that outlive one, and for tests of very many futures.

#![allow(dead_code, reason = "no test uses all of it")]

use std::future::Future;

use tokio::runtime::{Builder, Runtime};

/// A runtime of this thread alone, whose clock stands still while there is something to do.
pub(crate) fn paused_runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

/// Runs the future on such a runtime, one for all that this thread runs.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    thread_local! {
        static RUNTIME: Runtime = paused_runtime();
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}
