//! Which commands clients send to a server.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{PATIENCE, RedisServer};

/// The commands that clients sent since it started, from `MONITOR`.
///
/// `INFO commandstats` and `total_commands_processed` will not do: they count the commands that
/// scripts run as if clients had sent them. `MONITOR` marks those with `lua`.
#[derive(Debug)]
pub(crate) struct Watch {
    lines: BufReader<UnixStream>,
    socket: UnixStream,
}

impl Watch {
    pub(super) fn start(server: &RedisServer) -> Self {
        let mut stream = server.connect();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut watch = Self {
            lines: BufReader::new(stream),
            socket: server.connect(),
        };
        assert_eq!(watch.line(), "+OK");
        watch
    }

    /// The names of the commands since the start or the last call, in upper case and in order,
    /// without those that open a connection.
    pub(crate) fn commands(&mut self) -> Vec<String> {
        // All that came before this mark is in the stream before it.
        static MARKS: AtomicU64 = AtomicU64::new(0);
        let mark = format!("mark-{}", MARKS.fetch_add(1, Ordering::Relaxed));
        self.socket
            .write_all(format!("ECHO {mark}\r\n").as_bytes())
            .unwrap();
        let mut commands = Vec::new();
        loop {
            let line = self.line();
            // +1700000000.000000 [0 unix:/tmp/redis.sock] "SET" "key" …
            let (client, command) = line.split_once("] ").unwrap();
            let name = command.split('"').nth(1).unwrap().to_uppercase();
            if command.contains(&mark) {
                return commands;
            }
            let opens = ["AUTH", "CLIENT", "SELECT", "HELLO"].contains(&&*name);
            if !client.ends_with("lua") && !opens {
                commands.push(name);
            }
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        assert!(line.ends_with("\r\n"), "the server is gone: {line:?}");
        line.truncate(line.len() - 2);
        line
    }
}
