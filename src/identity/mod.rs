//! Which event a request carries: its id, the hash of its body, and the key made of both.
//!
//! Pure functions over bytes; nothing here waits.

mod body_hash;
mod canonical;
mod event_id;
mod form;
mod key;
mod key_map;
mod pointer;
mod text;

pub use self::{
    body_hash::BodyHash,
    event_id::{EventId, NoId},
    key::{Key, ParseKeyError},
    pointer::{JsonPointer, ParsePointerError},
};

pub(crate) use self::{
    body_hash::BodyHasher,
    canonical::{hash_except, hash_of},
    key_map::{KeyMap, Ready, shard_of},
    text::IdText,
};
