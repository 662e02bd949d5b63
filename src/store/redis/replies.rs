//! The replies of a server, one after the other.
//!
//! A reply is cut out by its length, which the [protocol][RESP] puts first. Nearly all are `$-1` (the
//! lease was free), `:1` (the step was taken) or the text of an entry. These are read in place; the
//! parser of the `redis` crate, which takes much longer, gets the others.
//!
//! [RESP]: https://redis.io/docs/latest/develop/reference/protocol-spec/

use std::{
    pin::Pin,
    str,
    task::{Context, Poll, ready},
};

use redis::{ErrorKind, RedisError, RedisResult, Value, parse_redis_value};
use tokio::io::{AsyncRead, ReadBuf};

use super::queue::broken;

/// What was read and not yet handed out.
pub(super) struct Replies {
    /// Filled from `start` to `end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    measured: Measured,
}

/// The values of the first reply that are here as a whole: a long array comes in many reads, and
/// none of them looks at all of it again.
struct Measured {
    length: usize,
    /// How many are to come.
    left: usize,
}

impl Replies {
    /// At most so many bytes are read at once, unless a reply is longer. More room is not kept.
    const ROOM: usize = 8 * 1024;

    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; Self::ROOM],
            start: 0,
            end: 0,
            measured: Measured::nothing(),
        }
    }

    /// The next one. Not to be asked again after an error: where the next reply starts is not known.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        mut stream: Pin<&mut (impl AsyncRead + ?Sized)>,
    ) -> Poll<RedisResult<Value>> {
        loop {
            let bytes = &self.buffer[self.start..self.end];
            if let Some((reply, length)) = first(bytes, &mut self.measured)? {
                self.start += length;
                self.measured = Measured::nothing();
                return Poll::Ready(Ok(reply));
            }
            ready!(self.read(cx, stream.as_mut()))?;
        }
    }

    /// Reads more of the next one, of which a part is here at most.
    fn read(
        &mut self,
        cx: &mut Context<'_>,
        stream: Pin<&mut (impl AsyncRead + ?Sized)>,
    ) -> Poll<RedisResult<()>> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.buffer.truncate(Self::ROOM);
            self.buffer.shrink_to_fit();
        } else if self.end == self.buffer.len() {
            // Room for as much again: a long reply is not moved at each read.
            self.buffer.copy_within(self.start.., 0);
            (self.start, self.end) = (0, self.end - self.start);
            self.buffer.resize(self.buffer.len().max(2 * self.end), 0);
        }
        let mut room = ReadBuf::new(&mut self.buffer[self.end..]);
        ready!(stream.poll_read(cx, &mut room))?;
        match room.filled().len() {
            0 => Poll::Ready(Err(broken())),
            read => {
                self.end += read;
                Poll::Ready(Ok(()))
            }
        }
    }
}

/// The first reply and its length, if it is here as a whole.
fn first(bytes: &[u8], measured: &mut Measured) -> RedisResult<Option<(Value, usize)>> {
    let Some(head) = Head::of(bytes) else {
        return Ok(None);
    };
    let (value, length) = match (head.kind, head.number) {
        (b':', Some(number)) => (Value::Int(number), head.length),
        (b'$', Some(..0)) => (Value::Nil, head.length),
        _ => {
            let Some(length) = measured.whole(bytes) else {
                return Ok(None);
            };
            match &bytes[head.length..length] {
                [text @ .., b'\r', b'\n'] if head.kind == b'$' => {
                    (Value::BulkString(text.to_vec()), length)
                }
                _ => {
                    let parsed = parse_redis_value(&bytes[..length]);
                    // Its own error may be that the connection ended, where bytes are missing.
                    (parsed.map_err(|_| malformed())?, length)
                }
            }
        }
    };
    Ok(Some((value, length)))
}

fn malformed() -> RedisError {
    (ErrorKind::Parse, "the server's reply is malformed").into()
}

impl Measured {
    const fn nothing() -> Self {
        Self { length: 0, left: 1 }
    }

