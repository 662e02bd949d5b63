//! One sender: a request, its answer, the next request.

use std::{
    io::{ErrorKind, Read, Write},
    net::SocketAddr,
    time::Instant,
};

use mio::net::TcpStream;

use super::event::Request;
use crate::Result;

/// The status of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer(u16);

impl Answer {
    pub(super) const fn is_success(self) -> bool {
        self.0 / 100 == 2
    }
}

pub(super) struct Connection {
    stream: TcpStream,
    request: Request,
    /// So much of the request went out; all of it if none is under way.
    sent: usize,
    answer: Box<[u8; 8 * 1024]>,
    received: usize,
    began: Instant,
}

impl Connection {
    pub(super) fn new(address: SocketAddr, request: Request) -> Result<Self> {
        // Connected before the first request, so that no request waits for it.
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: TcpStream::from_std(stream),
            sent: request.bytes().len(),
            request,
            answer: Box::new([0; 8 * 1024]),
            received: 0,
            began: Instant::now(),
        })
    }

    pub(super) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// When the request under way began.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// Sends the event, or as much of it as the system takes now.
    pub(super) fn begin(&mut self, id: u64, now: Instant) -> Result<()> {
        self.request.stamp(id);
        self.sent = 0;
        self.received = 0;
        self.began = now;
        self.send()
    }

    /// Goes on with what is under way; the answer, once all of it is here.
    pub(super) fn proceed(&mut self) -> Result<Option<Answer>> {
        self.send()?;
        loop {
            match self.stream.read(&mut self.answer[self.received..]) {
                Ok(0) => return Err("the server closed a connection".into()),
                Ok(bytes) => self.received += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            if let Some(answer) = parse(&self.answer[..self.received])? {
                return Ok(Some(answer));
            }
        }
    }

    fn send(&mut self) -> Result<()> {
        while let rest @ [_, ..] = &self.request.bytes()[self.sent..] {
            match self.stream.write(rest) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// `None` while a part is missing.
fn parse(bytes: &[u8]) -> Result<Option<Answer>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = response.parse(bytes)? else {
        return Ok(None);
    };
    let length = response
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"))
        .ok_or("an answer without content-length")?;
    let length: usize = std::str::from_utf8(length.value)?.parse()?;
    let complete = bytes.len() == head + length;
    Ok(complete.then(|| Answer(response.code.unwrap_or_default())))
}
