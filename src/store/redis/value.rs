//! What goes into commands and scripts, and what comes back.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use redis::{RedisWrite, ToRedisArgs, Value};

use super::RedisStoreError;
use crate::{Entry, store::record::to_millis};

/// A time that Redis takes for an expiry: it refuses zero, and what does not fit its clock.
pub(super) fn lasting(time: Duration) -> Duration {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    time.clamp(Duration::from_millis(1), CENTURY)
}

/// At most what [`lasting`] lets through, which fits.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The time in milliseconds since 1970.
pub(super) fn now() -> u64 {
    to_millis(SystemTime::now())
}

/// An argument that is written into the command as it is shown, without a string in between.
#[derive(Clone, Copy)]
pub(super) struct Shown<T>(pub(super) T);

impl<T: fmt::Display> ToRedisArgs for Shown<T> {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        out.write_arg_fmt(&self.0);
    }
}

/// The entry that is kept, and its text; `None` where nothing was.
///
/// Where one is found, nothing was written: an unreadable one has not landed.
pub(super) fn stored(reply: Value) -> Result<Option<(Entry, String)>, RedisStoreError> {
    let bytes = match reply {
        Value::Nil => return Ok(None),
        Value::BulkString(bytes) => bytes,
        other => return Err(senseless(&other)),
    };
    let Ok(text) = String::from_utf8(bytes) else {
        return Err(unreadable("it is not UTF-8"));
    };
    match text.parse() {
        Ok(entry) => Ok(Some((entry, text))),
        Err(_) => Err(unreadable("it is not an entry")),
    }
}

pub(super) fn yes_or_no(reply: &Value) -> Result<bool, RedisStoreError> {
    match reply {
        Value::Int(0) => Ok(false),
        Value::Int(1) => Ok(true),
        other => Err(senseless(other)),
    }
}

/// The value itself is not shown: it may be long, and it is not ours.
fn unreadable(why: &str) -> RedisStoreError {
    RedisStoreError::bad_reply(false, format!("the stored value is unreadable: {why}"))
}

fn senseless(reply: &Value) -> RedisStoreError {
    let shape = match reply {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) => "text",
        Value::Okay | Value::SimpleString(_) => "a status",
        _ => "a compound",
    };
    RedisStoreError::bad_reply(true, format!("the reply to a command is {shape}"))
}
