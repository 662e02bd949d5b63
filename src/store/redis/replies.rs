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

/// The values of the first reply that are here as a whole: a long array, or a long line, comes in
/// many reads, and none of them looks at all of it again.
struct Measured {
    length: usize,
    /// How much of the line that follows has no end in it.
    searched: usize,
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
    let Some(length) = measured.whole(bytes) else {
        return Ok(None);
    };
    let Some(head) = Head::of(bytes, 0) else {
        return Err(malformed());
    };
    let value = match (head.kind, head.number, &bytes[head.length..length]) {
        (b':', Some(number), _) => Value::Int(number),
        (b'$', Some(..0), _) => Value::Nil,
        (b'$', _, [text @ .., b'\r', b'\n']) => Value::BulkString(text.to_vec()),
        // Its own error may be that the connection ended, where bytes are missing.
        _ => parse_redis_value(&bytes[..length]).map_err(|_| malformed())?,
    };
    Ok(Some((value, length)))
}

fn malformed() -> RedisError {
    (ErrorKind::Parse, "the server's reply is malformed").into()
}

impl Measured {
    const fn nothing() -> Self {
        Self {
            length: 0,
            searched: 0,
            left: 1,
        }
    }

    /// The length of the first reply, if it is here as a whole. A malformed one ends where that
    /// shows.
    fn whole(&mut self, bytes: &[u8]) -> Option<usize> {
        while self.left > 0 {
            let line = &bytes[self.length..];
            let Some(head) = Head::of(line, self.searched) else {
                // The last byte may be the first one of the end.
                self.searched = line.len().saturating_sub(1);
                return None;
            };
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
            (self.length, self.searched) = (length, 0);
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
    /// `None`: the line is not here as a whole. Its first `searched` bytes have no end in them.
    fn of(bytes: &[u8], searched: usize) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        // No such type: there may never be an end of the line.
        if !is_simple(kind) && !is_aggregate(kind) {
            return Some(Self {
                kind,
                number: None,
                length: 1,
            });
        }
        let from = searched.saturating_sub(1);
        let end = from + rest[from..].windows(2).position(|two| two == b"\r\n")?;
        let number = str::from_utf8(&rest[..end]).ok();
        Some(Self {
            kind,
            number: number.and_then(|number| number.parse().ok()),
            length: 1 + end + 2,
        })
    }
}

#[cfg(test)]
mod tests;
