//! Tower middleware that runs each webhook event once, and drops none.
//!
//! Senders of webhooks deliver at least once. [`WebhookDedupLayer`] buffers the body of a request,
//! reads the id of its event, takes a lease in a store that all processes share, and either
//! forwards the request to the inner service or answers it itself, so that the sender stops
//! retrying.
//!
//! # What it promises
//!
//! 1. **One run.** While the lease lives and the store keeps its data, the handler runs at most once
//!    at a time per event, and not again after it completed, over any number of processes.
//! 2. **An acknowledged event is not dropped.** The layer answers 2xx by itself only when the event
//!    is recorded as completed, or when this process stands by for it: keeps the request and runs it
//!    itself should the first attempt fail. What cannot be kept is reported as
//!    [`Lost`], with the whole request; only a killed process is silent.
//! 3. **A failed run never looks done.** Error, non-2xx answer, panic, dropped future, killed process,
//!    a run past its limit: the event stays runnable, at once or at the latest one lease later. Only
//!    [`give_up_after`](WebhookDedupLayer::give_up_after) ends one that fails, and reports it with
//!    the whole request.
//! 4. **A late owner does no harm.** Renewing, completing and releasing never overwrite another
//!    owner's lease; and the handler [can learn](Delivery::lease_lost) that its own is lost.
//! 5. **Trouble in the store becomes an answer, never a hang.**
//! 6. **The inner service sees the request as it was sent**: bytes, headers, extensions, version,
//!    trailers.
//! 7. **Memory is bounded** by [`Limits`], [`max_body`](WebhookDedupLayer::max_body) and the caps of
//!    the stores; each says what happens at it.
//!
//! What no middleware can promise:
//!
//! - A retry is only known by what stays the same in it. By default that is the id and the body. Where
//!   the sender changes the body between attempts, verify its signature and use [`KeyBy::Id`].
//! - Effects outside the store happen exactly once only if the handler makes them so. A process can
//!   die between the handler's own commit and the record of it: the event then runs again. A `UNIQUE`
//!   column for [`Delivery::key`] is the usual cure.
//! - Redis replicates asynchronously: a failover can lose a lease or a record.
//! - A killed process takes its standbys along. The event is lost if every process that acknowledged
//!   it is killed, and the first attempt then fails. [`InFlight::RetryLater`] makes no such promise.
//!
//! # Example
//!
//! ```
//! use std::convert::Infallible;
//!
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{Layer, Service, service_fn};
//! use tower_webhook_dedup::{Delivery, EventId, MemoryStore, RequestBody, WebhookDedupLayer};
//!
//! async fn handle(
//!     request: Request<RequestBody<Full<Bytes>>>,
//! ) -> Result<Response<Full<Bytes>>, Infallible> {
//!     let delivery = request.extensions().get::<Delivery>();
//!     assert_eq!(delivery.map(Delivery::event_id), Some("evt_1"));
//!     assert_eq!(request.body().bytes().unwrap(), r#"{"id":"evt_1"}"#);
//!     Ok(Response::new(Full::from("charged")))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Infallible> {
//! let layer = WebhookDedupLayer::new(MemoryStore::new(), EventId::pointer("/id"));
//! let mut service = layer.layer(service_fn(handle));
//!
//! let delivery = || Request::post("/hook").body(Full::from(r#"{"id":"evt_1"}"#)).unwrap();
//! let first = service.call(delivery()).await?;
//! let second = service.call(delivery()).await?;
//!
//! assert_eq!(first.headers()["webhook-dedup"], "run");
//! assert_eq!(second.headers()["webhook-dedup"], "duplicate");
//! assert_eq!(second.status(), 200);
//! # Ok(())
//! # }
//! ```
//!
//! # Lease and retention
//!
//! ```text
//!  request     acquired                      completed
//!     │           │                              │
//!     ▼           ▼                              ▼
//!     ·  body  ·  [═ lease ═╪═ lease ═╪═ lease ═ [════════════ retention ════════════]
//!                        renewed   renewed                                           forgotten
//! ```
//!
//! The [lease](WebhookDedupLayer::lease) (30 s) says how long a dead process blocks its events. It
//! is renewed at a third of its length for as long as the handler runs, up to the
//! [run limit](WebhookDedupLayer::run_limit) (5 min). The
//! [retention](WebhookDedupLayer::retention) (4 days) says how long duplicates are known; it has to
//! be longer than the sender goes on retrying.
//!
//! # Running it
//!
//! - **Start from a preset** where [`providers`] has one for the sender: what makes its retries the same
//!   event, and how long they go on, is known there.
//! - **Verify signatures outside** this layer, so that a forged request makes no store call and
//!   cannot claim an id. **Only verification, limits and tracing belong outside**: a layer out there
//!   that commits, times out or rolls back can undo a run that is recorded as completed here. What it
//!   puts around the request, such as a task-local or a `LocalSet`, is not there where a run has no
//!   sender: of a standby, or after a hang-up. What it puts into the request's extensions is.
//! - **Drain at shutdown**: [`DrainHandle::drain`]. A process that just ends breaks the promises that
//!   its standbys are.
//! - **Give each endpoint its own [namespace](WebhookDedupLayer::namespace).** The default is the path
//!   as the layer sees it, and `nest` of axum strips its prefix.
//! - A handler that blocks its thread still keeps its lease on a multi-thread runtime, where another
//!   thread renews it; on a current-thread runtime nothing can, and the lease runs out.
//! - A storm of duplicates costs one store call each. Put the store in a [`Cached`] to spare those of
//!   completed events, too, at the price that its docs name; those of events that this process is
//!   running cost none in any case.
//! - The body of an id read by [`EventId::pointer`] is checked to be JSON by structure only: UTF-8
//!   inside strings off the path, and the range of numbers, are the handler's to check.
//! - `poll_ready` is always ready, and the inner service is driven as a clone per request: a full
//!   concurrency limit inside does not hold up the duplicates. Put `load_shed` inside, if requests
//!   should rather fail than wait there.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `redis` | yes | `RedisStore` |
//! | `cluster` | no | `RedisStore` over Redis Cluster |
//! | `sentinel` | no | `RedisStore` over the primary that Sentinels name |
//! | `tls` | no | `RedisStore` over TLS, with rustls |
//! | `tracing` | yes | a `tracing` event for each [`DedupEvent`] |
//! | `test-util` | no | `contract`, the test suite for stores of your own, and `Dedup::wrap_tasks` |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod body;
mod buffered;
mod call;
mod delivery;
mod engine;
mod event;
mod future;
mod guard;
mod identity;
mod inner;
mod layer;
mod mutex;
mod outcome;
mod policy;
mod preset;
pub mod providers;
mod recent;
mod replay;
mod reply;
mod rules;
mod run;
mod service;
mod shadow;
pub mod store;

