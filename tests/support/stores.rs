//! A store that fails as it is told.

#![allow(dead_code, reason = "no test uses all of it")]

use std::{
    collections::HashMap,
    error::Error,
    fmt,
    future::{Future, pending},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tower_webhook_dedup::{
    Acquire, Entry, Key, LeaseStore, Operation, Record, Release, StoreError, StoreErrorKind, Token,
};

#[allow(
    unused_imports,
    reason = "shared, and not all of it is needed everywhere"
)]
pub(crate) use front::{Front, MemoryStore, cached, remembered};

#[path = "front.rs"]
mod front;

/// How a call goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// It does not.
    None,
    /// An error, and nothing has changed.
    Before(StoreErrorKind),
    /// The change is made, and its reply is lost with this error.
    After(StoreErrorKind),
    /// No answer, no change.
    Hang,
    /// The change is made, and there is no answer.
    HangAfter,
    /// No answer, and the change is made after so long.
    Late(Duration),
    /// The change is made after so long, and answered.
    Delay(Duration),
    /// The change is made, and answered after so long.
    DelayAfter(Duration),
    Panic,
}

impl Fault {
    /// Nobody can be reached.
    pub(crate) const UNREACHABLE: Self = Self::Before(StoreErrorKind::Unreachable);

    /// There is no room for a write.
    pub(crate) const FULL: Self = Self::Before(StoreErrorKind::OutOfMemory);
}

/// One call, as it came in.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) operation: Operation,
    /// Which one of its kind, from 1.
    pub(crate) n: usize,
    pub(crate) at: Instant,
    pub(crate) token: Option<Token>,
}

type Plan = dyn Fn(&Call) -> Fault + Send + Sync;

/// [`MemoryStore`] behind [`Trouble`].
pub(crate) type Faulty = Front<Trouble>;

/// How the calls to a store go. Clones share everything.
#[derive(Clone)]
pub(crate) struct Trouble {
    /// The store itself, for a look past the trouble.
    pub(crate) inner: tower_webhook_dedup::MemoryStore,
    plan: Arc<Mutex<Arc<Plan>>>,
    calls: watch::Sender<Vec<Call>>,
    counts: Arc<Mutex<HashMap<Operation, usize>>>,
}

impl Faulty {
    /// No trouble yet.
    pub(crate) fn new() -> Self {
        Self::to(tower_webhook_dedup::MemoryStore::new())
    }

    /// In front of this store.
    pub(crate) fn to(inner: tower_webhook_dedup::MemoryStore) -> Self {
        Self::of(Trouble {
            inner,
            plan: Arc::new(Mutex::new(Arc::new(|_: &Call| Fault::None))),
            calls: watch::Sender::new(Vec::new()),
            counts: Arc::default(),
        })
    }

    pub(crate) fn with(plan: impl Fn(&Call) -> Fault + Send + Sync + 'static) -> Self {
        let store = Self::new();
        store.plan(plan);
        store
    }

    /// One kind of call goes wrong, always.
    pub(crate) fn broken(operation: Operation, fault: Fault) -> Self {
        let store = Self::new();
        store.breaks(operation, fault);
        store
    }

    /// The same entries behind trouble of their own: as another process reaches them.
    pub(crate) fn elsewhere(&self) -> Self {
        Self::to(self.inner.clone())
    }
}

impl Trouble {
    /// From now on calls go so.
    pub(crate) fn plan(&self, plan: impl Fn(&Call) -> Fault + Send + Sync + 'static) {
        *self.plan.lock().unwrap() = Arc::new(plan);
    }

    /// From now on one kind of call goes wrong, always.
    pub(crate) fn breaks(&self, operation: Operation, fault: Fault) {
        self.plan(move |call| {
            if call.operation == operation {
                fault
            } else {
                Fault::None
            }
        });
    }

    pub(crate) fn heal(&self) {
        self.plan(|_| Fault::None);
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.borrow().clone()
    }

    pub(crate) fn of(&self, operation: Operation) -> Vec<Call> {
        let mut calls = self.calls();
        calls.retain(|call| call.operation == operation);
        calls
    }

    pub(crate) fn count(&self, operation: Operation) -> usize {
        let counts = self.counts.lock().unwrap();
        counts.get(&operation).copied().unwrap_or_default()
    }

    /// Waits until so many calls of this kind have come in.
    pub(crate) async fn called(&self, operation: Operation, times: usize) {
        let mut calls = self.calls.subscribe();
        let enough = |calls: &Vec<Call>| {
            let same = calls.iter().filter(|call| call.operation == operation);
            same.count() >= times
        };
        let called = timeout(Duration::from_secs(3600), calls.wait_for(enough)).await;
        called.expect("it was never called").unwrap();
    }

