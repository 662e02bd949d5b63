//! Writes what was measured: `RESULTS.md`, in two parts that are measured apart, and a chart.

pub(crate) mod chart;
pub(crate) mod table;

use std::{fmt, fs, path::Path, process::Command, time::SystemTime};

use self::table::Table;
use crate::{Result, machine};

/// A part of `RESULTS.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Comparison,
    Scale,
}

impl Part {
    const ALL: [Self; 2] = [Self::Comparison, Self::Scale];

    const fn title(self) -> &'static str {
        match self {
            Self::Comparison => "What a delivery costs",
            Self::Scale => "How it grows",
        }
    }

    const fn command(self) -> &'static str {
        match self {
            Self::Comparison => "scripts/load",
            Self::Scale => "scripts/load scale",
        }
    }

    /// The line that the part begins with.
    fn heading(self) -> String {
        format!("## {}\n", self.title())
    }
}

const HEAD: &str = "# Results of the load test\n\n\
    Written by `scripts/load`; [README.md](README.md) says how it is measured. Trust CPU and ratios within \
    one run: requests a second swing with whatever else the machine does.\n\n";

/// Puts the part into `RESULTS.md` in that folder, and prints it.
pub(crate) fn write(part: Part, text: &str, folder: &Path) -> Result<()> {
    let file = folder.join("RESULTS.md");
    let before = fs::read_to_string(&file).unwrap_or_default();
    let text = format!("{}\n{}\n{text}", part.heading(), provenance(part)?);
    println!("{text}");
    let parts = Part::ALL.map(|it| {
        if it == part {
            text.clone()
        } else {
            existing(&before, it).unwrap_or_default().to_owned()
        }
    });
    let parts: Vec<_> = parts
        .iter()
        .map(|part| part.trim())
        .filter(|part| !part.is_empty())
        .collect();
    fs::write(&file, format!("{HEAD}{}\n", parts.join("\n\n")))?;
    eprintln!("written: {}", file.display());
    Ok(())
}

/// From the part's heading to that of the next one.
fn existing(text: &str, part: Part) -> Option<&str> {
    let from = text.find(&part.heading())?;
    let rest = &text[from..];
    let ends = Part::ALL
        .iter()
        .filter_map(|next| rest[1..].find(&next.heading()));
    Some(&rest[..ends.min().map_or(rest.len(), |end| end + 1)])
}

/// When, by what, and on what.
fn provenance(part: Part) -> Result<String> {
    let now = humantime::format_rfc3339_seconds(SystemTime::now());
    Ok(format!(
        "`{}`, {now}, commit {}. {}; {}.\n",
        part.command(),
        commit(),
        machine::describe()?,
        versions(),
    ))
}

/// The commit that was measured; `+` where the tree differs from it.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let folder = env!("CARGO_MANIFEST_DIR");
        let output = Command::new("git")
            .args(["-C", folder])
            .args(arguments)
            .output();
        output.map_or_else(
            |_| String::new(),
            |it| String::from_utf8_lossy(&it.stdout).trim().to_owned(),
        )
    };
    let changed = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "../../src",
        "src",
    ]);
    let commit = git(&["rev-parse", "--short", "HEAD"]);
    format!("{commit}{}", if changed.is_empty() { "" } else { "+" })
}

/// Those of the crates that matter most, as they are locked.
fn versions() -> String {
    const NAMES: [&str; 4] = ["axum", "idempotent", "redis", "tokio"];

    let packages = include_str!("../../Cargo.lock").split("[[package]]");
    let field = |package: &'static str, name: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim_matches([' ', '=', '"']))
    };
    let versions: Vec<_> = packages
        .filter_map(|package| Some((field(package, "name")?, field(package, "version")?)))
        .filter(|(name, _)| NAMES.contains(name))
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    versions.join(", ")
}

/// A table under a heading.
pub(crate) fn section(f: &mut fmt::Formatter<'_>, title: &str, table: &Table) -> fmt::Result {
    writeln!(f, "### {title}\n\n{table}")
}
