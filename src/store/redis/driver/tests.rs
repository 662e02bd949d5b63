//! The driver, whose task is polled by hand.

use std::time::Duration;

use fastrand::Rng;
use futures_util::FutureExt;
use redis::{RedisResult, Value, cmd};
use tokio::{io::duplex, task::unconstrained, time::sleep};

use self::rig::Rig;
use super::{super::error::RedisStoreError, *};
use crate::{StoreError, StoreErrorKind};

mod at_rest;
mod busy_poll;
mod rig;
mod room;

fn packed(names: &[&str]) -> String {
    let packed = |name: &&str| String::from_utf8(cmd(name).get_packed_command()).unwrap();
    names.iter().map(packed).collect()
}

/// What a server would say that answers each command with its name.
fn echo(got: &str) -> String {
    let names = got
        .lines()
        .filter(|line| line.starts_with(char::is_alphabetic));
    names.map(|name| format!("+{name}\r\n")).collect()
}

#[tokio::test]
async fn a_command_that_is_alone_does_not_wait() {
    let mut rig = Rig::new(true);
    assert!(rig.poll().is_pending());
    for _ in 0..3 {
        let reply = rig.push("ONE");
        assert!(rig.poll().is_pending());
        assert_eq!(rig.got(), packed(&["ONE"]));
        rig.answer("+OK\r\n");
        assert!(rig.poll().is_pending());
        assert_eq!(reply.now_or_never().unwrap(), Ok(Value::Okay));
    }
}

#[tokio::test]
async fn with_more_than_one_the_driver_steps_back_once_each_time() {
    let mut rig = Rig::new(true);
    for _ in 0..3 {
        let _replies = (rig.push("ONE"), rig.push("TWO"));
        assert_eq!(rig.woken(), 1);
        assert!(rig.poll().is_pending());
        assert_eq!((rig.woken(), rig.got()), (1, String::new()));
        // The third came meanwhile.
        let _reply = rig.push("THREE");
        assert!(rig.poll().is_pending());
        assert_eq!(rig.got(), packed(&["ONE", "TWO", "THREE"]));
    }
}

#[tokio::test]
async fn commands_go_out_in_one_write_but_not_too_many() {
    let mut rig = Rig::new(true);
    let _replies: Vec<_> = (0..MOST_PER_WRITE + 2).map(|_| rig.push("ONE")).collect();
    assert!(rig.work().is_pending());
    let [first, second] = [MOST_PER_WRITE, 2].map(|n| packed(&vec!["ONE"; n]));
    assert_eq!(rig.writes(), [first, second]);
}

#[tokio::test]
async fn switched_off_each_command_goes_out_at_once_and_alone() {
    let mut rig = Rig::new(false);
    let replies = (rig.push("ONE"), rig.push("TWO"));
    assert!(rig.poll().is_pending());
    assert_eq!(rig.writes(), [packed(&["ONE"]), packed(&["TWO"])]);
    rig.answer("+A\r\n");
    assert!(rig.work().is_pending());
    let alone = replies.0.now_or_never();
    assert_eq!(alone.unwrap(), Ok(Value::SimpleString("A".into())));
    assert!(replies.1.now_or_never().is_none());
}

#[tokio::test]
async fn a_command_that_came_first_goes_out_first_though_the_budget_was_used_up() {
    let mut rig = Rig::new(false);
    let _acquire = rig.push("ACQUIRE");
    assert!(rig.poll_without_budget().await.is_pending());
    let _release = rig.push("RELEASE");
    assert!(rig.work().is_pending());
    assert_eq!(rig.got(), packed(&["ACQUIRE", "RELEASE"]));
}

#[tokio::test]
async fn each_gets_its_own_reply_and_asking_none() {
    let mut rig = Rig::new(true);
    let plain = rig.push("ONE");
    let asked = rig.push_as("TWO", true);
    let refused = rig.push_as("THREE", true);
    let wrong = rig.push("FOUR");
    let needless = rig.push_as("FIVE", true);
    assert!(rig.work().is_pending());
    let sent = [
        "ONE", "ASKING", "TWO", "ASKING", "THREE", "FOUR", "ASKING", "FIVE",
    ];
    assert_eq!(rig.got(), packed(&sent));
    rig.answer("+A\r\n+OK\r\n+B\r\n-NOPERM asking\r\n-MOVED 1 a:1\r\n-WRONGTYPE four\r\n");
    // The node has the key by now, and does what it is told.
    rig.answer("-NOPERM asking\r\n+C\r\n");
    assert!(rig.work().is_pending());
    let reply = |reply: Option<RedisResult<Value>>| reply.unwrap().unwrap();
    assert_eq!(reply(plain.now_or_never()), Value::SimpleString("A".into()));
    assert_eq!(reply(asked.now_or_never()), Value::SimpleString("B".into()));
    let needless = needless.now_or_never();
    assert_eq!(reply(needless), Value::SimpleString("C".into()));
    for (answer, code) in [
        (refused.now_or_never(), "NOPERM"),
        (wrong.now_or_never(), "WRONGTYPE"),
    ] {
        let error = reply(answer).extract_error().unwrap_err();
        assert_eq!(error.code(), Some(code));
    }
}

