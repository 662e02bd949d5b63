//! How long `RedisStore` waits before it connects again, on the paused clock.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    select,
    sync::watch,
    time::{Instant, sleep},
};
use tower_webhook_dedup::{LeaseStore, RedisStore, StoreError};

use self::support::{fresh, store_at, works};

const MS: Duration = Duration::from_millis(1);

/// A server that has nothing. It listens at a Unix socket: what goes through it is there at once, or
/// else the paused clock would go on meanwhile.
struct Server {
    folder: TempDir,
    manner: watch::Sender<Manner>,
    /// How many connections came.
    connections: Arc<AtomicU32>,
}

#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// It hangs up on everybody.
    Closed,
    /// It hangs up on those who ask for more than to be let in.
    Busy,
    Open,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("redis.sock")).unwrap();
        let server = Self {
            folder,
            manner: watch::Sender::new(Manner::Closed),
            connections: Arc::default(),
        };
        let (manner, connections) = (server.manner.clone(), server.connections.clone());
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::Relaxed);
                let mut changes = manner.subscribe();
                let answering = answer(client, manner.subscribe());
                tokio::spawn(async move {
                    select! {
                        biased;
                        _ = changes.wait_for(|it| *it == Manner::Closed) => {}
                        () = answering => {}
                    }
                });
            }
        });
        server
    }

    fn store(&self) -> RedisStore {
        let path = self.folder.path().join("redis.sock");
        store_at(&format!("redis+unix://{}", path.display()))
    }

    fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Goes on with calls, all of which fail, until there is one more connection.
    async fn is_tried(&self, store: &RedisStore) {
        let before = self.connections();
        while self.connections() == before {
            sleep(MS).await;
            let call = store.inspect(&fresh(), Instant::now() + 1_000 * MS).await;
            assert!(call.is_err(), "{call:?}");
        }
    }
}

/// Says to each command that nothing is there.
async fn answer(mut client: UnixStream, manner: watch::Receiver<Manner>) {
    let mut command = [0; 1024];
    while let Ok(read @ 1..) = client.read(&mut command).await {
        let asks = command[..read].windows(3).any(|part| part == b"GET");
        if asks && *manner.borrow() == Manner::Busy {
            return;
        }
        client.write_all(b"$-1\r\n").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn it_grows_up_to_a_second_of_which_up_to_half_is_left_out_at_random() {
    let server = Server::start();
    let store = server.store();
    server.is_tried(&store).await;
    let mut longest = Vec::new();
    for most in [50, 100, 200, 400, 800].into_iter().chain([1_000; 5]) {
        let failed = Instant::now();
        server.is_tried(&store).await;
        let (pause, most) = (failed.elapsed(), most * MS);
        // It is looked at once a millisecond, and so is the clock.
        let range = most / 2..=most + 2 * MS;
        assert!(range.contains(&pause), "{pause:?} of {most:?}");
        longest.push(pause);
    }
    let longest = &longest[5..];
    assert!(longest.iter().any(|it| *it != longest[0]), "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn it_is_short_again_after_a_connection_that_was_of_use() {
    let server = Server::start();
    let store = server.store();
    for _ in 0..10 {
        server.is_tried(&store).await;
    }
    server.manner.send_replace(Manner::Open);
    sleep(1_000 * MS).await;
    assert!(works(&store).await);
    server.manner.send_replace(Manner::Closed);
    server.is_tried(&store).await;
    server.manner.send_replace(Manner::Open);
    sleep(51 * MS).await;
    assert!(works(&store).await);
}

/// It gets the error of one that was sent.
#[tokio::test(start_paused = true)]
async fn a_call_meanwhile_is_not_sent() {
    let server = Server::start();
    server.manner.send_replace(Manner::Busy);
    let (store, key) = (server.store(), fresh());
    let call = || store.inspect(&key, Instant::now() + 1_000 * MS);
    let (sent, unsent) = (call().await.unwrap_err(), call().await.unwrap_err());
    assert_eq!(server.connections(), 2, "with the repeat of the first");
    assert!(sent.may_have_landed(), "{sent}");
    assert!(!unsent.may_have_landed(), "{unsent}");
}