    /// The length of the first reply, if it is here as a whole. A malformed one ends where that
    /// shows.
    fn whole(&mut self, bytes: &[u8]) -> Option<usize> {
        while self.left > 0 {
            let head = Head::of(&bytes[self.length..])?;
            let length = self.length + head.length;
            // A negative one stands for null.
            let number = head.number.map(|number| usize::try_from(number).ok());
            let (text, values) = match (head.kind, number) {
                (b'$' | b'!' | b'=', Some(text)) => {
                    (text.map_or(0, |text| text.saturating_add(2)), 0)
                }
                (b'*' | b'~' | b'>', Some(values)) => (0, values.unwrap_or(0)),
                (b'%', Some(Some(pairs))) => (0, pairs.saturating_mul(2)),
                // Also the value that has them.
                (b'|', Some(Some(pairs))) => (0, pairs.saturating_mul(2).saturating_add(1)),
                (b':', Some(_)) => (0, 0),
                (kind, _) if kind != b':' && is_simple(kind) => (0, 0),
                _ => return Some(length),
            };
            let length = length.saturating_add(text);
            if length > bytes.len() {
                return None;
            }
            self.length = length;
            self.left = (self.left - 1).saturating_add(values);
        }
        Some(self.length)
    }
}

/// The line that a value starts with.
struct Head {
    /// The type of the value, by its first byte.
    kind: u8,
    /// The rest of the line, if that is a number.
    number: Option<i64>,
    /// With the end of the line.
    length: usize,
}

