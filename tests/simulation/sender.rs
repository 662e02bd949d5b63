//! Who sends an event until it is acknowledged.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use crate::{draw::draw, log::What, world::World};

/// Where the numbers of copies begin.
const COPIES: u64 = 100;

impl World {
    /// Delivers one event as its sender does, and the copies of it.
    pub(crate) async fn sender(self: Arc<Self>, event: usize) {
        let plan = &self.plan.events[event];
        self.pass(plan.first).await;
        let copies: Vec<_> = (COPIES..)
            .zip(&plan.copies)
            .map(|(delivery, after)| {
                let (world, after) = (self.clone(), *after);
                tokio::spawn(async move {
                    world.pass(after).await;
                    world.attempt(event, delivery).await
                })
            })
            .collect();
        let mut pauses = plan.schedule.pauses().iter();
        for attempt in 0.. {
            if self.attempt(event, attempt).await {
                break;
            }
            let Some(pause) = pauses.next() else { break };
            self.pass(*pause).await;
        }
        for copy in copies {
            copy.await.unwrap();
        }
    }

    /// One delivery, to whichever process the balancer chooses. Whether it was acknowledged.
    async fn attempt(self: &Arc<Self>, event: usize, delivery: u64) -> bool {
        let rng = &mut draw(self.plan.seed, &[1, event as u64, delivery]);
        let slot = rng.usize(0..self.plan.processes);
        // Copies are the first attempt once more, or have headers of their own.
        let headers = if delivery < COPIES || rng.bool() {
            delivery
        } else {
            0
        };
        self.pass(rng.u64(1..=8)).await;
        let Some((answered, hang_up)) = self.serve(slot, event, delivery, headers) else {
            self.log(None, Some(event), What::Unreachable { delivery });
            return false;
        };
        let patience = self.plan.events[event].timeout.map(Duration::from_millis);
        let heard = timeout(patience.unwrap_or(Duration::MAX), answered).await;
        drop(hang_up);
        match heard {
            Ok(Ok(status)) => (200..300).contains(&status),
            Ok(Err(_)) => {
                self.log(None, Some(event), What::Broke { delivery });
                false
            }
            Err(_) => {
                self.log(None, Some(event), What::HungUp { delivery });
                false
            }
        }
    }
}
