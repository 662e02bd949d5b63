//! The storm over several server processes on one Redis, which are killed, and which is harmed.
//!
//! This process is the sender and the ledger. It also writes down what it did to the others, since
//! some of what comes of that no middleware can prevent.

mod chaos;
mod outcome;
mod proxy;
mod redis_server;
mod serve;
mod servers;
mod verdict;

use std::{error::Error, sync::Arc, time::Duration};

use fastrand::Rng;
use tokio::{join, time::Instant};
use tokio_util::sync::CancellationToken;

use self::{
    chaos::Chaos,
    servers::{Servers, Setup},
    verdict::Judge,
};
use super::{
    book,
    ledger::Ledger,
    namespace,
    options::Options,
    plan, progress,
    report::Report,
    sender::{Sender, Targets},
};

pub(crate) use self::{outcome::Outcome, redis_server::RedisServer, serve::serve};

/// Long enough for what happens meanwhile.
const PAUSE: Duration = Duration::from_millis(700);

pub(crate) async fn run(options: &Options) -> Result<Report, Box<dyn Error>> {
    let mut rng = Rng::with_seed(options.seed);
    let (mut chaos, mut own_redis) = (None, None);
    let redis = match &options.redis {
        Some(Some(url)) => url.clone(),
        _ if options.chaos => chaos.insert(Chaos::start(rng.fork()).await?).url(),
        _ => own_redis.insert(RedisServer::start().await?).url(),
    };
    let ledger = Arc::new(Ledger::default());
    let setup = Setup {
        ledger: book::open(ledger.clone()).await?,
        redis,
        namespace: namespace(),
    };
    let mut servers = Servers::start(setup, options.processes.into()).await?;

    let events = plan::events(options.events, options.seed, PAUSE);
    let progress = progress(events.len())?;
    let (begin, over) = (Instant::now(), CancellationToken::new());
    let sender = Sender::new(Targets::clone(servers.targets()));
    let send = async {
        let sent = sender.send(events, &progress).await;
        over.cancel();
        sent
    };
    let kill = async {
        match options.kill {
            true => servers.kill_at_random(&mut rng, &over).await,
            false => Ok(()),
        }
    };
    let harm = async {
        match &mut chaos {
            Some(chaos) => chaos.rage(&over).await,
            None => Ok(()),
        }
    };
    let (sent, killed, harmed) = join!(send, kill, harm);
    let sent = sent?;
    killed?;
    harmed?;
    let (drained, lives) = servers.stop().await?;
    progress.finish_and_clear();

    let incidents = chaos.map(Chaos::incidents).unwrap_or_default();
    let judge = Judge::new(&ledger, lives, incidents, begin, options.trace);
    let mut report = Report::new(options, &sent, &ledger, drained);
    let (lost, doubled) = (&mut report.lost, &mut report.doubled);
    report.fleet = Some(Outcome::new(options, &judge, &sent, lost, doubled));
    Ok(report)
}