/// Callers that go, replies in pieces, a budget that is used up: in any order.
#[tokio::test]
async fn each_gets_its_own_reply_whatever_comes_between() {
    for seed in 0..20 {
        let mut random = Rng::with_seed(seed);
        let mut rig = Rig::new(random.bool());
        if random.bool() {
            rig.hold_back();
        }
        let (mut waiting, mut replies) = (Vec::new(), String::new());
        for n in 0..300 {
            match random.u8(0..7) {
                0..3 => {
                    let name = format!("C{n}");
                    let reply = rig.push_as(&name, random.u8(0..4) == 0);
                    waiting.push((name, reply));
                }
                3 if !waiting.is_empty() => {
                    drop(waiting.swap_remove(random.usize(..waiting.len())));
                }
                4 => assert!(rig.poll_without_budget().await.is_pending()),
                5 => assert!(rig.poll().is_pending()),
                _ => {
                    replies += &echo(&rig.got());
                    let now = random.usize(..=replies.len());
                    rig.answer(&replies.drain(..now).collect::<String>());
                }
            }
        }
        while rig.unanswered() > 0 {
            assert!(rig.work().is_pending());
            replies += &echo(&rig.got());
            assert!(!replies.is_empty(), "seed {seed}: stuck");
            rig.answer(&std::mem::take(&mut replies));
            assert!(rig.work().is_pending());
        }
        for (name, reply) in waiting {
            let reply = unconstrained(reply).now_or_never();
            assert_eq!(reply.unwrap(), Ok(Value::SimpleString(name)), "{seed}");
        }
    }
}

#[tokio::test]
async fn a_command_that_nobody_waits_for_is_not_sent() {
    let mut rig = Rig::new(true);
    let _reply = rig.push("ONE");
    drop(rig.push("TWO"));
    assert!(rig.work().is_pending());
    assert_eq!(rig.got(), packed(&["ONE"]));
    drop(rig.push("THREE"));
    assert!(rig.work().is_pending());
    assert_eq!(rig.got(), "");
}

#[tokio::test]
async fn what_there_is_no_room_for_goes_out_when_there_is() {
    let mut rig = Rig::new(false);
    let replies: Vec<_> = (0..3 * Driver::MOST_WAITING)
        .map(|_| rig.push("ONE"))
        .collect();
    let mut answered = 0;
    while answered < replies.len() {
        assert!(rig.work().is_pending());
        let got = rig.got().matches("ONE").count();
        assert_eq!(got, Driver::MOST_WAITING.min(replies.len() - answered));
        rig.answer(&"+OK\r\n".repeat(got));
        answered += got;
    }
    assert!(rig.work().is_pending());
    for reply in replies {
        assert_eq!(
            unconstrained(reply).now_or_never().unwrap(),
            Ok(Value::Okay)
        );
    }
}

#[tokio::test]
async fn all_are_told_when_the_connection_breaks() {
    let mut rig = Rig::new(true);
    let replies = (rig.push("ONE"), rig.push("TWO"));
    assert!(rig.work().is_pending());
    let waiting = rig.push("THREE");
    rig.server = duplex(1).0;
    assert!(rig.work().is_ready());
    drop(rig.task);
    let late = rig.shared.send(cmd("FOUR"), false);
    let answers = [
        replies.0.now_or_never(),
        replies.1.now_or_never(),
        waiting.now_or_never(),
        late.now_or_never(),
    ];
    for answer in answers {
        let error = answer.unwrap().unwrap_err();
        assert!(error.is_unrecoverable_error(), "{error}");
    }
}

#[tokio::test]
async fn those_are_told_whose_commands_were_not_even_written() {
    let mut rig = Rig::with_room(true, 7);
    let first = rig.push(&"A".repeat(100));
    assert!(rig.work().is_pending());
    let second = rig.push("TWO");
    assert!(rig.work().is_pending());
    assert_eq!(rig.shared.queue.len(), 1);
    drop(rig.task);
    for reply in [first.now_or_never(), second.now_or_never()] {
        let error = reply.unwrap().unwrap_err();
        assert!(error.is_unrecoverable_error(), "{error}");
    }
}

#[tokio::test]
async fn a_command_that_goes_out_in_pieces_is_whole() {
    let mut rig = Rig::with_room(true, 7);
    let long = "A".repeat(100_000);
    let (first, second) = (rig.push(&long), rig.push("TWO"));
    let mut got = String::new();
    while !got.ends_with("TWO\r\n") {
        assert!(rig.work().is_pending());
        got += &rig.got();
    }
    assert_eq!(got, packed(&[&long, "TWO"]));
    for (reply, text) in [(first, "A"), (second, "B")] {
        rig.answer(&format!("+{text}\r\n"));
        assert!(rig.work().is_pending());
        assert_eq!(reply.await, Ok(Value::SimpleString(text.into())));
    }
}

