//! Worlds drawn from seeds: whatever the store does, a layer that refuses where it fails keeps its
//! promises, wherever it stands among others. `NESTED_SEEDS=100000` in the environment draws more.

use std::{
    collections::BTreeSet,
    env,
    future::pending,
    mem,
    sync::{Arc, Mutex},
};

use fastrand::Rng;
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower_webhook_dedup::{
    Delivery, Entry, KeyBy, OnDisconnect, StoreErrorKind, StoreFailure, WebhookDedupLayer,
};

use self::draw::draw;
use crate::{
    Boxed, Sent, around, between,
    http_support::{
        Events, Handler, Run, by_id, e1, in_flight_policies, is, millis, post, secs, send,
    },
    stores::{Fault, Faulty},
};

#[path = "../simulation/draw.rs"]
mod draw;

type Layer = WebhookDedupLayer<Faulty>;

#[derive(Clone)]
struct World {
    seed: u64,
    store: Faulty,
    start: Instant,
    events: Events,
    ledger: Arc<Mutex<Ledger>>,
}

#[derive(Default)]
struct Ledger {
    succeeded: bool,
    acknowledged: bool,
    /// How many runs have the promise to be the only one.
    alone: usize,
    breaches: BTreeSet<&'static str>,
}

/// A run that has the promise to be the only one.
struct Alone(Arc<Mutex<Ledger>>);

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.lock().unwrap().alone -= 1;
    }
}

impl World {
    fn draw(&self, question: &[u64]) -> Rng {
        draw(self.seed, question)
    }

    /// From then on the store does nothing wrong, and no run fails or takes long.
    fn is_calm(&self) -> bool {
        self.start.elapsed() >= secs(60)
    }

    fn holds(&self, holds: bool, breach: &'static str) {
        if !holds {
            self.ledger.lock().unwrap().breaches.insert(breach);
        }
    }

    /// The store as one engine reaches it.
    fn reach(&self, engine: u64) -> Faulty {
        let (world, store) = (self.clone(), self.store.elsewhere());
        let rate = self.draw(&[1, engine]).u32(..60);
        store.plan(move |call| {
            let mut rng = world.draw(&[2, engine, call.operation as u64, call.n as u64]);
            let time = millis(rng.u64(..3_000));
            let faults = [
                Fault::Hang,
                Fault::HangAfter,
                Fault::Late(time),
                Fault::Delay(time / 8),
                Fault::DelayAfter(time / 8),
                Fault::UNREACHABLE,
                Fault::After(StoreErrorKind::Unreachable),
            ];
            if world.is_calm() || rng.u32(..100) >= rate {
                return Fault::None;
            }
            faults[rng.usize(..faults.len())]
        });
        store
    }

    /// Layers around a handler, as one of two processes has them.
    fn process(&self, process: u64) -> (Vec<Layer>, Boxed<Sent>) {
        let mut rng = self.draw(&[3, process]);
        let (mut layers, mut promised) = (Vec::new(), false);
        for n in 0..rng.u64(1..=3) {
            let layer = by_id(self.reach(process * 3 + n))
                .on_event(self.events.hook())
                .run_limit(secs([3, 15, 3_600][rng.usize(..3)]))
                .in_flight(in_flight_policies()[rng.usize(..3)])
                .on_disconnect([OnDisconnect::Finish, OnDisconnect::Cancel][rng.usize(..2)]);
            // It says nothing about this event, and lets go of it with those that do.
            let other = |layer: Layer| {
                let layer = layer.key_by(KeyBy::IdAndBody);
                layer.on_disconnect(OnDisconnect::Cancel)
            };
            layers.push(match rng.u8(..8) {
                0..2 => layer.shadow(),
                2 => other(layer).shadow(),
                3 => layer.store_failure(StoreFailure::Forward),
                4 => other(layer).store_failure(StoreFailure::Forward),
                _ => {
                    promised = true;
                    layer
                }
            });
        }
        let (world, mut others) = (self.clone(), layers.iter().rev());
        let handler = Handler::new(move |run| world.clone().run(process, promised, run));
        let mut service = around(others.next().unwrap(), handler);
        for layer in others {
            let passes_on = move |mut request: Sent| {
                let delivery = request.extensions().get::<Delivery>().cloned();
                let extensions = request.extensions_mut();
                let outside: &mut Vec<_> = extensions.get_or_insert_default();
                outside.extend(delivery);
                send(&service, request)
            };
            service = around(layer, between(passes_on));
        }
        (layers, service)
    }

