//! The address behind which Redis is found, wherever it runs.

use std::{io, net::SocketAddr};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// A TCP proxy whose target changes. All connections are dropped then.
pub(super) struct Proxy {
    address: SocketAddr,
    target: watch::Sender<Option<SocketAddr>>,
}

impl Proxy {
    pub(super) async fn to(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (sender, target) = watch::channel(Some(target));
        tokio::spawn(accept(listener, target));
        Ok(Self {
            address,
            target: sender,
        })
    }

    pub(super) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Leads to this server from now on; to none, it closes what comes.
    pub(super) fn lead_to(&self, target: Option<SocketAddr>) {
        self.target.send_replace(target);
    }
}

async fn accept(listener: TcpListener, target: watch::Receiver<Option<SocketAddr>>) {
    while let Ok((client, _)) = listener.accept().await {
        let mut target = target.clone();
        let server = *target.borrow_and_update();
        tokio::spawn(async move {
            tokio::select! {
                // When a side breaks, it closes both: there is nobody to tell.
                _ = carry(client, server) => {}
                _ = target.changed() => {}
            }
        });
    }
}

async fn carry(mut client: TcpStream, server: Option<SocketAddr>) -> io::Result<()> {
    let Some(server) = server else { return Ok(()) };
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
