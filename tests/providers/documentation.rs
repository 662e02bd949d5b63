//! What is written about the presets.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use tower_webhook_dedup::{KeyBy, providers};

use crate::{http_support::secs, name};

fn source(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/providers");
    fs::read_to_string(folder.join(file)).unwrap()
}

#[test]
fn every_function_is_one_of_all_by_its_own_name() {
    let mut functions = BTreeSet::new();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/providers")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("pub fn "));
        let presets = lines.filter_map(|line| line.strip_suffix("() -> Preset {"));
        functions.extend(presets.map(ToOwned::to_owned));
    }
    let all: Vec<_> = providers::all().map(|preset| name(&preset)).collect();
    assert!(all.is_sorted(), "{all:?}");
    assert_eq!(functions, all.into_iter().map(ToOwned::to_owned).collect());
}

/// `36 hours`, `4 days`.
fn duration(text: &str) -> Duration {
    let (n, unit) = text.split_once(' ').unwrap();
    let hours = match unit {
        "hour" | "hours" => 1,
        "day" | "days" => 24,
        other => panic!("{other}"),
    };
    secs(3600 * hours * n.parse::<u64>().unwrap())
}

#[test]
fn the_table_in_the_docs_says_what_the_presets_do() {
    let text = source("mod.rs");
    let rows: Vec<Vec<_>> = text
        .lines()
        .filter_map(|line| line.strip_prefix("//! | [`"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let presets: Vec<_> = providers::all().collect();
    assert_eq!(rows.len(), presets.len());
    for (row, preset) in rows.iter().zip(presets) {
        let what = name(&preset);
        let [title, id, key, kept, _caveats, ""] = row[..] else {
            panic!("{row:?}");
        };
        assert_eq!(title, format!("{what}`]"));
        assert_eq!(id, format!("`{}`", preset.event_id()), "{what}");
        let key_by = if key == "alone" {
            KeyBy::Id
        } else {
            KeyBy::IdAndBody
        };
        assert!(["alone", "and body"].contains(&key), "{what}");
        assert_eq!(*preset.key_by(), key_by, "{what}");
        assert_eq!(Some(duration(kept)), preset.retention(), "{what}");
    }
}

#[test]
fn every_preset_names_its_sources_and_how_long_it_keeps_events() {
    for preset in providers::all() {
        let what = name(&preset);
        let function = format!("pub fn {what}() -> Preset {{");
        let files = ["payments.rs", "people.rs", "standards.rs", "work.rs"].map(source);
        let file = files.iter().find(|file| file.contains(&function)).unwrap();
        let before = &file[..file.find(&function).unwrap()];
        let docs: Vec<_> = before
            .lines()
            .rev()
            .take_while(|line| line.starts_with("///"))
            .collect();
        assert!(
            docs.iter().any(|line| line.contains("]: https://")),
            "{what}"
        );
        assert!(docs.iter().any(|line| line.contains("kept")), "{what}");
    }
}
