//! What it costs to make the key of an event, and to write and read what a store keeps of it,
//! against `format!`, `hex` and `serde_json::Value` as they are usually used.
//!
//! `cargo bench --bench text`

use std::{hint::black_box, time::Duration};

use criterion::Criterion;
use serde_json::{Value, json};
use tower_webhook_dedup::{BodyHash, Entry, Key, Token};

const ID: &str = "evt_1FxTurePaY0000000000001";

fn key(criterion: &mut Criterion) {
    let hash = BodyHash::of(b"body");
    let mut group = criterion.benchmark_group("key");
    group.bench_function("Key", |bencher| {
        bencher.iter(|| Key::with_hash(black_box("billing"), black_box(ID), hash));
    });
    group.bench_function("usual", |bencher| {
        bencher.iter(|| {
            let hash = hex::encode(black_box(hash.as_bytes()));
            format!(
                "webhook:lock:{}:{}:{hash}",
                black_box("billing"),
                black_box(ID)
            )
        });
    });
    group.finish();
}

fn record(criterion: &mut Criterion) {
    let (token, hash) = (Token::random(), BodyHash::of(b"body"));
    let text = format!("v1 done {token} 1764457742000 200 {hash}");
    let entry: Entry = text.parse().expect("an entry");
    let usual = json!({
        "state": "done",
        "token": token.to_string(),
        "at": 1_764_457_742_000_u64,
        "status": 200,
        "body_hash": hash.to_string(),
    });
    let usual_text = usual.to_string();
    let mut group = criterion.benchmark_group("record");
    group.bench_function("Entry, written", |bencher| {
        bencher.iter(|| black_box(&entry).to_string());
    });
    group.bench_function("Entry, read", |bencher| {
        bencher.iter(|| black_box(&text).parse::<Entry>());
    });
    group.bench_function("usual, written", |bencher| {
        bencher.iter(|| black_box(&usual).to_string());
    });
    group.bench_function("usual, read", |bencher| {
        bencher.iter(|| serde_json::from_str::<Value>(black_box(&usual_text)));
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(40)
        .configure_from_args();
    key(&mut criterion);
    record(&mut criterion);
    criterion.final_summary();
}