#[tokio::test]
async fn what_is_held_back_goes_out_before_the_driver_rests() {
    let mut rig = Rig::with_room(true, 7);
    rig.hold_back();
    let (_first, mut got) = (rig.push("ONE"), String::new());
    assert!(rig.work().is_pending());
    let _second = rig.push("TWO");
    while !got.ends_with("TWO\r\n") {
        assert!(rig.work().is_pending());
        let more = rig.got();
        assert!(!more.is_empty(), "only {got:?}");
        got += &more;
    }
    assert_eq!(got, packed(&["ONE", "TWO"]));
}

#[tokio::test]
async fn replies_are_handed_out_while_the_server_reads_nothing() {
    let mut rig = Rig::with_room(true, 100);
    let first = rig.push("ONE");
    assert!(rig.work().is_pending());
    let second = rig.push(&"A".repeat(1_000));
    assert!(rig.work().is_pending());
    rig.answer("+OK\r\n");
    assert!(rig.work().is_pending());
    assert_eq!(first.now_or_never().unwrap(), Ok(Value::Okay));
    assert!(second.now_or_never().is_none());
}

#[tokio::test]
async fn a_connection_that_takes_nothing_is_broken_but_what_it_brought_counts() {
    let mut rig = Rig::new(true);
    let sent = (rig.push("ONE"), rig.push("TWO"));
    assert!(rig.work().is_pending());
    rig.take_nothing();
    rig.answer("+OK\r\n");
    let unsent = rig.push("THREE");
    assert!(rig.work().is_ready());
    assert_eq!(sent.0.await, Ok(Value::Okay));
    for reply in [sent.1.await, unsent.await] {
        let error = RedisStoreError::new(&reply.unwrap_err());
        assert!(error.is_broken(), "{error}");
    }
}

#[tokio::test]
async fn what_a_server_says_before_it_hangs_up_is_heard() {
    let mut rig = Rig::new(true);
    let said = rig.push("ONE");
    assert!(rig.work().is_pending());
    rig.answer("-ERR good bye\r\n");
    rig.server = duplex(1).0;
    let unsaid = rig.push("TWO");
    assert!(rig.work().is_ready());
    let error = said.await.unwrap().extract_error().unwrap_err();
    assert_eq!(error.detail(), Some("good bye"));
    assert!(unsaid.await.unwrap_err().is_unrecoverable_error());
}

#[tokio::test]
async fn what_a_server_says_before_it_is_asked_is_the_first_reply() {
    let mut rig = Rig::new(true);
    rig.answer("-ERR max number of clients reached\r\n");
    rig.server = duplex(1).0;
    drop(rig.push("ZERO"));
    assert!(rig.work().is_pending());
    let reply = rig.push("ONE");
    assert!(rig.work().is_ready());
    let error = reply.await.unwrap().extract_error().unwrap_err();
    assert_eq!(error.detail(), Some("max number of clients reached"));
}

#[tokio::test]
async fn a_push_is_nobodys_reply() {
    let mut rig = Rig::new(true);
    let push = ">2\r\n+invalidate\r\n*1\r\n$1\r\na\r\n";
    rig.answer(push);
    assert!(rig.work().is_pending());
    let replies = (rig.push("ONE"), rig.push_as("TWO", true));
    assert!(rig.work().is_pending());
    rig.answer(&format!("{push}+A\r\n{push}+OK\r\n{push}+B\r\n{push}"));
    assert!(rig.work().is_pending());
    assert_eq!(replies.0.await, Ok(Value::SimpleString("A".into())));
    assert_eq!(replies.1.await, Ok(Value::SimpleString("B".into())));
}

#[tokio::test]
async fn what_is_no_reply_ends_the_connection() {
    for (said, waits) in [("+OK\r\n", false), ("?\r\n", true), ("?\r\n", false)] {
        let mut rig = Rig::new(true);
        let _first = rig.push("ONE");
        assert!(rig.work().is_pending());
        rig.answer("+OK\r\n");
        assert!(rig.work().is_pending());
        let reply = waits.then(|| rig.push("TWO"));
        assert!(rig.work().is_pending());
        rig.answer(said);
        assert!(rig.work().is_ready());
        if let Some(reply) = reply {
            let error = RedisStoreError::new(&reply.await.unwrap_err());
            assert_eq!(error.kind(), StoreErrorKind::BadReply, "{error}");
            assert!(error.is_broken(), "{error}");
        }
    }
}

/// As with a server that is silent, while nothing else happens.
#[tokio::test(start_paused = true)]
async fn a_driver_that_waits_for_a_reply_is_not_woken_again_and_again() {
    let mut rig = Rig::new(true);
    let reply = rig.push("ONE");
    assert!(rig.work().is_pending());
    drop(reply);
    let mut woken = 0;
    for _ in 0..1_000 {
        sleep(Duration::from_millis(10)).await;
        if rig.is_woken() {
            woken += 1;
            assert!(rig.work().is_pending());
        }
    }
    // The early timer, which is not set again.
    assert_eq!(woken, 1);
}
