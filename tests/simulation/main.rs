//! A deterministic simulation: senders, several processes and one store, on one thread and a
//! paused clock, with faults. All of a world comes from one seed.

mod draw;
mod faults;
mod log;
mod model;
mod network;
mod plan;
mod process;
mod schedule;
mod sender;
mod server;
mod store;
mod world;

use crate::plan::Plan;

#[test]
fn a_seed_tells_all() {
    for seed in 0..200 {
        let plan = Plan::of(seed);
        let first = log::render(&world::play(&plan));
        let second = log::render(&world::play(&plan));
        if first != second {
            for (a, b) in first.lines().zip(second.lines()) {
                if a != b { println!("{a}\n{b}"); break; }
            }
        }
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn show() {
    let Ok(seed) = std::env::var("SIMULATION_SEED") else { return };
    let plan = Plan::of(seed.parse().unwrap());
    println!("{plan:#?}");
    println!("{}", log::render(&world::play(&plan)));
}
