//! The replies of a server, one after the other.

use std::pin::Pin;

use futures_util::stream::{self, Stream};
use redis::{RedisResult, Value, parse_redis_value_async};
use tokio::io::AsyncRead;

/// Ends after an error, the end of what there is to read included.
pub(super) type Replies = Pin<Box<dyn Stream<Item = RedisResult<Value>> + Send>>;

pub(super) fn replies(reading: impl AsyncRead + Send + Unpin + 'static) -> Replies {
    let start = (Default::default(), reading);
    Box::pin(stream::try_unfold(
        start,
        |(mut decoder, mut reading)| async move {
            let reply = parse_redis_value_async(&mut decoder, &mut reading).await?;
            Ok(Some((reply, (decoder, reading))))
        },
    ))
}
