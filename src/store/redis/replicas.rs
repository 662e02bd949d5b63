//! Writes that count only when replicas have them.

use std::{fmt, sync::atomic::AtomicBool, time::Duration};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

use super::{connection::Connection, error::RedisStoreError, steps::Steps};
use crate::{Acquire, Key, Record, Release, Token, mutex::Mutex};

/// Takes the steps that write on connections of their own: `WAIT` holds up every command behind it
/// on its connection, and speaks only of what was written on it.
pub(super) struct Replicas {
    count: u32,
    at_most: Duration,
    /// The connections that nobody uses. The last one that was is used first.
    idle: Mutex<Vec<Connection>>,
    free: Semaphore,
}

impl Replicas {
    /// How many steps wait for replicas at the same time.
    pub(super) const CONNECTIONS: usize = 16;

    /// How long the failures before a lease that was not confirmed are remembered.
    const KEEP: Duration = Duration::from_secs(24 * 3600);

    pub(super) fn new(count: u32, at_most: Duration, connections: Vec<Connection>) -> Self {
        Self {
            count,
            at_most,
            free: Semaphore::new(connections.len()),
            idle: Mutex::new(connections),
        }
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    pub(super) async fn acquire(
        &self,
        old_server: &AtomicBool,
        (key, token, lease): (&Key, Token, Duration),
        by: Instant,
    ) -> Result<Acquire, RedisStoreError> {
        let seat = self.seat(by).await?;
        let steps = self.steps(&seat, old_server, by);
        let (acquire, mut confirmed_by) = steps.acquire(key, token, lease).await?;
        if !matches!(acquire, Acquire::Acquired { .. }) {
            return Ok(acquire);
        }
        if confirmed_by.is_none() {
            // Another try, on another connection perhaps, has written it: write on this one.
            let renewed = steps.renew(key, token, lease).await;
            let (_, by_now) = renewed.map_err(RedisStoreError::after_a_write)?;
            confirmed_by = by_now;
        }
        let confirmed_by = confirmed_by.unwrap_or(0);
        if confirmed_by >= self.count {
            return Ok(acquire);
        }
        // If there is no time left for it, the lease runs out, or the engine releases it.
        let release = steps.release(key, token, Release::Abandoned, Self::KEEP);
        drop(release.await);
        Err(RedisStoreError::unconfirmed(confirmed_by, self.count))
    }

    pub(super) async fn complete(
        &self,
        old_server: &AtomicBool,
        (key, token): (&Key, Token),
        (record, retention): (&Record, Duration),
        by: Instant,
    ) -> Result<bool, RedisStoreError> {
        let seat = self.seat(by).await?;
        let steps = self.steps(&seat, old_server, by);
        let (written, confirmed_by) = steps.complete(key, token, record, retention).await?;
        let confirmed_by = confirmed_by.unwrap_or(0);
        if written && confirmed_by < self.count {
            return Err(RedisStoreError::unconfirmed(confirmed_by, self.count));
        }
        Ok(written)
    }

    fn steps<'a>(&self, seat: &'a Seat<'_>, old_server: &'a AtomicBool, by: Instant) -> Steps<'a> {
        Steps {
            connection: &seat.connection,
            old_server,
            replicas: Some((self.count, self.at_most)),
            by,
        }
    }

    /// A connection that nobody else uses.
    async fn seat(&self, by: Instant) -> Result<Seat<'_>, RedisStoreError> {
        let busy = || {
            RedisStoreError::timed_out(
                false,
                format!("{} other steps wait for replicas", Self::CONNECTIONS),
            )
        };
        let free = timeout_at(by, self.free.acquire()).await;
        let permit = free.map_err(|_| busy())?.map_err(|_| busy())?;
        let connection = self.idle.lock().pop().ok_or_else(busy)?;
        Ok(Seat {
            connection,
            replicas: self,
            _permit: permit,
        })
    }
}

/// A connection for one step. The next one gets it when this is dropped.
struct Seat<'a> {
    connection: Connection,
    replicas: &'a Replicas,
    /// Given back after the connection.
    _permit: SemaphorePermit<'a>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.replicas.idle.lock().push(self.connection.clone());
    }
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} within {:?}", self.count, self.at_most)
    }
}
