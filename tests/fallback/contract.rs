//! It is a store, whatever becomes of its primary.

use tokio::time::{Instant, sleep};
use tower_webhook_dedup::{LeaseStore, store::contract};

use crate::{GONE, by, http_support::millis, key, process, stores::Fault};

#[tokio::test(start_paused = true)]
async fn it_is_a_store_while_its_primary_is_well() {
    contract(process().store).await;
}

#[tokio::test(start_paused = true)]
async fn it_is_a_store_without_its_primary() {
    for fault in [GONE, Fault::Hang, Fault::HangAfter] {
        let process = process();
        process.primary.plan(move |_| fault);
        contract(process.store.clone()).await;
        assert!(process.store.is_degraded());
    }
}

/// It comes and goes while the contract waits for its leases to run out.
#[tokio::test(start_paused = true)]
async fn it_is_a_store_while_its_primary_comes_and_goes() {
    for phase in [0, 30, 60, 90] {
        let process = process();
        let began = Instant::now() + millis(phase);
        process.primary.plan(move |call| {
            let time = call.at.saturating_duration_since(began).as_millis();
            if (time / 130) % 2 == 1 {
                GONE
            } else {
                Fault::None
            }
        });
        let store = process.store.clone().probe_pause(millis(20));
        let contract = contract(store.clone());
        let flapping = async {
            loop {
                sleep(millis(7)).await;
                _ = store.inspect(&key("other"), by()).await;
            }
        };
        tokio::select! {
            () = contract => {}
            () = flapping => {}
        }
        assert!(process.switches().len() > 6, "{:?}", process.switches());
    }
}
