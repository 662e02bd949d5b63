//! The driver, polled by hand.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    task::Wake,
    time::Duration,
};

use fastrand::Rng;
use futures_util::FutureExt;
use redis::{RedisResult, Value, cmd};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    task::{consume_budget, coop::has_budget_remaining, unconstrained},
    time::sleep,
};

use super::{super::error::RedisStoreError, *};

/// A driver that is polled by hand, and the server's end of its connection.
struct Rig {
    driver: Pin<Box<Driver>>,
    queue: Arc<Queue>,
    server: DuplexStream,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Rig {
    fn new(coalesce: bool) -> Self {
        Self::with_room(coalesce, 1 << 20)
    }

    /// The connection takes so many bytes until the server reads them.
    fn with_room(coalesce: bool, room: usize) -> Self {
        let (stream, server) = duplex(room);
        let queue = Arc::new(Queue::default());
        let driver = Driver::new(Box::pin(stream), queue.clone(), coalesce);
        Self {
            driver: Box::pin(driver),
            queue,
            server,
            woken: Arc::default(),
        }
    }

    /// A command of this name on its way.
    fn push(&self, name: &str) -> impl Future<Output = RedisResult<Value>> + use<> {
        self.push_as(name, false)
    }

    /// In the room of one that was sent, if there is one.
    fn push_as(
        &self,
        name: &str,
        asking: bool,
    ) -> impl Future<Output = RedisResult<Value>> + use<> {
        let mut command = self.queue.spare().unwrap_or_default();
        command.arg(name);
        self.queue.push(command, asking)
    }

    /// With all the budget of the runtime that it wants.
    fn poll(&mut self) -> Poll<()> {
        let waker = self.woken.clone().into();
        let mut driver = unconstrained(self.driver.as_mut());
        Pin::new(&mut driver).poll(&mut Context::from_waker(&waker))
    }

    /// As after another task that has used the budget up, and then woken the driver.
    async fn poll_without_budget(&mut self) -> Poll<()> {
        while has_budget_remaining() {
            consume_budget().await;
        }
        let waker = self.woken.clone().into();
        self.driver.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// How often the driver was woken since this was asked last.
    fn woken(&self) -> usize {
        self.woken.0.swap(0, Ordering::Relaxed)
    }

    /// What the server has got since.
    fn got(&mut self) -> String {
        let mut got = vec![0; 1 << 20];
        let read = unconstrained(self.server.read(&mut got)).now_or_never();
        got.truncate(read.map_or(0, Result::unwrap));
        String::from_utf8(got).unwrap()
    }

    fn answer(&mut self, replies: &str) {
        let written = self.server.write_all(replies.as_bytes());
        unconstrained(written).now_or_never().unwrap().unwrap();
    }

    /// Polls for as long as the driver wakes itself.
    fn work(&mut self) -> Poll<()> {
        loop {
            self.woken();
            let polled = self.poll();
            if polled.is_ready() || self.woken() == 0 {
                return polled;
            }
        }
    }
}

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
        rig.woken();
        assert!(rig.poll().is_pending());
        assert_eq!((rig.woken(), rig.got()), (1, String::new()));
        // The third came meanwhile.
        let _reply = rig.push("THREE");
        assert!(rig.poll().is_pending());
        assert_eq!(rig.got(), packed(&["ONE", "TWO", "THREE"]));
    }
}

#[tokio::test]
async fn switched_off_each_command_goes_out_at_once_and_alone() {
    let mut rig = Rig::new(false);
    let replies = (rig.push("ONE"), rig.push("TWO"));
    assert!(rig.poll().is_pending());
    assert_eq!(rig.got(), packed(&["ONE", "TWO"]));
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
    assert!(rig.work().is_pending());
    let sent = ["ONE", "ASKING", "TWO", "ASKING", "THREE", "FOUR"];
    assert_eq!(rig.got(), packed(&sent));
    rig.answer("+A\r\n+OK\r\n+B\r\n-NOPERM asking\r\n-MOVED 1 a:1\r\n-WRONGTYPE four\r\n");
    assert!(rig.work().is_pending());
    let reply = |reply: Option<RedisResult<Value>>| reply.unwrap().unwrap();
    assert_eq!(reply(plain.now_or_never()), Value::SimpleString("A".into()));
    assert_eq!(reply(asked.now_or_never()), Value::SimpleString("B".into()));
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
        while rig.queue.len() + rig.driver.waiting.len() > 0 {
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
    let replies: Vec<_> = (0..3 * Driver::MOST).map(|_| rig.push("ONE")).collect();
    let mut answered = 0;
    while answered < replies.len() {
        assert!(rig.work().is_pending());
        let got = rig.got().matches("ONE").count();
        assert_eq!(got, Driver::MOST.min(replies.len() - answered));
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
    drop(rig.driver);
    let late = rig.queue.push(cmd("FOUR"), false);
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
            let error = reply.await.unwrap_err();
            assert!(RedisStoreError::new(&error).is_broken(), "{error}");
        }
    }
}

/// As with a server that is silent, while nothing else happens.
#[tokio::test(start_paused = true)]
async fn a_connection_that_waits_for_a_reply_wakes_nobody() {
    let mut rig = Rig::new(true);
    let reply = rig.push("ONE");
    assert!(rig.work().is_pending());
    drop(reply);
    let mut woken = 0;
    for _ in 0..1_000 {
        sleep(Duration::from_millis(10)).await;
        if rig.woken() > 0 {
            woken += 1;
            assert!(rig.work().is_pending());
        }
    }
    assert!(woken <= 1, "woken {woken} times in 10 s");
}

#[tokio::test]
async fn the_room_of_a_long_command_is_given_back() {
    let mut rig = Rig::new(true);
    for (length, kept) in [(10, true), (10_000, false), (10, true)] {
        let reply = rig.push(&"A".repeat(length));
        assert!(rig.work().is_pending());
        rig.got();
        rig.answer("+OK\r\n");
        assert!(rig.work().is_pending());
        assert_eq!(reply.await, Ok(Value::Okay));
        assert_eq!(rig.queue.spare().is_some(), kept, "{length}");
    }
}
