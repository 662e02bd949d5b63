//! Finds the primary that Sentinels watch over.

use std::{collections::HashSet, fmt, future::ready, time::Duration};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use redis::Value;
use tokio::time::timeout;

use super::{
    access::{Access, Login, address},
    error::RedisStoreError,
    server::Server,
    wire::Wire,
};
use crate::{StoreError, StoreErrorKind};

/// Sentinels that watch a service: a primary and its replicas.
pub(super) struct Sentinels {
    sentinels: Vec<Server>,
    service: String,
    /// How to get into the servers of the service.
    access: Access,
}

impl Sentinels {
    pub(super) fn new(
        addresses: &[String],
        service: String,
        login: Login,
        access: Access,
    ) -> Result<Self, RedisStoreError> {
        let into_sentinels = access.with(login);
        let with_port = |host: &String| {
            // A Sentinel listens at another port than a server.
            let bare = host.rsplit_once(']').map_or(&**host, |(_, port)| port);
            if bare.contains(':') {
                host.clone()
            } else {
                format!("{host}:26379")
            }
        };
        let sentinels = addresses
            .iter()
            .map(|host| into_sentinels.server(&with_port(host)));
        Ok(Self {
            sentinels: sentinels.collect::<Result<_, _>>()?,
            service,
            access,
        })
    }

    pub(super) const fn connect_timeout(&self) -> Duration {
        self.access.connect_timeout
    }

    /// Asks all Sentinels at once, and connects to the first server that one of them names and
    /// that says itself that it is a primary: a Sentinel may be behind the times, or cut off
    /// together with a primary that has been replaced.
    pub(super) async fn connect(&self) -> Result<(Wire, String), RedisStoreError> {
        let limit = self.connect_timeout();
        match timeout(limit, self.find()).await {
            Ok(found) => found,
            Err(_) => Err(RedisStoreError::connect_took_longer_than(limit)
                .connecting_to(&format!("{self:?}"))),
        }
    }

    async fn find(&self) -> Result<(Wire, String), RedisStoreError> {
        let asking = |sentinel| async move { Step::Named(self.ask(sentinel).await) }.boxed();
        let mut steps: FuturesUnordered<_> = self.sentinels.iter().map(asking).collect();
        let mut tried = HashSet::new();
        let (mut asking_failed, mut trying_failed) = (None, None);
        while let Some(step) = steps.next().await {
            match step {
                Step::Named(Ok(address)) => {
                    if tried.insert(address.clone()) {
                        let trying = self.try_primary(address);
                        steps.push(async { Step::Tried(trying.await) }.boxed());
                    }
                }
                Step::Named(Err(error)) => {
                    // What a Sentinel says is worth more than that another one is down.
                    if asking_failed.is_none() || error.code().is_some() {
                        asking_failed = Some(error);
                    }
                }
                Step::Tried(Ok(found)) => return Ok(found),
                Step::Tried(Err(error)) => trying_failed = Some(error),
            }
        }
        let trouble = trying_failed.or(asking_failed);
        Err(trouble.unwrap_or_else(|| RedisStoreError::unreachable("there is no Sentinel")))
    }

    /// What this Sentinel says where the primary is: `host:port`.
    async fn ask(&self, sentinel: &Server) -> Result<String, RedisStoreError> {
        let wire = sentinel.connect().await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let reply = wire.ask(&command).await;
        let reply = reply.map_err(|error| error.connecting_to(&sentinel.address()))?;
        match redis::from_redis_value::<Option<(String, String)>>(reply) {
            Ok(Some((host, port))) => Ok(address(&host, &port)),
            Ok(None) => Err(RedisStoreError::unreachable(format!(
                "the Sentinel at {} does not watch {}",
                sentinel.address(),
                self.service
            ))),
            Err(_) => Err(RedisStoreError::bad_reply(
                false,
                format!("the Sentinel at {} gave no address", sentinel.address()),
            )),
        }
    }

    async fn try_primary(&self, address: String) -> Result<(Wire, String), RedisStoreError> {
        let wire = self.access.named(&address)?.connect().await?;
        match wire.ask(&redis::cmd("ROLE")).await {
            Ok(role) if is_primary(&role) => Ok((wire, address)),
            Ok(_) => Err(RedisStoreError::unreachable(format!(
                "{address}, which Sentinel names, is a replica"
            ))),
            // A user who may not ask learns it from the first write.
            Err(error) if error.kind() == StoreErrorKind::Denied => Ok((wire, address)),
            Err(error) => Err(error.connecting_to(&address)),
        }
    }

    /// Whether most Sentinels that answer name another primary than this.
    ///
    /// One that was replaced does not know it for seconds, and goes on to
    /// take writes that it will forget.
    pub(super) async fn has_replaced(&self, primary: &str) -> Option<RedisStoreError> {
        let all: FuturesUnordered<_> = self.sentinels.iter().map(|it| self.ask(it)).collect();
        let answers: Vec<_> = all.filter_map(|answer| ready(answer.ok())).collect().await;
        let others = answers.iter().filter(|it| *it != primary).count();
        (others > answers.len() / 2).then(|| {
            RedisStoreError::unreachable(format!("{primary} is no longer the primary of {self:?}"))
        })
    }

    /// How each Sentinel sees itself: whether it could have a failover authorised.
    pub(super) async fn quorum(&self) -> Vec<(String, Result<(), RedisStoreError>)> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("CKQUORUM").arg(&self.service);
        let mut all = Vec::new();
        for sentinel in &self.sentinels {
            let answer = async {
                let wire = sentinel.connect().await?;
                wire.ask(&command).await.map(drop)
            };
            let limit = 2 * self.connect_timeout();
            let answer = timeout(limit, answer)
                .await
                .unwrap_or_else(|_| Err(RedisStoreError::connect_took_longer_than(limit)));
            all.push((sentinel.address(), answer));
        }
        all
    }
}

/// On the way to the primary.
enum Step {
    Named(Result<String, RedisStoreError>),
    Tried(Result<(Wire, String), RedisStoreError>),
}

/// `["master", …]`
fn is_primary(role: &Value) -> bool {
    let Value::Array(parts) = role else {
        return false;
    };
    matches!(parts.first(), Some(Value::BulkString(name)) if name == b"master")
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?}", self.service, self.sentinels)
    }
}
