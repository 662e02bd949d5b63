//! What a layer starts from.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, StatusCode, request::Parts};

use crate::{
    Duplicate, EventId, InFlight, KeyBy, MissingId, StoreFailure, reply,
    rules::{Namespace, Rules},
};

/// What a layer starts from: an [`EventId`] and the defaults, or what [`providers`](crate::providers)
/// know about a sender.
///
/// Every setter of the [layer](crate::WebhookDedupLayer) overrides it.
#[derive(Clone, Debug)]
#[must_use]
pub struct Preset {
    name: Option<&'static str>,
    rules: Rules,
    retention: Option<Duration>,
}

impl From<EventId> for Preset {
    fn from(event_id: EventId) -> Self {
        Self {
            name: None,
            rules: Rules::new(event_id),
            retention: None,
        }
    }
}

impl Preset {
    /// The name of the function in [`providers`](crate::providers) that it comes from; none where
    /// it comes from an [`EventId`].
    #[must_use]
    pub const fn name(&self) -> Option<&'static str> {
        self.name
    }

    /// Where the event id stands.
    pub const fn event_id(&self) -> &EventId {
        &self.rules.event_id
    }

    /// What makes two requests the same event.
    #[must_use]
    pub const fn key_by(&self) -> &KeyBy {
        &self.rules.key_by
    }

    /// How long a completed event is remembered; none where that is the layer's default.
    #[must_use]
    pub const fn retention(&self) -> Option<Duration> {
        self.retention
    }

    pub(crate) fn into_parts(self) -> (Rules, Option<Duration>) {
        (self.rules, self.retention)
    }

    pub(crate) fn named(name: &'static str, event_id: EventId, retention: Duration) -> Self {
        let mut rules = Rules::new(event_id);
        rules.namespace = Namespace::Preset(name);
        Self {
            name: Some(name),
            rules,
            retention: Some(retention),
        }
    }

    /// The id alone makes the key: the body differs between attempts, or is not known not to.
    pub(crate) fn by_id(mut self) -> Self {
        self.rules.key_by = KeyBy::Id;
        self
    }

    pub(crate) fn missing_id(mut self, missing_id: MissingId) -> Self {
        self.rules.missing_id = missing_id;
        self
    }

    pub(crate) fn in_flight(mut self, in_flight: InFlight) -> Self {
        self.rules.in_flight = in_flight;
        self
    }

    pub(crate) fn duplicate(mut self, duplicate: Duplicate) -> Self {
        self.rules.duplicate = duplicate;
        self
    }

    /// Duplicates get this status, and no body.
    pub(crate) fn duplicate_without_body(self, status: StatusCode) -> Self {
        let mut reply = Response::new(Bytes::new());
        *reply.status_mut() = status;
        self.duplicate(Duplicate::Reply(reply))
    }

    pub(crate) fn store_failure(mut self, store_failure: StoreFailure) -> Self {
        self.rules.store_failure = store_failure;
        self
    }

    pub(crate) fn max_body(mut self, bytes: usize) -> Self {
        self.rules.max_body = bytes;
        self
    }

    /// Refusals are 5xx, each of them.
    pub(crate) fn refuse_without_4xx(mut self) -> Self {
        self.rules.refuse_with = Arc::new(reply::problem_without_4xx);
        self
    }

    pub(crate) fn bypass<F>(mut self, bypass: F) -> Self
    where
        F: Fn(&Parts, &Bytes) -> bool + Send + Sync + 'static,
    {
        self.rules.bypass = Some(Arc::new(bypass));
        self
    }
}
