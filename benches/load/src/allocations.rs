//! How often the layer allocates, as the tests of the layer count it: a counting allocator in the
//! servers here would slow down those that allocate much.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use crate::Result;

/// Over the bare service.
#[derive(Debug)]
pub(crate) struct Allocations {
    pub(crate) in_memory: Deliveries,
    /// One request at a time.
    pub(crate) alone: Deliveries,
    /// Sixteen at once.
    pub(crate) among_others: Deliveries,
    /// A duplicate of a mebibyte, in memory.
    pub(crate) large: f64,
}

#[derive(Debug)]
pub(crate) struct Deliveries {
    pub(crate) first: f64,
    pub(crate) duplicate: f64,
}

/// Runs the tests that print them. Building those comes before anything is measured.
pub(crate) fn count() -> Result<Allocations> {
    eprintln!("allocations");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let output = Command::new("cargo")
        .args(["test", "--quiet", "--all-features", "--manifest-path"])
        .arg(manifest)
        .args(["--test", "allocations", "--test", "redis_allocations"])
        .args(["--", "--nocapture", "--test-threads=1"])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err("the tests that count allocations do not pass".into());
    }
    let printed = String::from_utf8(output.stdout)?;
    let count = |of: &str| -> Result<f64> {
        let line = format!("allocations over bare, {of}: ");
        let (_, rest) = printed
            .split_once(&line)
            .ok_or_else(|| format!("no {of}"))?;
        let number = rest.split_whitespace().next().unwrap_or_default();
        Ok(number.parse()?)
    };
    let deliveries = |how: &str| -> Result<_> {
        Ok(Deliveries {
            first: count(&format!("first delivery{how}"))?,
            duplicate: count(&format!("duplicate{how}"))?,
        })
    };
    Ok(Allocations {
        in_memory: deliveries("")?,
        alone: deliveries(" through Redis, 1 at once")?,
        among_others: deliveries(" through Redis, 16 at once")?,
        large: count("duplicate of 1048576 bytes")?,
    })
}
