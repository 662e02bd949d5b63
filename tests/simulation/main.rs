//! A deterministic simulation: senders, several processes and one store, on one thread and a
//! paused clock, with faults. All of a world comes from one seed; see `tests/README.md`.
//!
//! ```text
//! cargo test --test simulation                                            # 2 000 worlds
//! SIMULATION_SEEDS=100000 cargo test --release --test simulation worlds   # more
//! SIMULATION_SEED=17 cargo test --test simulation worlds -- --nocapture   # one, with its trace
//! ```

mod acknowledged;
mod answers;
mod clocks;
mod draw;
mod ends;
mod faults;
mod invariants;
mod ledger;
mod log;
mod model;
mod network;
mod one_run;
mod owners;
mod plan;
mod policy;
mod process;
mod remembered;
mod schedule;
mod sender;
mod server;
mod shrink;
mod store;
mod theme;
mod world;

use std::{
    env,
    ops::Range,
    panic::catch_unwind,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use crate::{
    invariants::{Breach, Excuses, Invariant, Verdict},
    ledger::Ledger,
    log::{Fact, render},
    plan::Plan,
    shrink::shrink,
};

const SEEDS: u64 = 2_000;

/// Plays the plan, and says what does not hold.
fn judge(plan: &Plan) -> (Vec<Fact>, Vec<Breach>, Excuses) {
    let facts = world::play(plan);
    let verdict = Verdict::on(Ledger::new(plan, &facts));
    let (breaches, excuses) = (verdict.breaches, verdict.excuses);
    (facts, breaches, excuses)
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
    )
}

/// What is said of a seed that fails.
fn report(seed: u64) -> String {
    let plan = Plan::of(seed);
    let (facts, breaches, _) = judge(&plan);
    let Some(first) = breaches.first() else {
        return format!("seed {seed} failed, and does not when it is played again");
    };
    let shorter = shrink(&plan, first.invariant);
    let (short, found, _) = judge(&shorter);
    let list = |breaches: &[Breach]| -> String {
        breaches
            .iter()
            .map(|breach| format!("  {breach}\n"))
            .collect()
    };
    format!(
        "seed {seed} breaches\n{}\n{}\nA shorter plan that breaches the same: {shorter:#?}\n\n{}\n{}\n\
         To play it again: SIMULATION_SEED={seed} cargo test --test simulation worlds -- --nocapture\n",
        list(&breaches),
        render(&facts),
        list(&found),
        render(&short),
    )
}

/// Plays all these worlds, until one fails: its seed, and what was excused.
fn explore(seeds: Range<u64>) -> (Option<u64>, Excuses) {
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let found = Mutex::new((None::<u64>, Excuses::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::SeqCst);
            if seed >= seeds.end || failed.load(Ordering::SeqCst) {
                return;
            }
            let judged = catch_unwind(|| judge(&Plan::of(seed)));
            let mut found = found.lock().unwrap();
            match judged {
                Ok((_, breaches, excuses)) if breaches.is_empty() => {
                    for (excuse, n) in excuses {
                        *found.1.entry(excuse).or_default() += n;
                    }
                }
                _ => {
                    failed.store(true, Ordering::SeqCst);
                    found.0 = Some(found.0.map_or(seed, |it| it.min(seed)));
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    found.into_inner().unwrap()
}

#[test]
fn the_promises_hold_in_all_worlds() {
    if let Some(seed) = number("SIMULATION_SEED") {
        let plan = Plan::of(seed);
        let (facts, breaches, excuses) = judge(&plan);
        println!("{plan:#?}\n\n{}\n{excuses:#?}", render(&facts));
        assert!(breaches.is_empty(), "{}", report(seed));
        return;
    }
    let seeds = number("SIMULATION_SEEDS").unwrap_or(SEEDS);
    let (failed, excuses) = explore(0..seeds);
    if let Some(seed) = failed {
        panic!("{}", report(seed));
    }
    println!("{seeds} worlds; what was excused, and how often: {excuses:#?}");
}

#[test]
fn a_seed_tells_all() {
    for seed in 0..200 {
        let plan = Plan::of(seed);
        let first = render(&world::play(&plan));
        assert_eq!(first, render(&world::play(&plan)), "seed {seed}");
    }
}

#[test]
fn a_store_that_breaks_its_word_is_found_and_the_plan_is_shortened() {
    let sabotaged = |seed| Plan {
        sabotaged: true,
        ..Plan::of(seed)
    };
    let mut plans = (0..200).map(sabotaged);
    let is_two_runs = |it: &Breach| it.invariant == Invariant::OneRun;
    // A process does not ask the store about a run of its own: it takes two of them.
    let plan = plans.find(|plan| {
        let is_long = plan.processes > 1 && plan.faults.len() > 3;
        is_long && judge(plan).1.iter().any(is_two_runs)
    });
    let plan = plan.expect("it is found");
    let shorter = shrink(&plan, Invariant::OneRun);
    assert!(judge(&shorter).1.iter().any(is_two_runs));
    let size = |plan: &Plan| {
        let events = plan.events.iter();
        let events = events.map(|it| 1 + it.copies.len() + it.runs.len());
        plan.faults.len() + events.sum::<usize>()
    };
    assert!(size(&shorter) < size(&plan), "{shorter:?}");
    assert_eq!(shorter.events.len(), 1, "{shorter:?}");
}
