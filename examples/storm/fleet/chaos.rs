//! What happens to Redis: it hangs, it forgets everything, it fails over.

use std::{collections::HashSet, error::Error, fmt, time::Duration};

use fastrand::Rng;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{proxy::Proxy, redis_server::RedisServer};

/// How long a replica may take to catch up.
const PATIENCE: Duration = Duration::from_secs(20);

/// After so long, what was on its way when the connections were cut has arrived.
const CALM: Duration = Duration::from_millis(100);

/// A primary and its replica, behind one address.
pub(super) struct Chaos {
    primary: RedisServer,
    replica: RedisServer,
    proxy: Proxy,
    rng: Rng,
    incidents: Vec<Incident>,
}

/// Something that happened to Redis.
#[derive(Clone, Debug)]
pub(crate) struct Incident {
    pub(crate) what: Trouble,
    pub(crate) begin: Instant,
    /// From here on Redis answers again, and until then it does not.
    pub(crate) end: Instant,
    /// The events whose lease or record is gone, as the servers themselves showed.
    pub(crate) forgotten: HashSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The primary hangs, shorter than a lease.
    Hang,
    /// The primary ends and starts again, empty.
    Restart,
    /// The replica takes over; what has not reached it by then is gone.
    Failover,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hang => "Redis hung",
            Self::Restart => "Redis restarted empty",
            Self::Failover => "Redis failed over",
        })
    }
}

impl Chaos {
    pub(super) async fn start(rng: Rng) -> Result<Self, Box<dyn Error>> {
        let (primary, replica) = (RedisServer::start().await?, RedisServer::start().await?);
        replica.follow(Some(&primary)).await?;
        Ok(Self {
            proxy: Proxy::to(primary.address()).await?,
            primary,
            replica,
            rng,
            incidents: Vec::new(),
        })
    }

    pub(super) fn url(&self) -> String {
        self.proxy.url()
    }

    pub(super) fn incidents(self) -> Vec<Incident> {
        self.incidents
    }

    /// Makes trouble every so often, of each kind as often as of the others, until it is over.
    pub(super) async fn rage(&mut self, over: &CancellationToken) -> Result<(), Box<dyn Error>> {
        let mut ahead = Vec::new();
        while timeout(self.time(600..1200), over.cancelled())
            .await
            .is_err()
        {
            if ahead.is_empty() {
                ahead = vec![Trouble::Hang, Trouble::Restart, Trouble::Failover];
                self.rng.shuffle(&mut ahead);
            }
            let Some(what) = ahead.pop() else { continue };
            let incident = match what {
                Trouble::Hang => self.hang().await?,
                Trouble::Restart => self.restart().await?,
                Trouble::Failover => self.fail_over().await?,
            };
            self.incidents.push(incident);
        }
        Ok(())
    }

    async fn hang(&mut self) -> Result<Incident, Box<dyn Error>> {
        let begin = Instant::now();
        self.primary.freeze().await?;
        sleep(self.time(300..1200)).await;
        self.primary.thaw().await?;
        let end = Instant::now();
        Ok(Incident {
            what: Trouble::Hang,
            begin,
            end,
            forgotten: HashSet::new(),
        })
    }

    async fn restart(&mut self) -> Result<Incident, Box<dyn Error>> {
        let begin = Instant::now();
        self.proxy.lead_to(None);
        sleep(CALM).await;
        let before = self.primary.events().await?;
        self.primary.kill().await?;
        sleep(self.time(50..200)).await;
        self.primary = RedisServer::start().await?;
        let end = Instant::now();
        self.proxy.lead_to(Some(self.primary.address()));
        self.replica.follow(Some(&self.primary)).await?;
        Ok(Incident {
            what: Trouble::Restart,
            begin,
            end,
            forgotten: before.into_keys().collect(),
        })
    }

    async fn fail_over(&mut self) -> Result<Incident, Box<dyn Error>> {
        timeout(PATIENCE, self.replicated()).await??;
        let begin = Instant::now();
        self.replica.follow(None).await?;
        // As a primary does that only the others have lost sight of, it goes on for a while.
        sleep(self.time(0..40)).await;
        self.proxy.lead_to(None);
        sleep(CALM).await;
        let (mut before, after) = (self.primary.events().await?, self.replica.events().await?);
        before.retain(|event, value| after.get(event) != Some(value));
        sleep(self.time(0..200)).await;
        std::mem::swap(&mut self.primary, &mut self.replica);
        let end = Instant::now();
        self.proxy.lead_to(Some(self.primary.address()));
        self.replica.follow(Some(&self.primary)).await?;
        Ok(Incident {
            what: Trouble::Failover,
            begin,
            end,
            forgotten: before.into_keys().collect(),
        })
    }

    /// Waits until the replica has all that the primary was told until now.
    async fn replicated(&self) -> Result<(), Box<dyn Error>> {
        while self.primary.confirm().await? == 0 {}
        Ok(())
    }

    fn time(&mut self, millis: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.rng.u64(millis))
    }
}
