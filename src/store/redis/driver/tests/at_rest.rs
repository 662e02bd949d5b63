//! Commands that come while nothing is awaited.

use std::sync::Arc;

use futures_util::FutureExt;
use redis::{Value, cmd};
use tokio::io::{AsyncReadExt, duplex};

use super::{super::super::error::RedisStoreError, packed, rig::Rig};

#[tokio::test]
async fn a_command_that_comes_at_rest_goes_out_without_the_task() {
    for coalesce in [true, false] {
        let mut rig = Rig::at_rest(coalesce).await;
        for _ in 0..3 {
            let first = rig.push("ONE");
            assert_eq!((rig.woken(), rig.got()), (0, packed(&["ONE"])));
            // Not at rest any more.
            let second = rig.push("TWO");
            assert_eq!((rig.woken(), rig.got()), (1, String::new()));
            assert!(rig.poll().is_pending());
            assert!(rig.work().is_pending());
            assert_eq!(rig.got(), packed(&["TWO"]));
            // The task is woken for the reply, though it was not polled for the command.
            rig.answer("+A\r\n+B\r\n");
            assert!(rig.work().is_pending());
            for (reply, text) in [(first, "A"), (second, "B")] {
                assert_eq!(reply.await, Ok(Value::SimpleString(text.into())));
            }
        }
    }
}

/// Else its reply would wake nobody.
#[tokio::test]
async fn the_first_command_waits_for_the_task_which_has_not_read_yet() {
    let mut rig = Rig::new(true);
    assert!(rig.poll().is_pending());
    let reply = rig.push("ONE");
    assert_eq!((rig.woken(), rig.got()), (1, String::new()));
    assert!(rig.poll().is_pending());
    rig.answer("+OK\r\n");
    assert!(rig.work().is_pending());
    assert_eq!(reply.await, Ok(Value::Okay));
}

#[tokio::test]
async fn a_command_that_finds_the_driver_busy_is_left_to_the_task() {
    let mut rig = Rig::at_rest(true).await;
    let shared = Arc::clone(&rig.shared);
    let busy = shared.driver.lock();
    let reply = rig.push("ONE");
    assert_eq!((rig.woken(), rig.got()), (1, String::new()));
    drop(busy);
    assert!(rig.poll().is_pending());
    assert_eq!(rig.got(), packed(&["ONE"]));
    rig.answer("+OK\r\n");
    assert!(rig.work().is_pending());
    assert_eq!(reply.await, Ok(Value::Okay));
}

#[tokio::test]
async fn what_there_was_no_room_for_at_once_the_task_writes() {
    let mut rig = Rig::at_rest_with_room(true, 7).await;
    let (long, mut got) = ("A".repeat(1_000), String::new());
    let reply = rig.push(&long);
    assert!(!rig.is_woken());
    while !got.ends_with("A\r\n") {
        let more = rig.got();
        assert!(!more.is_empty(), "only {got:?}");
        got += &more;
        assert!(rig.work().is_pending());
    }
    assert_eq!(got, packed(&[&long]));
    rig.answer("+OK\r\n");
    assert!(rig.work().is_pending());
    assert_eq!(reply.await, Ok(Value::Okay));
}

#[tokio::test]
async fn a_connection_that_takes_nothing_at_once_is_broken() {
    let mut rig = Rig::at_rest(true).await;
    rig.take_nothing();
    let reply = rig.push("ONE");
    assert!(rig.work().is_ready());
    let error = RedisStoreError::new(&reply.await.unwrap_err());
    assert!(error.is_broken(), "{error}");
}

/// Its runtime ended, or the connection was given up.
#[tokio::test]
async fn without_the_task_no_command_goes_out() {
    let mut rig = Rig::at_rest(true).await;
    let sent = rig.push("ONE");
    assert_eq!(rig.got(), packed(&["ONE"]));
    drop(rig.task);
    let unsent = rig.shared.send(cmd("TWO"), false);
    let mut rest = String::new();
    let closed = rig.server.read_to_string(&mut rest).now_or_never();
    assert_eq!(closed.unwrap().unwrap(), 0);
    for reply in [sent.now_or_never(), unsent.now_or_never()] {
        let error = RedisStoreError::new(&reply.unwrap().unwrap_err());
        assert!(error.is_broken(), "{error}");
    }
}

#[tokio::test]
async fn what_is_held_back_goes_out_at_once() {
    let mut rig = Rig::at_rest(true).await;
    rig.hold_back();
    let reply = rig.push("ONE");
    assert_eq!((rig.woken(), rig.got()), (0, packed(&["ONE"])));
    rig.answer("+OK\r\n");
    assert!(rig.work().is_pending());
    assert_eq!(reply.await, Ok(Value::Okay));
}

#[tokio::test]
async fn a_connection_that_the_server_closes_at_rest_is_closed_here() {
    let mut rig = Rig::at_rest(true).await;
    assert_eq!(rig.woken(), 0);
    rig.server = duplex(1).0;
    assert!(rig.work().is_ready());
}
