//! Replies, as they come in one piece or in many.

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

/// Else the time that it takes would grow with the square of its length: it is moved at each.
#[tokio::test]
async fn a_long_reply_takes_few_reads() {
    let reply = format!("$1000000\r\n{}\r\n", "a".repeat(1_000_000));
    let mut stream = Counting {
        left: io::Cursor::new(reply.into_bytes()),
        reads: 0,
    };
    assert!(Replies::new().next(&mut stream).await.is_ok());
    assert!(stream.reads < 10, "{}", stream.reads);
}

#[tokio::test]
async fn what_was_handed_out_takes_no_room() {
    let (mut server, mut stream) = duplex(1 << 10);
    let mut replies = Replies::new();
    server.write_all(b":12").await.unwrap();
    for _ in 0..Replies::ROOM {
        // A part of the next one is always here, also where the room ends.
        server.write_all(b"\r\n:12").await.unwrap();
        let reply = unconstrained(replies.next(&mut stream)).now_or_never();
        assert_eq!(reply.unwrap(), Ok(Value::Int(12)));
    }
    assert_eq!(replies.buffer.capacity(), Replies::ROOM);
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

/// The time that a line without an end takes would grow with the square of its length.
#[tokio::test]
async fn what_was_searched_for_the_end_of_a_line_is_not_searched_again() {
    for said in ["+it is lon", "*2\r\n:1\r\n-it is lon"] {
        let (mut server, mut stream) = duplex(1 << 10);
        let mut replies = Replies::new();
        server.write_all(said.as_bytes()).await.unwrap();
        let reply = unconstrained(replies.next(&mut stream)).now_or_never();
        assert!(reply.is_none(), "{reply:?}");
        // With this in it, the line would end here.
        replies.buffer[said.len() - 4..][..2].copy_from_slice(b"\r\n");
        server.write_all(b"g\r\n").await.unwrap();
        let reply = unconstrained(replies.next(&mut stream)).now_or_never();
        assert!(reply.is_some_and(|reply| reply.is_ok()), "{said:?}");
        let rest = unconstrained(replies.next(&mut stream)).now_or_never();
        assert!(rest.is_none(), "{said:?}: {rest:?}");
    }
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
