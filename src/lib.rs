//! Tower middleware that runs each webhook event once.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod body;
mod buffered;
mod delivery;
mod engine;
mod event;
mod future;
mod identity;
mod layer;
mod policy;
mod reply;
mod rules;
mod service;
pub mod store;

pub use self::{
    body::{RequestBody, ResponseBody},
    delivery::Delivery,
    engine::{Begun, Dedup, DrainHandle, Drained, Error, Lease, Limits, Operation, Ran, RunError},
    event::{DedupEvent, Lost, LostReason, Outcome, Refusal, Unprotected},
    future::ResponseFuture,
    identity::{BodyHash, EventId, JsonPointer, Key, NoId, ParseKeyError, ParsePointerError},
    layer::{Preset, WebhookDedupLayer},
    policy::{AfterWait, Duplicate, InFlight, KeyBy, MissingId, OnDisconnect, StoreFailure},
    service::WebhookDedup,
    store::{
        Acquire, BoxStore, BoxStoreError, Entry, LeaseStore, MemoryStore, MemoryStoreError,
        ParseEntryError, ParseTokenError, Record, Release, StoreError, StoreErrorKind, Token,
    },
};
