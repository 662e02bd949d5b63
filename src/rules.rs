//! What the HTTP side of the layer is told.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Method, Response, header::CONTENT_TYPE, request::Parts, response,
};

use crate::{
    BodyChanged, BodyHash, Duplicate, Error, EventId, InFlight, Key, KeyBy, MissingId, NoId,
    OnDisconnect, Outcome, Record, Refusal, StoreFailure, Unprotected,
    delivery::Identity,
    identity::{BodyHasher, IdText, hash_except, hash_of},
    recent::{RecentBodies, Seen},
    reply,
};

/// When the sender may come again after the store failed.
const SOON: Duration = Duration::from_secs(1);

type RefuseWith = dyn Fn(&Refusal) -> Response<Bytes> + Send + Sync;
type Bypass = dyn Fn(&Parts, &Bytes) -> bool + Send + Sync;

#[derive(Clone)]
pub(crate) struct Rules {
    pub(crate) event_id: EventId,
    pub(crate) namespace: Namespace,
    pub(crate) applies_to: Arc<dyn Fn(&Parts) -> bool + Send + Sync>,
    pub(crate) bypass: Option<Arc<Bypass>>,
    pub(crate) key_by: KeyBy,
    pub(crate) body_changed: BodyChanged,
    pub(crate) missing_id: MissingId,
    pub(crate) in_flight: InFlight,
    pub(crate) duplicate: Duplicate,
    pub(crate) completed_when: Arc<dyn Fn(&response::Parts) -> bool + Send + Sync>,
    pub(crate) store_failure: StoreFailure,
    pub(crate) on_disconnect: OnDisconnect,
    pub(crate) recent_bodies: Option<Arc<RecentBodies>>,
    pub(crate) max_body: usize,
    pub(crate) body_timeout: Duration,
    pub(crate) refuse_with: Arc<RefuseWith>,
    pub(crate) give_up_after: Option<u32>,
    pub(crate) shadow: bool,
    pub(crate) outcome_header: Option<HeaderName>,
}

#[derive(Clone)]
pub(crate) enum Namespace {
    /// The path of the request, as the layer sees it.
    Path,
    /// The name of a preset, and the path.
    Preset(&'static str),
    Fixed(Arc<str>),
    By(Arc<dyn Fn(&Parts) -> String + Send + Sync>),
}

impl Namespace {
    fn of<'a>(&'a self, parts: &'a Parts) -> Cow<'a, str> {
        match self {
            Self::Path => parts.uri.path().into(),
            Self::Preset(name) => format!("{name}{}", parts.uri.path()).into(),
            Self::Fixed(namespace) => Cow::Borrowed(namespace),
            Self::By(make) => make(parts).into(),
        }
    }
}

impl Rules {
    pub(crate) fn new(event_id: EventId) -> Self {
        Self {
            event_id,
            namespace: Namespace::Path,
            applies_to: Arc::new(|parts| parts.method == Method::POST),
            bypass: None,
            key_by: KeyBy::default(),
            body_changed: BodyChanged::default(),
            missing_id: MissingId::default(),
            in_flight: InFlight::default(),
            duplicate: Duplicate::default(),
            completed_when: Arc::new(|parts| parts.status.is_success()),
            store_failure: StoreFailure::default(),
            on_disconnect: OnDisconnect::default(),
            recent_bodies: None,
            max_body: 2 * 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            refuse_with: Arc::new(reply::problem),
            give_up_after: None,
            shadow: false,
            outcome_header: Some(HeaderName::from_static("webhook-dedup")),
        }
    }

    /// Which event the request carries. Its body is hashed here, unless that was done while it was
    /// read.
    pub(crate) fn identify(
        &self,
        parts: &Parts,
        body: &Bytes,
        body_hash: Option<BodyHash>,
    ) -> Result<Identity, NoId> {
        let recent = self.recent_bodies.as_ref();
        let seen = recent.and_then(|recent| recent.look(body));
        let (body_hash, seen_id) = match seen {
            Some(seen) => (seen.body_hash, seen.event_id),
            None => (body_hash.unwrap_or_else(|| BodyHash::of(body)), None),
        };
        let namespace = &*self.namespace.of(parts);
        let read = match seen_id {
            Some(id) => Ok(id),
            None => (self.event_id.read(parts, body)).map(|id| IdText::new(&id, body)),
        };
        let read = read.and_then(|id| {
            let key = self.key(namespace, id.of(body), body, body_hash)?;
            Ok((id, key))
        });
        let (event_id, by_body, key) = match (read, self.missing_id) {
            (Ok((id, key)), _) => (id, false, key),
            (Err(_), MissingId::UseBodyHash) => {
                let key = Key::without_id(namespace, stand_in(parts), body_hash);
                (IdText::Made(body_hash.to_string().into()), true, key)
            }
            (Err(reason), _) => return Err(reason),
        };
        Ok(Identity {
            event_id,
            by_body,
            key,
            body_hash,
            target: self.replays().then(|| target(parts)),
        })
    }

