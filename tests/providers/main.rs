//! Each preset, on the requests of its sender.

mod answers;
mod deliveries;
mod documentation;
mod handshakes;
mod ids;
mod settings;

#[path = "../support/fixtures.rs"]
mod fixtures;
#[path = "../support/http.rs"]
mod http_support;
#[path = "../support/stores.rs"]
mod stores;

use tower_webhook_dedup::{Preset, providers};

use self::fixtures::{Fixture, fixtures};

fn name(preset: &Preset) -> &'static str {
    preset.name().unwrap()
}

fn preset(wanted: &str) -> Preset {
    providers::all().find(|it| name(it) == wanted).unwrap()
}

/// The fixtures of this preset, in the manifest's order.
fn of(preset: &Preset) -> Vec<Fixture> {
    let mut all = fixtures();
    all.retain(|fixture| fixture.presets.iter().any(|it| it == name(preset)));
    all
}

/// Those of them that are events, each once.
fn events(preset: &Preset) -> Vec<Fixture> {
    let mut events = of(preset);
    events.retain(|fixture| !fixture.is_handshake() && fixture.same_as == "-");
    assert!(!events.is_empty(), "{}: no fixture", name(preset));
    events
}

/// The fixture as it is sent again: the retry that the manifest has, or the same.
fn again(fixture: &Fixture) -> Fixture {
    let all = fixtures();
    let retry = all.into_iter().find(|it| it.same_as == fixture.name);
    retry.unwrap_or_else(|| fixture.clone())
}
