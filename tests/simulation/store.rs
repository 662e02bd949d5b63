//! The store as one process reaches it: calls are messages, which land and are answered while the
//! caller waits, or does not any more.

use std::{
    error::Error,
    fmt,
    future::{Future, pending},
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{sync::oneshot, time::Instant};
use tower_webhook_dedup::{
    Acquire, Entry, Key, LeaseStore, Record, Release, StoreError, StoreErrorKind, Token,
};

use crate::{
    clocks::Clocks,
    log::{Held, Reply},
    model::{Command, Told},
    plan::Millis,
    process::Process,
    world::World,
};

#[derive(Clone)]
pub(crate) struct SimStore {
    world: Arc<World>,
    process: Arc<Process>,
}

/// A call that went wrong as planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Broken {
    pub(crate) may_have_landed: bool,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as planned")
    }
}

impl Error for Broken {}

impl StoreError for Broken {
    fn kind(&self) -> StoreErrorKind {
        StoreErrorKind::Unreachable
    }

    fn may_have_landed(&self) -> bool {
        self.may_have_landed
    }
}

impl SimStore {
    pub(crate) fn new(world: Arc<World>, process: Arc<Process>) -> Self {
        Self { world, process }
    }

    fn clocks(&self) -> Clocks {
        self.world.plan.clocks[self.process.pid.slot]
    }

    /// A time of the store as long as the process takes it to be.
    fn lasts(&self, time: Duration) -> Duration {
        Duration::from_millis(self.clocks().lasts(time.as_millis() as Millis))
    }

    fn read(&self, token: Token, record: &Record) -> Record {
        self.world.read(self.process.pid.slot, token, record)
    }

    async fn call(&self, key: &Key, command: Command) -> Result<Told, Broken> {
        if self.process.is_dead() {
            return pending().await;
        }
        let (answer, answered) = oneshot::channel();
        self.world.send(&self.process, key, command, answer);
        match answered.await {
            Ok(answer) => answer,
            // Lost on the way.
            Err(_) => pending().await,
        }
    }

    async fn whether(&self, key: &Key, command: Command) -> Result<bool, Broken> {
        Ok(self.call(key, command).await?.reply == Reply::Is(true))
    }
}

impl LeaseStore for SimStore {
    type Error = Broken;

    async fn acquire(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        _by: Instant,
    ) -> Result<Acquire, Broken> {
        let lease = self.clocks().says(lease);
        let told = self.call(key, Command::Acquire { token, lease }).await?;
        Ok(match told.reply {
            Reply::Acquired(attempt) => Acquire::Acquired { attempt },
            Reply::Done => Acquire::Done(self.read(token, &told.record.unwrap())),
            _ => Acquire::InFlight {
                // A clock that has nothing to do with that of this process.
                since: SystemTime::UNIX_EPOCH + Duration::from_secs(4_102_444_800),
                at_most: self.lasts(told.at_most),
            },
        })
    }

    fn renew(
        &self,
        key: &Key,
        token: Token,
        lease: Duration,
        _by: Instant,
    ) -> impl Future<Output = Result<bool, Broken>> + Send {
        let lease = self.clocks().says(lease);
        self.whether(key, Command::Renew { token, lease })
    }

    fn complete(
        &self,
        key: &Key,
        token: Token,
        record: &Record,
        retention: Duration,
        _by: Instant,
    ) -> impl Future<Output = Result<bool, Broken>> + Send {
        let record = self.world.written(self.process.pid.slot, token, record);
        let retention = self.clocks().says(retention);
        self.whether(
            key,
            Command::Complete {
                token,
                record,
                retention,
            },
        )
    }

    fn release(
        &self,
        key: &Key,
        token: Token,
        release: Release,
        keep: Duration,
        _by: Instant,
    ) -> impl Future<Output = Result<bool, Broken>> + Send {
        let keep = self.clocks().says(keep);
        self.whether(
            key,
            Command::Release {
                token,
                release,
                keep,
            },
        )
    }

    async fn inspect(&self, key: &Key, _by: Instant) -> Result<Option<Entry>, Broken> {
        let told = self.call(key, Command::Inspect).await?;
        let Reply::Found(held) = told.reply else {
            unreachable!("an inspect finds")
        };
        Ok(match (held, told.record) {
            (Held::Done(token), Some(record)) => {
                let record = self.read(token, &record);
                Some(Entry::Done { token, record })
            }
            (Held::Running(token), _) => Some(Entry::running(token, Duration::from_secs(1), 1)),
            (Held::Failed(token), _) => Some(Entry::failed(token, 1, None)),
            _ => None,
        })
    }

    fn forget(
        &self,
        key: &Key,
        force: bool,
        _by: Instant,
    ) -> impl Future<Output = Result<bool, Broken>> + Send {
        self.whether(key, Command::Forget { force })
    }
}
