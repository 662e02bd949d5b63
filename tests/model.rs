//! The lease protocol, checked in every interleaving up to a bound.
//!
//! Two owners are delivered one event. Commands are lost, land late and land twice; replies get
//! lost or come late; leases run out; processes die or stand still; the store forgets. What must hold
//! at all times is in `world.rs`, what a store does in `protocol.rs`, and the last test here holds the
//! latter against a real store.
//!
//! `MODEL_FURTHER=1 cargo test --release --test model -- --nocapture` looks a tick further.

#[path = "model/protocol.rs"]
mod protocol;
#[path = "model/world.rs"]
mod world;

use std::{env, time::Duration};

use stateright::{Checker, HasDiscoveries, Model};
use tokio::time::Instant;
use tower_webhook_dedup::{Acquire, Entry, Key, LeaseStore, MemoryStore, Record, Release, Token};

use self::{
    protocol::{Answer, Command, Stored},
    world::{Bug, World},
};

/// No faults but those of the network.
const CALM: World = World {
    attempts: [1, 1],
    end: 2,
    crashes: false,
    freezes: false,
    amnesia: false,
    bug: None,
};

fn check(world: World) {
    let further = env::var("MODEL_FURTHER").map_or(0, |ticks| ticks.parse().unwrap());
    let world = World {
        end: world.end + further,
        ..world
    };
    let checker = world.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!(
        "{world:?}: {} states, at most {} steps from the first",
        checker.unique_state_count(),
        checker.max_depth(),
    );
}

#[test]
fn one_owner_at_a_time_whatever_the_network_does() {
    check(CALM);
}

#[test]
fn one_owner_at_a_time_though_processes_die() {
    check(World {
        crashes: true,
        ..CALM
    });
}

#[test]
fn nothing_is_overwritten_by_an_owner_that_stood_still() {
    check(World {
        freezes: true,
        ..CALM
    });
}

#[test]
fn nothing_is_overwritten_after_the_store_forgot() {
    check(World {
        amnesia: true,
        ..CALM
    });
}

#[test]
fn a_failed_run_is_followed_by_another() {
    check(World {
        attempts: [2, 0],
        ..CALM
    });
}

/// The check can tell: each of these breaks a property of its own.
#[test]
fn deliberate_bugs_are_found() {
    for (bug, property) in [
        (Bug::DeadlineFromReply, "one owner at a time"),
        (
            Bug::ReleaseOfAnybody,
            "nothing of another token is overwritten",
        ),
        (
            Bug::RenewOverAnything,
            "nothing of another token is overwritten",
        ),
        (
            Bug::CompleteOverAnything,
            "nothing of another token is overwritten",
        ),
        (
            Bug::CompleteBeforeRun,
            "only a handler makes an event completed",
        ),
        (Bug::StrangeToItself, "an owner is not kept out by itself"),
        (
            Bug::ReleaseAfterComplete,
            "a completed handler is not reported as failed",
        ),
    ] {
        let bug = Some(bug);
        let checker = World { bug, ..CALM }
            .checker()
            .threads(2)
            .finish_when(HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        let found = checker.discovery(property);
        let path = found.unwrap_or_else(|| panic!("{bug:?} breaks nothing"));
        println!("{bug:?} breaks \"{property}\": {:?}", path.into_actions());
    }
}

/// What the model takes for granted of a store is what a store does.
#[tokio::test(start_paused = true)]
async fn the_model_is_of_the_store() {
    let lease = Duration::from_secs(30);
    let day = Duration::from_secs(24 * 3600);
    let by = Instant::now() + day;
    let (mine, other) = (Token::random(), Token::random());
    let names = |token: protocol::Token| if token.owner == 0 { mine } else { other };
    let [a, b] = [0, 1].map(|owner| protocol::Token { owner, attempt: 1 });
    let record = Record::new(Some(200), None);

    for stored in [
        Stored::Nothing,
        Stored::Failed,
        Stored::Running { token: a, until: 2 },
        Stored::Running { token: b, until: 2 },
        Stored::Done { token: a },
        Stored::Done { token: b },
    ] {
        for command in [
            Command::Acquire,
            Command::Renew,
            Command::Complete,
            Command::Release { failed: true },
            Command::Release { failed: false },
        ] {
            let store = MemoryStore::new();
            let key = Key::new("model", "evt_1");
            match stored {
                Stored::Nothing => {}
                Stored::Failed => {
                    let token = Token::random();
                    let release = Release::Failed { status: None };
                    store.acquire(&key, token, lease, by).await.unwrap();
                    store.release(&key, token, release, day, by).await.unwrap();
                }
                Stored::Running { token, .. } => {
                    store.acquire(&key, names(token), lease, by).await.unwrap();
                }
                Stored::Done { token } => {
                    store
                        .complete(&key, names(token), &record, day, by)
                        .await
                        .unwrap();
                }
            }

            let (after, answer) = stored.apply(command, a, 0);
            let given = match command {
                Command::Acquire => match store.acquire(&key, mine, lease, by).await.unwrap() {
                    Acquire::Acquired { .. } => Answer::Acquired,
                    Acquire::InFlight { .. } => Answer::InFlight,
                    Acquire::Done(_) => Answer::Done,
                    other => panic!("{other:?}"),
                },
                Command::Renew => Answer::Held(store.renew(&key, mine, lease, by).await.unwrap()),
                Command::Complete => {
                    Answer::Held(store.complete(&key, mine, &record, day, by).await.unwrap())
                }
                Command::Release { failed } => {
                    let release = match failed {
                        true => Release::Failed { status: None },
                        false => Release::Abandoned,
                    };
                    Answer::Held(store.release(&key, mine, release, day, by).await.unwrap())
                }
            };
            assert_eq!(given, answer, "{command:?} where there is {stored:?}");
            let kept = store.inspect(&key, by).await.unwrap();
            let same = match (after, &kept) {
                (Stored::Nothing, None) | (Stored::Failed, Some(Entry::Failed { .. })) => true,
                (Stored::Running { token, .. }, Some(Entry::Running { token: kept, .. }))
                | (Stored::Done { token }, Some(Entry::Done { token: kept, .. })) => {
                    *kept == names(token)
                }
                _ => false,
            };
            assert!(same, "{command:?} left {kept:?}, not {after:?}");
        }
    }
}
