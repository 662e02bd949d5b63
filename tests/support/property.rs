//! How property tests are run.

use std::env;

use proptest::test_runner::Config;

/// So many cases for each, or as many as the environment says in `PROPTEST_CASES`.
pub(crate) fn config(cases: u32) -> Config {
    let default = Config::default();
    Config {
        cases: env::var_os("PROPTEST_CASES").map_or(cases, |_| default.cases),
        failure_persistence: None,
        ..default
    }
}
