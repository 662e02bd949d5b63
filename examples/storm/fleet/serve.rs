//! One server process.

use std::{
    error::Error,
    io::{self, Read},
    thread,
};

use tokio::signal::unix::{SignalKind, signal};

use crate::{
    book,
    options::{Guard, Serve},
    receiver::Receiver,
};

/// Serves until told to stop, then drains.
pub(crate) async fn serve(serve: &Serve) -> Result<(), Box<dyn Error>> {
    // Our parent holds the other end: once it is gone, however that came about, so must we be.
    thread::spawn(|| {
        drop(io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(1);
    });
    let mut stop = signal(SignalKind::terminate())?;
    let book = book::there(serve.ledger, serve.incarnation);
    let (redis, namespace) = (Some(&*serve.redis), serve.namespace.clone());
    let receiver = Receiver::start(Guard::Layer, redis, namespace, book).await?;
    println!("{}", receiver.address());
    stop.recv().await;
    if receiver.stop().await {
        Ok(())
    } else {
        Err(format!("server {} could not drain", serve.incarnation).into())
    }
}
