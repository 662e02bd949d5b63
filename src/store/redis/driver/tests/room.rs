//! Room that was needed once and is not kept.

use std::iter;

use redis::Value;

use super::{super::*, rig::Rig};

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
        assert_eq!(rig.shared.queue.spare().is_some(), kept, "{length}");
    }
}

#[tokio::test]
async fn the_room_of_many_commands_is_given_back() {
    let mut rig = Rig::new(true);
    let _replies: Vec<_> = (0..10 * MOST_PER_WRITE).map(|_| rig.push("ONE")).collect();
    assert!(rig.work().is_pending());
    let kept = iter::from_fn(|| rig.shared.queue.spare()).count();
    assert!(kept <= MOST_PER_WRITE, "{kept}");
}

#[tokio::test]
async fn the_room_of_a_long_write_is_given_back() {
    let mut rig = Rig::new(true);
    let _reply = rig.push(&"A".repeat(2 * Outgoing::KEPT));
    assert!(rig.work().is_pending());
    let driver = rig.shared.driver.lock();
    assert!(driver.as_ref().unwrap().outgoing.bytes.capacity() <= Outgoing::KEPT);
}
