//! The way to a server.
//!
//! The `redis` crate would connect too, but then also drives its connections by itself.

use std::{io, pin::Pin};

use futures_util::future::select_ok;
use redis::{ConnectionAddr, aio::AsyncStream};
use tokio::net::{TcpStream, lookup_host};

use super::access::Access;

pub(super) type Stream = Pin<Box<dyn AsyncStream + Send + Sync>>;

/// Connects, over TLS where that is asked for.
pub(super) async fn connect(address: &ConnectionAddr, access: &Access) -> io::Result<Stream> {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            connect_tcp(host, *port, access).await
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => Ok(Box::pin(tokio::net::UnixStream::connect(path).await?)),
        _ => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "there are no such sockets on this system",
        )),
    }
}

/// Tries all addresses that the host has at once: the first may lead nowhere.
async fn connect_tcp(host: &str, port: u16, access: &Access) -> io::Result<Stream> {
    let addresses = lookup_host((host, port)).await?;
    let connecting: Vec<_> = addresses
        .map(|address| {
            Box::pin(async move {
                let stream = TcpStream::connect(address).await?;
                // Small commands must not wait to be sent together.
                stream.set_nodelay(true)?;
                secure(host, stream, access).await
            })
        })
        .collect();
    if connecting.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the host has no address",
        ));
    }
    let (stream, _) = select_ok(connecting).await?;
    Ok(stream)
}

#[cfg(feature = "tls")]
async fn secure(host: &str, stream: TcpStream, access: &Access) -> io::Result<Stream> {
    match &access.tls {
        Some(tls) => Ok(Box::pin(tls.connect(host, stream).await?)),
        None => Ok(Box::pin(stream)),
    }
}

#[cfg(not(feature = "tls"))]
#[expect(clippy::unused_async, reason = "the other one needs it")]
async fn secure(_: &str, stream: TcpStream, _: &Access) -> io::Result<Stream> {
    Ok(Box::pin(stream))
}
