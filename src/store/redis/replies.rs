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

    use futures_util::StreamExt;
    use tokio::io::ReadBuf;

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
}
