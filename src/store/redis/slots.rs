//! Which node of a cluster has which keys.

use std::{collections::HashMap, sync::Arc};

use redis::Value;

use super::access::address;

/// The slots of a cluster, and who has them.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// First slot, last slot, and the address of the primary that has them.
    ranges: Vec<(u16, u16, Arc<str>)>,
    /// What nodes have said since: newer than the ranges.
    moved: HashMap<u16, Arc<str>>,
    replicas: Vec<Arc<str>>,
}

impl Slots {
    /// Reads the reply to `CLUSTER SLOTS`, which `asked` gave: a node that does not know how it is
    /// reached leaves its own host empty. `None` if there is no slot in it.
    pub(super) fn read(reply: Value, asked: &str) -> Option<Self> {
        let mut slots = Self::default();
        for range in redis::from_redis_value::<Vec<Value>>(reply).ok()? {
            let mut parts = redis::from_redis_value::<Vec<Value>>(range)
                .ok()?
                .into_iter();
            let first = number(parts.next()?)?;
            let last = number(parts.next()?)?;
            let primary = node(parts.next()?, asked)?;
            slots.ranges.push((first, last, primary));
            slots
                .replicas
                .extend(parts.filter_map(|it| node(it, asked)));
        }
        slots.ranges.sort_unstable();
        (!slots.ranges.is_empty()).then_some(slots)
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<str>> {
        if let Some(owner) = self.moved.get(&slot) {
            return Some(owner);
        }
        let after = self.ranges.partition_point(|(first, ..)| *first <= slot);
        let (_, last, owner) = self.ranges.get(after.checked_sub(1)?)?;
        (slot <= *last).then_some(owner)
    }

    pub(super) fn moved(&mut self, slot: u16, to: Arc<str>) {
        self.moved.insert(slot, to);
    }

    pub(super) fn primaries(&self) -> impl Iterator<Item = &Arc<str>> {
        self.ranges.iter().map(|(.., owner)| owner)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<str>> {
        let others = self.moved.values().chain(&self.replicas);
        self.primaries().chain(others)
    }

    /// How many of the 16 384 slots nobody has.
    pub(super) fn uncovered(&self) -> u32 {
        let covered = self
            .ranges
            .iter()
            .map(|(first, last, _)| u32::from(*last).saturating_sub(u32::from(*first)) + 1);
        u32::from(SLOTS).saturating_sub(covered.sum())
    }

    pub(super) fn has_replicas(&self) -> bool {
        !self.replicas.is_empty()
    }
}

const SLOTS: u16 = 16_384;

/// `[host, port, id, …]`
fn node(parts: Value, asked: &str) -> Option<Arc<str>> {
    let mut parts = redis::from_redis_value::<Vec<Value>>(parts)
        .ok()?
        .into_iter();
    let host: Option<String> = redis::from_redis_value(parts.next()?).ok()?;
    let port = number(parts.next()?)?;
    // "?" is a node without the name that it should have.
    let host = host.filter(|host| !host.is_empty() && host != "?");
    Some(located(
        host.as_deref().unwrap_or_default(),
        &port.to_string(),
        asked,
    ))
}

fn number(value: Value) -> Option<u16> {
    // The `redis` crate itself would cut off what is too much.
    let number: i64 = redis::from_redis_value(value).ok()?;
    u16::try_from(number).ok()
}

/// The address of a node, as another one, or itself, named it.
fn located(host: &str, port: &str, asked: &str) -> Arc<str> {
    if host.is_empty() {
        let bare = asked.rsplit_once(':');
        let known = bare.filter(|(_, port)| !port.ends_with(']'));
        return address(known.map_or(asked, |(host, _)| host), port).into();
    }
    address(host, port).into()
}

/// Where a node says that a key is, or is going to be.
#[derive(Debug, PartialEq)]
pub(super) enum Redirect {
    Moved(Arc<str>),
    Ask(Arc<str>),
}

impl Redirect {
    /// Reads `MOVED 3999 127.0.0.1:6381` and `ASK 3999 127.0.0.1:6381`, said by `from`.
    pub(super) fn read(text: &str, from: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let (code, _slot, place) = (words.next()?, words.next()?, words.next()?);
        let (host, port) = place.rsplit_once(':')?;
        let to = located(host, port, from);
        match code {
            "MOVED" => Some(Self::Moved(to)),
            "ASK" => Some(Self::Ask(to)),
            _ => None,
        }
    }
}

/// The slot of a key: of the part in the first braces, if that is not empty.
pub(super) fn slot_of(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let hashed = match tag {
        Some((tag, _)) if !tag.is_empty() => tag,
        _ => key,
    };
    crc16(hashed.as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, which the [cluster specification][spec] prescribes.
///
/// [spec]: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            let carry = crc & 0x8000 != 0;
            (crc << 1) ^ if carry { 0x1021 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_slots_that_the_specification_says() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        // What CLUSTER KEYSLOT answers.
        for (key, slot) in [
            ("foo", 12_182),
            ("bar", 5_061),
            ("{user1000}.following", 3_443),
            ("{user1000}.followers", 3_443),
            ("foo{}{bar}", 8_363),
            ("foo{{bar}}zap", 4_015),
            ("foo{bar}{zap}", 5_061),
            ("", 0),
        ] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn range(first: i64, last: i64, nodes: &[(Value, i64)]) -> Value {
        let mut parts = vec![Value::Int(first), Value::Int(last)];
        parts.extend(
            nodes.iter().map(|(host, port)| {
                Value::Array(vec![host.clone(), Value::Int(*port), text("id")])
            }),
        );
        Value::Array(parts)
    }

    #[test]
    fn a_map_names_the_owner_of_each_slot() {
        let reply = Value::Array(vec![
            range(100, 200, &[(text("b"), 2), (text("c"), 3)]),
            range(0, 50, &[(text(""), 1)]),
            range(
                201,
                16_383,
                &[(Value::Nil, 1), (text("::1"), 4), (text("?"), 6)],
            ),
        ]);
        let mut slots = Slots::read(reply, "a:9").unwrap();
        let owner = |slots: &Slots, slot| slots.owner(slot).map(|it| it.to_string());
        assert_eq!(owner(&slots, 0).as_deref(), Some("a:1"));
        assert_eq!(owner(&slots, 50).as_deref(), Some("a:1"));
        assert_eq!(owner(&slots, 51), None);
        assert_eq!(owner(&slots, 100).as_deref(), Some("b:2"));
        assert_eq!(owner(&slots, 16_383).as_deref(), Some("a:1"));
        assert_eq!(slots.uncovered(), 49);
        for node in ["b:2", "c:3", "[::1]:4", "a:6"] {
            assert!(slots.nodes().any(|it| &**it == node), "{node}");
        }
        slots.moved(51, "d:5".into());
        assert_eq!(owner(&slots, 51).as_deref(), Some("d:5"));
    }

    #[test]
    fn what_is_no_map_is_none() {
        for reply in [
            Value::Nil,
            Value::Okay,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 70_000, &[(text("a"), 1)])]),
            Value::Array(vec![range(0, 1, &[])]),
        ] {
            assert!(Slots::read(reply.clone(), "a:1").is_none(), "{reply:?}");
        }
    }

    #[test]
    fn redirects_are_read() {
        let read = |text| Redirect::read(text, "a:1");
        assert_eq!(read("MOVED 1 b:2"), Some(Redirect::Moved("b:2".into())));
        assert_eq!(read("ASK 1 :2"), Some(Redirect::Ask("a:2".into())));
        assert_eq!(read("ASK 1 ::1:2"), Some(Redirect::Ask("[::1]:2".into())));
        for other in ["MOVED", "MOVED 1", "MOVED 1 b", "ERR 1 b:2", ""] {
            assert_eq!(read(other), None);
        }
    }
}
