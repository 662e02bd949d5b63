//! The replies of a server, one after the other.

use std::pin::Pin;

use futures_util::stream::{self, Stream};
use redis::{RedisResult, Value, parse_redis_value_async};
use tokio::io::{AsyncRead, BufReader};

/// Ends after an error, the end of what there is to read included.
pub(super) type Replies = Pin<Box<dyn Stream<Item = RedisResult<Value>> + Send>>;

pub(super) fn replies(reading: impl AsyncRead + Send + Unpin + 'static) -> Replies {
    // The decoder by itself reads as many bytes as its buffer happens to have room for, which are 64
    // or fewer where replies are short.
    let start = (Default::default(), BufReader::new(reading));
    Box::pin(stream::try_unfold(
        start,
        |(mut decoder, mut reading)| async move {
            let reply = parse_redis_value_async(&mut decoder, &mut reading).await?;
            Ok(Some((reply, (decoder, reading))))
        },
    ))
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::{Context, Poll},
    };

    use fastrand::Rng;
    use futures_util::{FutureExt, StreamExt};
    use redis::parse_redis_value;
    use tokio::{
        io::{AsyncWriteExt, ReadBuf, duplex},
        task::unconstrained,
    };

    use super::*;

    /// A connection that counts how often it is read from.
    struct Counting {
        left: io::Cursor<Vec<u8>>,
        reads: Arc<AtomicUsize>,
    }

    impl AsyncRead for Counting {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut self.left).poll_read(cx, into)
        }
    }

    #[tokio::test]
    async fn many_replies_that_are_here_are_read_at_once() {
        for reply in ["+OK\r\n".to_owned(), format!("$100\r\n{:0100}\r\n", 0)] {
            let reads = Arc::default();
            let mut replies = replies(Counting {
                left: io::Cursor::new(reply.repeat(64).into_bytes()),
                reads: Arc::clone(&reads),
            });
            for _ in 0..64 {
                replies.next().await.unwrap().unwrap();
            }
            assert_eq!(reads.load(Ordering::Relaxed), 1, "64 times {reply:?}");
            let end = replies.next().await.unwrap().unwrap_err();
            assert!(end.is_connection_dropped(), "{end}");
            assert!(replies.next().await.is_none());
        }
    }
    /// Any reply, as a server would write it.
    fn any(random: &mut Rng, depth: u8) -> String {
        let kinds = if depth == 0 { 5 } else { 8 };
        let kind = random.u8(0..kinds);
        let mut some = |count| -> String { (0..count).map(|_| any(random, depth - 1)).collect() };
        match kind {
            0 => "+OK\r\n".to_owned(),
            1 => ":-12\r\n".to_owned(),
            2 => "$-1\r\n".to_owned(),
            3 => "-ERR it is full\r\n".to_owned(),
            4 => format!("$13\r\n+OK\r\n$1\r\na\r\n{}\r\n", random.alphabetic()),
            5 => format!("*3\r\n{}", some(3)),
            6 => format!("%1\r\n{}", some(2)),
            _ => format!(">2\r\n+news\r\n{}", some(1)),
        }
    }

    #[tokio::test]
    async fn replies_in_pieces_are_those_that_came_whole() {
        for seed in 0..200 {
            let mut random = Rng::with_seed(seed);
            let said: Vec<_> = (0..20).map(|_| any(&mut random, 3)).collect();
            let (mut server, reading) = duplex(1 << 20);
            let mut replies = replies(reading);
            let (mut left, mut heard) = (said.concat().into_bytes(), Vec::new());
            while !left.is_empty() {
                let most = left.len().min(if random.bool() { 3 } else { 300 });
                let piece: Vec<_> = left.drain(..random.usize(1..=most)).collect();
                server.write_all(&piece).await.unwrap();
                while let Some(reply) = unconstrained(replies.next()).now_or_never() {
                    heard.push(reply.unwrap().unwrap());
                }
            }
            let whole = said.iter().map(|reply| parse_redis_value(reply.as_bytes()));
            assert_eq!(
                heard,
                whole.map(Result::unwrap).collect::<Vec<_>>(),
                "{seed}"
            );
        }
    }
}
