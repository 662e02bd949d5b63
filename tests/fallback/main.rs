//! Two stores as one: what this process knew stays known, through both switches.

mod carried;
mod contested;
#[cfg(feature = "test-util")]
mod contract;
mod load;
mod outage;
mod recovery;
mod requests;
mod secondary;
mod unanswered;

#[path = "../support/engine.rs"]
mod engine;
#[path = "../support/http.rs"]
mod http_support;
#[path = "../support/stores.rs"]
mod stores;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tower_webhook_dedup::{
    Acquire, Begun, Dedup, Fallback, Key, Lease, LeaseStore, Ran, Record, Switch, Token,
    WebhookDedupLayer,
};

use self::{
    engine::acquired,
    http_support::{millis, refusing, secs},
    stores::{Fault, Faulty, MemoryStore},
};

/// How the primary is gone, as far as this process can tell.
const GONE: Fault = Fault::UNREACHABLE;

/// When a primary that is well again is trusted.
const BACK: Duration = millis(2500);

/// A primary with trouble, behind one process.
struct Process<S: LeaseStore = MemoryStore> {
    primary: Faulty,
    secondary: S,
    store: Fallback<Faulty, S>,
    dedup: Dedup<Fallback<Faulty, S>>,
    switches: Arc<Mutex<Vec<Switch>>>,
}

fn process() -> Process {
    with(MemoryStore::new())
}

fn with<S: LeaseStore>(secondary: S) -> Process<S> {
    let (primary, switches) = (Faulty::new(), Arc::<Mutex<Vec<_>>>::default());
    let told = switches.clone();
    let store = Fallback::new(primary.clone(), secondary.clone())
        .on_switch(move |switch| told.lock().unwrap().push(switch.clone()));
    let dedup = Dedup::new(store.clone()).lease(secs(9));
    Process {
        primary,
        secondary,
        store,
        dedup,
        switches,
    }
}

impl<S: LeaseStore> Process<S> {
    fn fail(&self) {
        self.primary.plan(|_| GONE);
    }

    /// The primary fails, and this process finds out.
    async fn go_out(&self) {
        self.fail();
        assert!(matches!(self.run("out").await, Ran::Completed(())));
        assert!(self.store.is_degraded());
    }

    async fn come_back(&self) {
        self.primary.heal();
        sleep(BACK).await;
        assert!(!self.store.is_degraded());
    }

    async fn run(&self, id: &str) -> Ran<()> {
        run(&self.dedup, id).await
    }

    fn layer(&self) -> WebhookDedupLayer<Fallback<Faulty, S>> {
        refusing(self.store.clone())
    }

    /// Another process, on the same primary, which it reaches well.
    fn elsewhere(&self) -> Dedup<Faulty> {
        Dedup::new(self.primary.elsewhere()).lease(secs(9))
    }

    fn switches(&self) -> Vec<Switch> {
        self.switches.lock().unwrap().clone()
    }
}

fn key(id: &str) -> Key {
    Key::new("t", id)
}

fn by() -> Instant {
    Instant::now() + millis(300)
}

async fn run<St: LeaseStore>(dedup: &Dedup<St>, id: &str) -> Ran<()> {
    let work = || async { Ok::<_, std::io::Error>(()) };
    dedup.run(&key(id), work).await.unwrap()
}

async fn begin<St: LeaseStore>(dedup: &Dedup<St>, id: &str) -> Lease<St> {
    acquired(dedup, &key(id)).await
}

async fn is_in_flight<St: LeaseStore>(dedup: &Dedup<St>, id: &str) -> bool {
    matches!(dedup.begin(&key(id)).await.unwrap(), Begun::InFlight { .. })
}

async fn is_done<St: LeaseStore>(dedup: &Dedup<St>, id: &str) -> bool {
    matches!(dedup.begin(&key(id)).await.unwrap(), Begun::Done(_))
}

async fn acquire<St: LeaseStore>(store: &St, id: &str) -> Result<Acquire, St::Error> {
    store
        .acquire(&key(id), Token::random(), secs(9), by())
        .await
}

fn done() -> Record {
    Record::new(Some(200), None)
}