    /// One run of the handler. Where it has the promise to be the only one, it has to be, until it is
    /// told otherwise.
    async fn run(self, process: u64, promised: bool, run: Run) -> u16 {
        let mut rng = self.draw(&[4, process, run.n as u64]);
        let mut alone = None;
        if promised {
            let entry = self.store.entry(&e1()).await;
            self.holds(!matches!(entry, Some(Entry::Done { .. })), "run once more");
            // A lease that runs out in this very moment does so first.
            sleep(millis(1)).await;
            let mut ledger = self.ledger.lock().unwrap();
            ledger.alone += 1;
            alone = Some(Alone(self.ledger.clone()));
            if ledger.alone > 1 {
                ledger.breaches.insert("two runs at once");
            }
        }
        // The innermost that has a lease of this event says when that is lost.
        let outside = run.request.extensions().get::<Vec<Delivery>>();
        let mut runs = outside.cloned().unwrap_or_default();
        runs.push(run.delivery());
        runs.retain(|it| it.is_protected() && *it.key() == e1());
        let lease = runs.pop();
        let told = async move {
            if let Some(lease) = lease {
                lease.lease_lost().await;
                drop(alone);
            }
            pending::<()>().await;
        };
        let calm = self.is_calm();
        let time = [0, 500, 3_000, 10_000, 40_000][rng.usize(..5)];
        _ = timeout(millis(if calm { 10 } else { time }), told).await;
        if !calm && rng.bool() {
            return 500;
        }
        self.ledger.lock().unwrap().succeeded = true;
        200
    }

    /// Sends the event until it is acknowledged, as senders do, and hangs up at times.
    async fn deliver(self, delivery: u64, service: Boxed<Sent>) {
        let mut rng = self.draw(&[5, delivery]);
        sleep(millis(rng.u64(..20_000))).await;
        for _ in 0..5 {
            let patience = [millis(rng.u64(..5_000)), secs(3_600)][rng.usize(..2)];
            let answer = timeout(patience, send(&service, post("e1"))).await;
            self.check_done();
            if answer.is_ok_and(|answer| answer.status == 200) {
                self.ledger.lock().unwrap().acknowledged = true;
                return;
            }
            sleep(millis(rng.u64(..10_000))).await;
        }
    }

    fn check_done(&self) {
        let done = self.events.count(is!(Completed)) > 0;
        let succeeded = self.ledger.lock().unwrap().succeeded;
        self.holds(succeeded || !done, "done without success");
    }

    async fn play(self) -> BTreeSet<&'static str> {
        let processes = [self.process(0), self.process(1)];
        let mut senders = JoinSet::new();
        for n in 0..self.draw(&[6]).u64(1..8) {
            let (_, service) = &processes[n as usize % 2];
            senders.spawn(self.clone().deliver(n, service.clone()));
        }
        senders.join_all().await;
        sleep(secs(3_600)).await;
        for layer in processes.iter().flat_map(|(layers, _)| layers) {
            let drained = layer.drain_handle().drain(secs(60)).await;
            self.holds(drained.is_complete(), "something is left to do");
        }
        self.check_done();
        let mut ledger = self.ledger.lock().unwrap();
        if ledger.acknowledged && !ledger.succeeded {
            ledger.breaches.insert("acknowledged without success");
        }
        mem::take(&mut ledger.breaches)
    }
}

#[test]
fn whatever_the_store_does_promises_are_kept() {
    let seeds = env::var("NESTED_SEEDS").map_or(1_000, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        let breaches = runtime.block_on(async {
            let world = World {
                seed,
                store: Faulty::new(),
                start: Instant::now(),
                events: Events::default(),
                ledger: Arc::default(),
            };
            world.play().await
        });
        assert!(breaches.is_empty(), "world {seed}: {breaches:?}");
    }
}