    /// Recognises this body from now on, which just came again.
    pub(crate) fn recognise(&self, body: &Bytes, identity: &Identity) {
        if let Some(recent) = &self.recent_bodies {
            recent.keep(body, || Seen {
                body_hash: identity.body_hash,
                event_id: (!identity.by_body && self.event_id.is_in_body())
                    .then(|| identity.event_id.clone()),
            });
        }
    }

    /// Whether the request is none of the layer's business, as its body shows.
    pub(crate) fn passes_by(&self, parts: &Parts, body: &Bytes) -> bool {
        let bypass = self.bypass.as_ref();
        bypass.is_some_and(|bypass| bypass(parts, body))
    }

    fn key(
        &self,
        namespace: &str,
        id: &str,
        body: &[u8],
        body_hash: BodyHash,
    ) -> Result<Key, NoId> {
        let hash = match &self.key_by {
            KeyBy::Id if self.body_changed == BodyChanged::Run => body_hash,
            KeyBy::Id => return Ok(Key::new(namespace, id)),
            KeyBy::IdAndBody => body_hash,
            KeyBy::IdAndFields(fields) => hash_of(body, fields)?,
            KeyBy::IdAndBodyExcept(except) => hash_except(body, except)?,
        };
        Ok(Key::with_hash(namespace, id, hash))
    }

    /// What becomes of a request without a readable id.
    pub(crate) const fn without_id(&self, reason: NoId) -> Outcome {
        match self.missing_id {
            MissingId::Refuse => Outcome::Refused(Refusal::NoEventId(reason)),
            // With the body in its place there always is one.
            MissingId::Forward | MissingId::UseBodyHash => {
                Outcome::Unprotected(Unprotected::NoEventId(reason))
            }
        }
    }

    /// What becomes of a request that the store failed on.
    pub(crate) const fn store_failed(&self, error: Error) -> Outcome {
        match self.store_failure {
            StoreFailure::Refuse => Outcome::Refused(Refusal::StoreFailed {
                error,
                retry_after: SOON,
            }),
            StoreFailure::Forward => Outcome::Unprotected(Unprotected::StoreFailed(error)),
        }
    }

    /// What becomes of a request whose event is done.
    pub(crate) fn done(&self, identity: &Identity, record: Record) -> Outcome {
        let body_changed = identity.is_changed(&record);
        if body_changed && self.key_by == KeyBy::Id && self.body_changed == BodyChanged::Refuse {
            let key = identity.key.clone();
            return Outcome::Refused(Refusal::BodyChanged { key });
        }
        Outcome::Duplicate {
            record,
            by_body: identity.by_body,
            body_changed,
        }
    }

    /// In the shadow, a handler is dropped as it would be without the layer.
    pub(crate) const fn on_disconnect(&self) -> OnDisconnect {
        if self.shadow {
            OnDisconnect::Cancel
        } else {
            self.on_disconnect
        }
    }

    const fn replays(&self) -> bool {
        matches!(self.duplicate, Duplicate::Replay { .. })
    }

    /// Says in header and extensions what became of the request.
    pub(crate) fn mark<B>(&self, response: Response<B>, outcome: Outcome) -> Response<B> {
        reply::mark(response, self.outcome_header.as_ref(), outcome)
    }
}

/// What, next to its body, tells a request without an id from others.
fn stand_in(parts: &Parts) -> BodyHash {
    let content_type = parts.headers.get(CONTENT_TYPE);
    let [method, path, query] = target_fields(parts);
    hash_fields(&[method, path, query, content_type.map(HeaderValue::as_bytes)])
}

/// What an answer is kept for, next to the body.
fn target(parts: &Parts) -> BodyHash {
    hash_fields(&target_fields(parts))
}

fn target_fields(parts: &Parts) -> [Option<&[u8]>; 3] {
    [
        Some(parts.method.as_str().as_bytes()),
        Some(parts.uri.path().as_bytes()),
        parts.uri.query().map(str::as_bytes),
    ]
}

fn hash_fields(fields: &[Option<&[u8]>]) -> BodyHash {
    let mut hasher = BodyHasher::default();
    for field in fields {
        // With lengths, so that the fields cannot run together; absent differs from empty.
        let length = field.map_or(u64::MAX, |field| field.len() as u64);
        hasher.update(&length.to_be_bytes());
        hasher.update(field.unwrap_or_default());
    }
    hasher.finish()
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path => f.write_str("the path"),
            Self::Preset(name) => write!(f, "{name} and the path"),
            Self::Fixed(namespace) => namespace.fmt(f),
            Self::By(_) => f.write_str("by closure"),
        }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("event_id", &self.event_id)
            .field("namespace", &self.namespace)
            .field("key_by", &self.key_by)
            .field("body_changed", &self.body_changed)
            .field("missing_id", &self.missing_id)
            .field("in_flight", &self.in_flight)
            .field("store_failure", &self.store_failure)
            .field("on_disconnect", &self.on_disconnect)
            .field("recent_bodies", &self.recent_bodies)
            .field("max_body", &self.max_body)
            .field("body_timeout", &self.body_timeout)
            .field("give_up_after", &self.give_up_after)
            .field("shadow", &self.shadow)
            .finish_non_exhaustive()
    }
}