/// Whether the line is the whole value.
const fn is_simple(kind: u8) -> bool {
    matches!(kind, b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(')
}

/// Whether more follows, as long as the line says.
const fn is_aggregate(kind: u8) -> bool {
    matches!(kind, b'$' | b'!' | b'=' | b'*' | b'~' | b'>' | b'%' | b'|')
}

impl Head {
    /// `None`: the line is not here as a whole.
    fn of(bytes: &[u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        // No such type: there may never be an end of the line.
        if !is_simple(kind) && !is_aggregate(kind) {
            return Some(Self {
                kind,
                number: None,
                length: 1,
            });
        }
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let number = str::from_utf8(&rest[..end]).ok();
        Some(Self {
            kind,
            number: number.and_then(|number| number.parse().ok()),
            length: 1 + end + 2,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, io, iter};

    use fastrand::Rng;
    use futures_util::FutureExt;
    use tokio::{
        io::{AsyncWriteExt, duplex},
        task::unconstrained,
    };

    use super::*;

    impl Replies {
        async fn next(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> RedisResult<Value> {
            poll_fn(|cx| self.poll_next(cx, Pin::new(stream))).await
        }
    }

    /// A connection that counts how often it is read from.
    struct Counting {
        left: io::Cursor<Vec<u8>>,
        reads: usize,
    }

    impl AsyncRead for Counting {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.reads += 1;
            Pin::new(&mut self.left).poll_read(cx, into)
        }
    }

    #[tokio::test]
    async fn many_replies_that_are_here_are_read_at_once() {
        for reply in ["+OK\r\n".to_owned(), format!("$100\r\n{:0100}\r\n", 0)] {
            let mut stream = Counting {
                left: io::Cursor::new(reply.repeat(64).into_bytes()),
                reads: 0,
            };
            let mut replies = Replies::new();
            for _ in 0..64 {
                replies.next(&mut stream).await.unwrap();
            }
            assert_eq!(stream.reads, 1, "64 times {reply:?}");
            let end = replies.next(&mut stream).await.unwrap_err();
            assert!(end.is_connection_dropped(), "{end}");
        }
    }

    /// Any reply, as a server would write it.
    fn any(random: &mut Rng, depth: u8) -> String {
        let kinds = if depth == 0 { 12 } else { 18 };
        let kind = random.u8(0..kinds);
        let mut some = |count| -> String { (0..count).map(|_| any(random, depth - 1)).collect() };
        match kind {
            0 => "+OK\r\n".to_owned(),
            1 => ":-12\r\n".to_owned(),
            2 => "$-1\r\n".to_owned(),
            3 => "-ERR it is full\r\n".to_owned(),
            4 => format!("$13\r\n+OK\r\n$1\r\na\r\n{}\r\n", random.alphabetic()),
            5 => "$0\r\n\r\n".to_owned(),
            6 => format!("$20000\r\n{:020000}\r\n", 0),
            7 => "_\r\n#t\r\n,1.5\r\n".to_owned(),
            8 => "(12345678901234567890\r\n".to_owned(),
            9 => "!10\r\nERR is\r\nit\r\n".to_owned(),
            10 => "=8\r\ntxt:a\r\nb\r\n".to_owned(),
            11 => "*-1\r\n+\r\n".to_owned(),
            12 => format!("*3\r\n{}", some(3)),
            13 => "*0\r\n".to_owned(),
            14 => format!("%2\r\n{}", some(4)),
            15 => format!("~1\r\n{}", some(1)),
            16 => format!("|1\r\n{}", some(3)),
            _ => format!(">2\r\n+news\r\n{}", some(1)),
        }
    }

    #[tokio::test]
    async fn replies_in_pieces_are_those_that_came_whole() {
        for seed in 0..200 {
            let mut random = Rng::with_seed(seed);
            let said: String = (0..20).map(|_| any(&mut random, 3)).collect();
            let whole = {
                let (mut parser, mut said) = (redis::Parser::new(), said.as_bytes());
                iter::from_fn(|| parser.parse_value(&mut said).ok()).collect::<Vec<_>>()
            };
            assert!(whole.len() >= 20, "{seed}");
            let (mut server, mut stream) = duplex(1 << 20);
            let (mut replies, mut heard) = (Replies::new(), Vec::new());
            let mut left = said.into_bytes();
            while !left.is_empty() {
                let most = left.len().min(if random.bool() { 3 } else { 300 });
                let piece: Vec<_> = left.drain(..random.usize(1..=most)).collect();
                server.write_all(&piece).await.unwrap();
                while let Some(reply) = unconstrained(replies.next(&mut stream)).now_or_never() {
                    heard.push(reply.unwrap());
                }
            }
            assert_eq!(heard, whole, "{seed}");
            assert_eq!(replies.buffer.capacity(), Replies::ROOM, "{seed}");
        }
    }

    #[tokio::test]
    async fn what_is_no_reply_is_an_error_as_soon_as_that_shows() {
        for said in [
            "?",
            "\r\n",
            "$a\r\n",
            "$1\r\nab\r\n",
            "$99999999999999999999\r\n",
            "*\r\n",
            "*2\r\n:1\r\n$ \r\n",
            "*1\r\n*1\r\nH",
            "*2\r\n:1a\r\n",
            "*2\r\n%-1\r\n",
            "|-1\r\n",
            "%-1\r\n",
            "=-1\r\n",
            ":1a\r\n",
            "#y\r\n",
        ] {
            let (mut server, mut stream) = duplex(1 << 10);
            server.write_all(said.as_bytes()).await.unwrap();
            let mut replies = Replies::new();
            let reply = unconstrained(replies.next(&mut stream)).now_or_never();
            let error = reply.unwrap_or_else(|| panic!("{said:?} is waited for"));
            assert!(error.is_err(), "{said:?}: {error:?}");
        }
    }

    /// The time that a long array takes would grow with the square of its length.
    #[tokio::test]
    async fn what_was_measured_is_not_measured_again() {
        let (mut server, mut stream) = duplex(1 << 10);
        let mut replies = Replies::new();
        server.write_all(b"*3\r\n:1\r\n:2\r\n").await.unwrap();
        let reply = unconstrained(replies.next(&mut stream)).now_or_never();
        assert!(reply.is_none(), "{reply:?}");
        // With this in it, the array would be longer.
        replies.buffer[4..8].copy_from_slice(b"$9\r\n");
        server.write_all(b":3\r\n").await.unwrap();
        let reply = unconstrained(replies.next(&mut stream)).now_or_never();
        assert!(reply.is_some_and(|reply| reply.is_err()));
    }

    /// Nor is room made for what is only announced.
    #[tokio::test]
    async fn what_is_not_here_is_waited_for() {
        for said in [
            "",
            "$",
            "$5\r",
            "$5\r\nabcd",
            "$5\r\nabcde\r",
            "*2\r\n:1\r\n",
            "$9223372036854775807\r\n",
            "*9223372036854775807\r\n",
            "%9223372036854775807\r\n:1\r\n",
            "|9223372036854775807\r\n",
        ] {
            let (mut server, mut stream) = duplex(1 << 10);
            server.write_all(said.as_bytes()).await.unwrap();
            let mut replies = Replies::new();
            let reply = unconstrained(replies.next(&mut stream)).now_or_never();
            assert!(reply.is_none(), "{said:?}: {reply:?}");
            assert_eq!(replies.buffer.capacity(), Replies::ROOM, "{said:?}");
        }
    }
}
