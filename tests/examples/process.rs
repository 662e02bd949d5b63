//! The examples as processes.

use std::{path::PathBuf, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::web::Web;

/// The built example, ready to be started. `cargo test` and `cargo nextest run` build it; with
/// `--test examples`, which does not, `cargo build --examples` has to come first.
pub(crate) fn example(name: &str) -> Command {
    // target/debug/deps/examples-… is this, target/debug/examples/… is that.
    let this = std::env::current_exe().unwrap();
    let folder = this.ancestors().nth(2).unwrap();
    let path: PathBuf = folder.join("examples").join(name);
    assert!(path.exists(), "run `cargo build --examples` first");
    let mut command = Command::new(path);
    command
        .stdin(Stdio::null())
        .env_remove("RUST_BACKTRACE")
        .kill_on_drop(true);
    command
}

/// A server that has been told to listen on any port.
pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) web: Web,
}

impl Server {
    pub(crate) async fn start(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).await.unwrap();
        let address = line.trim_end().strip_prefix("listening on ").unwrap();
        let web = Web::new(address.parse().unwrap());
        Self { process, web }
    }

    pub(crate) async fn signal(&self, signal: &str) {
        let pid = self.process.id().unwrap().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().await;
        assert!(sent.unwrap().success(), "kill {signal}");
    }
}
