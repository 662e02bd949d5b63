//! A network between us and a server, in which things go wrong on command.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    task::{AbortHandle, JoinSet},
};

use super::RedisServer;

/// A TCP proxy in front of a [`RedisServer`]. It needs the runtime that it was started on.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    /// Where new connections go.
    target: PathBuf,
    mode: Mode,
    /// How many replies were cut.
    cuts: u32,
    /// How many connections were accepted.
    connections: u32,
    /// How often commands that concern events were passed on.
    passed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Forward,
    /// Cuts one, after so many that pass.
    Cut(u32),
    CutAll,
    /// Cuts one, and becomes a black hole.
    CutLast,
    BlackHole,
}

impl Proxy {
    pub(crate) async fn before(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Mutex::new(Shared {
            target: server.socket(),
            mode: Mode::Forward,
            cuts: 0,
            connections: 0,
            passed: 0,
        }));
        let task = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Self {
            address,
            shared,
            task,
        }
    }

    /// `redis://127.0.0.1:…`
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Cuts the next reply that concerns an event: the command reaches the server and is executed,
    /// the reply is dropped, and both sides are closed.
    pub(crate) fn cut_next_reply(&self) {
        self.cut_reply_after(0);
    }

    /// The same, after some others have passed.
    pub(crate) fn cut_reply_after(&self, others: u32) {
        self.set(Mode::Cut(others));
    }

    /// Cuts every such reply from now on.
    pub(crate) fn cut_all_replies(&self) {
        self.set(Mode::CutAll);
    }

    /// Cuts the next such reply, and is a black hole from then on.
    pub(crate) fn cut_last_reply(&self) {
        self.set(Mode::CutLast);
    }

    /// Accepts connections and reads what comes, but says nothing.
    pub(crate) fn black_hole(&self) {
        self.set(Mode::BlackHole);
    }

    /// Forwards faithfully again.
    pub(crate) fn forward(&self) {
        self.set(Mode::Forward);
    }

    /// Leads new connections to another server, as a failover does.
    pub(crate) fn lead_to(&self, server: &RedisServer) {
        self.shared.lock().unwrap().target = server.socket();
    }

    /// How many replies were cut so far.
    pub(crate) fn cuts(&self) -> u32 {
        self.shared.lock().unwrap().cuts
    }

    /// How many connections came so far.
    pub(crate) fn connections(&self) -> u32 {
        self.shared.lock().unwrap().connections
    }

    /// How often commands that concern events were passed on so far: the server has them, though it
    /// may not have read them.
    pub(crate) fn passed(&self) -> u32 {
        self.shared.lock().unwrap().passed
    }

    fn set(&self, mode: Mode) {
        self.shared.lock().unwrap().mode = mode;
    }
}

impl Drop for Proxy {
    /// Closes all connections.
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Mutex<Shared>>) {
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        shared.lock().unwrap().connections += 1;
        let target = shared.lock().unwrap().target.clone();
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            if let Ok(server) = UnixStream::connect(target).await {
                serve(client, server, &shared).await;
            }
        });
    }
}

/// Carries bytes both ways until one side closes or the reply is cut.
async fn serve(mut client: TcpStream, mut server: UnixStream, shared: &Mutex<Shared>) {
    let (mut request, mut reply) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut cutting = false;
    loop {
        tokio::select! {
            read = client.read(&mut request) => {
                let Some(bytes) = some(&request, read) else { return };
                let event = bytes.windows(13).any(|part| part == b"webhook:lock:");
                cutting |= event && begin_cut(shared);
                if !pass(&mut server, bytes).await {
                    return;
                }
                shared.lock().unwrap().passed += u32::from(event);
            }
            read = server.read(&mut reply) => {
                let Some(bytes) = some(&reply, read) else { return };
                if cutting {
                    shared.lock().unwrap().cuts += 1;
                    return;
                }
                let silent = shared.lock().unwrap().mode == Mode::BlackHole;
                if !silent && !pass(&mut client, bytes).await {
                    return;
                }
            }
        }
    }
}

/// Whether the reply to this command is to be cut.
fn begin_cut(shared: &Mutex<Shared>) -> bool {
    let mut shared = shared.lock().unwrap();
    match shared.mode {
        Mode::Cut(0) => {
            shared.mode = Mode::Forward;
            true
        }
        Mode::Cut(others) => {
            shared.mode = Mode::Cut(others - 1);
            false
        }
        Mode::CutAll => true,
        Mode::CutLast => {
            shared.mode = Mode::BlackHole;
            true
        }
        Mode::Forward | Mode::BlackHole => false,
    }
}

fn some(buffer: &[u8], read: std::io::Result<usize>) -> Option<&[u8]> {
    read.ok().filter(|&n| n > 0).map(|n| &buffer[..n])
}

async fn pass(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> bool {
    to.write_all(bytes).await.is_ok()
}