#[cfg(feature = "test-util")]
#[doc(inline)]
pub use self::store::contract;
#[doc(inline)]
pub use self::store::{
    Acquire, BoxStore, BoxStoreError, Cached, Entry, Fallback, FallbackError, LeaseStore,
    MemoryStore, MemoryStoreError, ParseEntryError, ParseTokenError, Record, Release, StoreError,
    StoreErrorKind, StoredAnswer, Switch, Token,
};
#[cfg(feature = "redis")]
#[doc(inline)]
pub use self::store::{Finding, RedisStore, RedisStoreBuilder, RedisStoreError};
pub use self::{
    body::{RequestBody, ResponseBody},
    delivery::Delivery,
    engine::{Begun, Dedup, DrainHandle, Drained, Error, Lease, Limits, Operation, Ran, RunError},
    event::{DeadLetter, DedupEvent, Lost, LostReason},
    future::ResponseFuture,
    identity::{BodyHash, EventId, JsonPointer, Key, NoId, ParseKeyError, ParsePointerError},
    layer::WebhookDedupLayer,
    outcome::{Outcome, Refusal, Unprotected},
    policy::{
        AfterWait, BodyChanged, Duplicate, InFlight, KeyBy, MissingId, OnDisconnect, StoreFailure,
    },
    preset::Preset,
    service::WebhookDedup,
};

/// The code in the README compiles.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