    /// What stands under the key, and whose it is.
    pub(crate) async fn entry(&self, key: &Key) -> Option<Entry> {
        self.inner.inspect(key, Instant::now()).await.unwrap()
    }

    /// A lease of somebody who is not there.
    pub(crate) async fn hold(&self, key: &Key, lease: Duration) -> Token {
        let token = Token::random();
        let acquired = self.inner.acquire(key, token, lease, Instant::now()).await;
        assert!(matches!(acquired, Ok(Acquire::Acquired { .. })));
        token
    }

    /// That somebody lets go of it, and has not completed it.
    pub(crate) async fn let_go(&self, key: &Key, token: Token) {
        let (by, keep) = (Instant::now(), Duration::from_secs(60));
        let released = self.inner.release(key, token, Release::Abandoned, keep, by);
        assert!(released.await.unwrap());
    }

    async fn go<T, F>(
        &self,
        operation: Operation,
        token: Option<Token>,
        real: F,
    ) -> Result<T, Broken>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, tower_webhook_dedup::MemoryStoreError>> + Send + 'static,
    {
        let n = {
            let mut counts = self.counts.lock().unwrap();
            let count = counts.entry(operation).or_default();
            *count += 1;
            *count
        };
        let call = Call {
            operation,
            n,
            at: Instant::now(),
            token,
        };
        self.calls.send_modify(|calls| calls.push(call.clone()));
        let plan = self.plan.lock().unwrap().clone();
        let real = async { real.await.map_err(|error| Broken(error.kind(), false)) };
        match plan(&call) {
            Fault::None => real.await,
            Fault::Before(kind) => Err(Broken(kind, false)),
            Fault::After(kind) => {
                real.await?;
                Err(Broken(kind, true))
            }
            Fault::Hang => pending().await,
            Fault::HangAfter => {
                real.await?;
                pending().await
            }
            Fault::Late(time) => {
                tokio::spawn(async move {
                    sleep(time).await;
                    real.await
                });
                pending().await
            }
            Fault::Delay(time) => {
                sleep(time).await;
                real.await
            }
            Fault::DelayAfter(time) => {
                let reply = real.await;
                sleep(time).await;
                reply
            }
            Fault::Panic => panic!("a store that panics"),
        }
    }
}

/// An error as planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Broken(StoreErrorKind, bool);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "as planned: {}", self.0)
    }
}

impl Error for Broken {}

impl StoreError for Broken {
    fn kind(&self) -> StoreErrorKind {
        self.0
    }

    fn may_have_landed(&self) -> bool {
        self.1
    }
}

impl LeaseStore for Trouble {
    type Error = Broken;

    async fn acquire(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Result<Acquire, Broken> {
        let (inner, key) = (self.inner.clone(), key.clone());
        let real = async move { inner.acquire(&key, token, lease, by).await };
        self.go(Operation::Acquire, Some(token), real).await
    }

    async fn renew(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        by: Instant,
    ) -> Result<bool, Broken> {
        let (inner, key) = (self.inner.clone(), key.clone());
        let real = async move { inner.renew(&key, token, lease, by).await };
        self.go(Operation::Renew, Some(token), real).await
    }

    async fn complete(
        &self,
        key: &Key,
        token: Token,
        record: &Record,
        retention: Duration,
        by: Instant,
    ) -> Result<bool, Broken> {
        let (inner, key, record) = (self.inner.clone(), key.clone(), record.clone());
        let real = async move { inner.complete(&key, token, &record, retention, by).await };
        self.go(Operation::Complete, Some(token), real).await
    }

    async fn release(
        &self,
        key: &Key,
        token: Token,
        release: Release,
        keep: Duration,
        by: Instant,
    ) -> Result<bool, Broken> {
        let (inner, key) = (self.inner.clone(), key.clone());
        let real = async move { inner.release(&key, token, release, keep, by).await };
        self.go(Operation::Release, Some(token), real).await
    }

    async fn inspect(&self, key: &Key, by: Instant) -> Result<Option<Entry>, Broken> {
        let (inner, key) = (self.inner.clone(), key.clone());
        let real = async move { inner.inspect(&key, by).await };
        self.go(Operation::Inspect, None, real).await
    }

    async fn forget(&self, key: &Key, force: bool, by: Instant) -> Result<bool, Broken> {
        let (inner, key) = (self.inner.clone(), key.clone());
        let real = async move { inner.forget(&key, force, by).await };
        self.go(Operation::Forget, None, real).await
    }
}
