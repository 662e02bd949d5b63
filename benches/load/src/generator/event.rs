//! What is sent: an event as Stripe has them, with an id that can be set where it stands.

use std::fmt::Write;

const STRIPE: &str = include_str!("../stripe.json");
/// The id in `stripe.json`, and the part of it that is set.
const ID: &str = "evt_1PqX2eL8kT3mZ9aB0cD1eF2g";
const PREFIX: &str = "evt_";
const DIGITS: usize = ID.len() - PREFIX.len();

/// 128 bits in Base64.
const SESSION: &str = "dGhlIGxvYWQgdGVzdC4uLg";

/// Ids that were not used before.
#[derive(Debug, Default)]
pub(crate) struct Ids(u64);

impl Ids {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// Which event a request is about.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// A new one each time.
    New(&'a mut Ids),
    /// The same again and again.
    Same(u64),
}

impl Event<'_> {
    pub(super) fn id(&mut self) -> u64 {
        match self {
            Self::New(ids) => ids.next(),
            &mut Self::Same(id) => id,
        }
    }
}

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Path {
    Webhook,
    /// To a handler that answers 500.
    Failing,
}

/// A request as it goes over the wire.
#[derive(Clone, Debug)]
pub(super) struct Request {
    bytes: Vec<u8>,
    /// Where the digits of the id are.
    ids: [usize; 2],
}

impl Request {
    /// With a body of about this many bytes. Every server gets the id in a header, too, and a session,
    /// since some want them.
    pub(super) fn new(path: Path, body: usize) -> Self {
        let path = match path {
            Path::Webhook => "/webhook",
            Path::Failing => "/failing",
        };
        let body = grown(body);
        let length = body.len();
        let text = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             cookie: session={SESSION}\r\nidempotency-key: {ID}\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let digits = |id: usize| id + PREFIX.len();
        let ids = [text.find(ID), text.rfind(ID)].map(|id| digits(id.unwrap_or_default()));
        let bytes = text.into_bytes();
        Self { bytes, ids }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn stamp(&mut self, id: u64) {
        let mut digits = [b'0'; DIGITS];
        let mut rest = id;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        for at in self.ids {
            self.bytes[at..at + DIGITS].copy_from_slice(&digits);
        }
    }
}

/// The event, with as many line items as make it that long.
fn grown(bytes: usize) -> String {
    let mut body = STRIPE.trim_end().to_owned();
    if body.len() >= bytes {
        return body;
    }
    body.truncate(body.len() - 1);
    body.push_str(r#","lines":["#);
    for item in 0.. {
        let comma = if item == 0 { "" } else { "," };
        let amount = item * 100;
        // Writing to a string does not fail.
        _ = write!(
            body,
            r#"{comma}{{"id":"il_{item:024}","object":"line_item","amount":{amount},"currency":"usd","description":"Item {item} – review \"quoted\" text","discountable":true,"metadata":{{"order_id":"{item}","cart":null}},"period":{{"end":1718000000,"start":1715400000}},"plan":{{"id":"plan_{item}","active":true,"interval":"month"}},"proration":false,"quantity":1,"tax_rates":[],"url":"https://api.example.com/v1/items/{item}"}}"#
        );
        if body.len() + 2 >= bytes {
            break;
        }
    }
    body.push_str("]}");
    body
}
