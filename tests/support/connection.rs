//! Connections to a server on the loopback device, and what comes over them.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc::UnboundedReceiver,
    time::timeout,
};
use tower_webhook_dedup::DedupEvent;

/// Longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Writes a request to a new connection.
pub(crate) async fn write(address: SocketAddr, request: impl AsRef<[u8]>) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_ref()).await.unwrap();
    stream
}

/// What the server says until it closes the connection.
pub(crate) async fn rest(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    let read = timeout(LONG, stream.read_to_end(&mut all)).await;
    read.unwrap().unwrap();
    String::from_utf8(all).unwrap()
}

pub(crate) type Client = SendRequest<Full<Bytes>>;

/// A client on a new connection.
pub(crate) async fn http2(address: SocketAddr) -> Client {
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (client, connection) = handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(async move { _ = connection.await });
    client
}

/// Waits until the layer reports such an event.
pub(crate) async fn until(
    events: &mut UnboundedReceiver<DedupEvent>,
    wanted: impl Fn(&DedupEvent) -> bool,
) {
    let reported = async { while !wanted(&events.recv().await.unwrap()) {} };
    timeout(LONG, reported).await.unwrap();
}
