//! Runtimes for tests that outlive one.

use tokio::runtime::{Builder, Runtime};

/// A runtime of this thread alone, whose clock stands still while there is something to do.
pub(crate) fn paused_runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}
