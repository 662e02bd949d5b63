//! What does not depend on the machine: commands for each delivery, and bytes for each event.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

use crate::{
    Result,
    generator::{Event, Generator, Path, Until},
    lab::Lab,
    servers::{Running, Server},
};

const REQUESTS: usize = 1_000;

/// Commands that clients sent, for each delivery; and what is kept of it.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) first: f64,
    pub(crate) duplicate: f64,
    pub(crate) remembered: f64,
    pub(crate) failed: f64,
    /// `MEMORY USAGE` of a completed event.
    pub(crate) bytes: f64,
}

pub(crate) fn run(lab: &mut Lab) -> Result<Counts> {
    lab.redis.flush()?;
    let layer = Running::start(Server::Layer, lab)?;
    let cached = Running::start(Server::Cached, lab)?;
    let first = commands(lab, &layer, Path::Webhook, Same::No)?;
    let bytes = bytes_each(lab)?;
    Ok(Counts {
        first,
        bytes,
        duplicate: commands(lab, &layer, Path::Webhook, Same::Yes)?,
        remembered: commands(lab, &cached, Path::Webhook, Same::Yes)?,
        failed: commands(lab, &layer, Path::Failing, Same::No)?,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Same {
    Yes,
    No,
}

fn commands(lab: &mut Lab, server: &Running, path: Path, same: Same) -> Result<f64> {
    let mut generator = Generator::connect(&[server.port], 1, 1024, path)?;
    let event = lab.ids.next();
    let mut send = |lab: &mut Lab, requests| {
        let event = match same {
            Same::Yes => Event::Same(event),
            Same::No => Event::New(&mut lab.ids),
        };
        generator.run(event, Until::Requests(requests))
    };
    // Connections are made and scripts loaded with the first ones.
    send(lab, 10)?;
    let mut monitor = Monitor::start(lab.redis.port())?;
    send(lab, REQUESTS)?;
    // The end of what is counted.
    lab.redis.command::<String>(&["ECHO", END])?;
    Ok(monitor.count()? as f64 / REQUESTS as f64)
}

const END: &str = "the end";

/// What Redis is told, line by line.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn start(port: u16) -> Result<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(b"MONITOR\r\n")?;
        let mut monitor = Self(BufReader::new(stream));
        match monitor.line()?.as_str() {
            "+OK\r\n" => Ok(monitor),
            answer => Err(format!("MONITOR: {answer}").into()),
        }
    }

    /// How many commands clients sent until the end; what scripts call does not count.
    fn count(&mut self) -> Result<usize> {
        let mut commands = 0;
        loop {
            let line = self.line()?;
            if line.contains(END) {
                return Ok(commands);
            }
            commands += usize::from(!line.contains(" lua] "));
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line)
    }
}

/// The mean over a few of the events that there are.
fn bytes_each(lab: &mut Lab) -> Result<f64> {
    const SOME: u32 = 100;

    let mut bytes = 0;
    for _ in 0..SOME {
        let key: String = lab.redis.command(&["RANDOMKEY"])?;
        bytes += lab.redis.command::<u32>(&["MEMORY", "USAGE", &key])?;
    }
    Ok(f64::from(bytes) / f64::from(SOME))
}
