//! A server to poke at with curl. Most policies of the layer are a flag, and the handler does what the
//! request's headers tell it.
//!
//! ```sh
//! cargo run --release --example playground
//! curl -i localhost:3000/webhooks/demo -d '{"id":"evt_1"}'
//! curl -i localhost:3000/webhooks/demo -d '{"id":"evt_2"}' -H 'x-demo-status: 500'
//! curl -i localhost:3000/webhooks/demo -d '{"id":"evt_3"}' -H 'x-demo-sleep-ms: 5000'
//! curl -i localhost:3000/webhooks/demo -d '{"id":"evt_4"}' -H 'x-demo-panic: 1'
//! curl localhost:3000/runs
//! ```
//!
//! With `--provider` it takes what a sender sends, of which there is an example in `tests/fixtures/providers`:
//!
//! ```sh
//! cargo run --release --example playground -- --provider stripe
//! curl -i localhost:3000/webhooks/demo --data-binary @tests/fixtures/providers/stripe.json
//! curl -i localhost:3000/webhooks/demo --data-binary @tests/fixtures/providers/stripe_retry.json   # duplicate
//! ```

mod app;
mod options;
mod orders;

use std::{error::Error, future::IntoFuture, time::Duration};

use clap::Parser;
use tokio::{
    net::TcpListener,
    sync::oneshot,
    time::{Instant, timeout_at},
};
use tracing_subscriber::EnvFilter;

use self::options::Options;

/// From the signal to the end, in all.
const STOP: Duration = Duration::from_secs(29);

/// How much of that the requests get at most that are still being answered. The rest is for
/// draining.
const FINISH: Duration = Duration::from_secs(25);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse().checked();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();

    let dedup = options.layer(options.store()?);
    let drain = dedup.drain_handle();
    let listener = TcpListener::bind(&options.listen).await;
    let listener = listener.map_err(|why| format!("cannot listen on {}: {why}", options.listen))?;
    let address = listener.local_addr()?;

    let (stop, stopped) = oneshot::channel::<()>();
    let server = axum::serve(listener, app::app(dedup, options.keep_runs.get()))
        .with_graceful_shutdown(async {
            _ = stopped.await;
        });
    let server = tokio::spawn(server.into_future());
    let signal = told_to_stop()?;
    println!("listening on {address}");

    signal.await;
    let now = Instant::now();
    drop(stop);
    if let Ok(served) = timeout_at(now + FINISH, server).await {
        served??;
    }
    let drained = drain
        .drain((now + STOP).duration_since(Instant::now()))
        .await;
    for lost in drained.lost() {
        eprintln!("not completed: {}", lost.key);
    }
    Ok(())
}

/// Ctrl-C, or SIGTERM where there is one. Neither ends the process by itself from here on.
fn told_to_stop() -> std::io::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let (mut terminated, mut interrupted) = {
        use tokio::signal::unix::{SignalKind, signal};
        (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        )
    };
    Ok(async move {
        #[cfg(unix)]
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
        #[cfg(not(unix))]
        {
            _ = tokio::signal::ctrl_c().await;
        }
    })
}
