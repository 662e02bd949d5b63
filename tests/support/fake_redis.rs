//! A server that answers what the test says.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

/// Speaks the Redis protocol, and lets a closure answer. It needs the runtime that it was started
/// on.
#[derive(Debug)]
pub(crate) struct FakeRedis {
    address: SocketAddr,
    commands: Arc<Mutex<Vec<Vec<String>>>>,
    connections: Arc<AtomicU32>,
    task: AbortHandle,
}

impl FakeRedis {
    /// Answers each command with the line that the closure returns, such as `+OK` or `-OOM full`,
    /// or more than one, parted by `\r\n`. It is not asked about `CLIENT`.
    pub(crate) async fn start(
        answer: impl Fn(&[String]) -> String + Clone + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let commands = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicU32::new(0));
        let (seen, accepted) = (Arc::clone(&commands), Arc::clone(&connections));
        let task = tokio::spawn(async move {
            let mut clients = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                accepted.fetch_add(1, Ordering::Relaxed);
                clients.spawn(serve(client, answer.clone(), Arc::clone(&seen)));
            }
        });
        Self {
            address,
            commands,
            connections,
            task: task.abort_handle(),
        }
    }

    /// Answers every command with the same line.
    pub(crate) async fn saying(line: &str) -> Self {
        let line = line.to_owned();
        Self::start(move |_| line.clone()).await
    }

    /// `redis://127.0.0.1:…`
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The commands so far, without `CLIENT`.
    pub(crate) fn commands(&self) -> Vec<Vec<String>> {
        self.commands.lock().unwrap().clone()
    }

    /// How many connections were made so far.
    pub(crate) fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for FakeRedis {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    client: TcpStream,
    answer: impl Fn(&[String]) -> String,
    seen: Arc<Mutex<Vec<Vec<String>>>>,
) {
    let mut client = BufReader::new(client);
    while let Some(command) = read(&mut client).await {
        let line = if command[0] == "CLIENT" {
            "+OK".to_owned()
        } else {
            seen.lock().unwrap().push(command.clone());
            answer(&command)
        };
        if client
            .write_all(format!("{line}\r\n").as_bytes())
            .await
            .is_err()
        {
            return;
        }
    }
}

/// `*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n`
async fn read(client: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut command = Vec::new();
    for _ in 0..length(client, '*').await? {
        let mut argument = vec![0; length(client, '$').await? + 2];
        client.read_exact(&mut argument).await.ok()?;
        argument.truncate(argument.len() - 2);
        command.push(String::from_utf8(argument).unwrap());
    }
    Some(command)
}

async fn length(client: &mut BufReader<TcpStream>, sign: char) -> Option<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    line.strip_prefix(sign)?.trim_end().parse().ok()
}
