//! The choices that the setters of the layer offer.

use std::time::Duration;

use bytes::Bytes;
use http::Response;

use crate::JsonPointer;

/// What makes two requests the same event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyBy {
    /// The event id and the SHA-256 of the raw body: the same id with another body is another
    /// event. The default, and right where anybody can give a request another id, or where a
    /// sender uses an id again.
    #[default]
    IdAndBody,
    /// The event id alone. For senders whose body differs between attempts: Stripe counts
    /// `pending_webhooks`, Notion an `attempt_number`. [`BodyChanged`] says what becomes of a
    /// duplicate that has another body.
    Id,
    /// The event id and what stands at these [pointers](JsonPointer) of a JSON body, in this order:
    /// for senders that use an id again, and whose body differs between attempts.
    ///
    /// Values are the same where they mean the same: key order, white space and escapes do not
    /// matter. Numbers count by their exact text (`1` and `1.0` differ), and absent, `null` and
    /// empty are three things.
    ///
    /// A request whose body is not JSON, or in which a key on the way to a pointer or below it
    /// occurs twice, has no readable id: [`MissingId`] says what becomes of it.
    IdAndFields(Vec<JsonPointer>),
    /// The event id and the JSON body but for what stands at these [pointers](JsonPointer): for
    /// senders that use an id again, and whose body differs between attempts in a place that is
    /// known.
    ///
    /// Compared as for [`IdAndFields`](Self::IdAndFields). What is left out may as well be absent;
    /// an element of an array leaves its place behind. A body that is not JSON, or has a key twice
    /// anywhere but inside of what is left out, makes no readable id.
    IdAndBodyExcept(Vec<JsonPointer>),
}

impl KeyBy {
    /// [`IdAndFields`](Self::IdAndFields), from the text of its pointers.
    ///
    /// ```
    /// # use tower_webhook_dedup::KeyBy;
    /// let key_by = KeyBy::id_and_fields(["/subscriptionId", "/objectId"]);
    /// ```
    ///
    /// # Panics
    ///
    /// If a pointer is malformed. [`str::parse`] to a [`JsonPointer`] is the fallible way.
    #[must_use]
    #[track_caller]
    pub fn id_and_fields<'a>(pointers: impl IntoIterator<Item = &'a str>) -> Self {
        let mut fields = Vec::new();
        for pointer in pointers {
            fields.push(JsonPointer::checked(pointer));
        }
        Self::IdAndFields(fields)
    }

    /// [`IdAndBodyExcept`](Self::IdAndBodyExcept), from the text of its pointers.
    ///
    /// ```
    /// # use tower_webhook_dedup::KeyBy;
    /// let key_by = KeyBy::id_and_body_except(["/attempt_number"]);
    /// ```
    ///
    /// # Panics
    ///
    /// If a pointer is malformed. [`str::parse`] to a [`JsonPointer`] is the fallible way.
    #[must_use]
    #[track_caller]
    pub fn id_and_body_except<'a>(pointers: impl IntoIterator<Item = &'a str>) -> Self {
        let mut except = Vec::new();
        for pointer in pointers {
            except.push(JsonPointer::checked(pointer));
        }
        Self::IdAndBodyExcept(except)
    }
}

/// What becomes of a request whose event, by [its id alone](KeyBy::Id), was completed with another
/// body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BodyChanged {
    /// It is a duplicate like others, and counted: `body_changed` of
    /// [`Outcome::Duplicate`](crate::Outcome::Duplicate) and of
    /// [`DedupEvent::Duplicate`](crate::DedupEvent::Duplicate) is true. The default: bodies that
    /// differ between attempts are why an id is used alone.
    #[default]
    Duplicate,
    /// It runs, once for each different body: the body is a part of the event, as with
    /// [`KeyBy::IdAndBody`].
    Run,
    /// It is refused with 422, and reported as
    /// [`Refusal::BodyChanged`](crate::Refusal::BodyChanged). For senders that promise the same
    /// body with each attempt, so that another one means a mistake or a forgery.
    ///
    /// The body of a run that is still going on is not known to others. Until it has completed,
    /// [`InFlight`] says what becomes of a duplicate, whatever its body.
    Refuse,
}

/// What becomes of a request without a readable event id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingId {
    /// It is refused with 400, and nothing is stored. The default.
    #[default]
    Refuse,
    /// The handler gets it, as if the layer were not there: each time it comes, without a
    /// [`Delivery`](crate::Delivery), a run limit, or finishing when the sender hangs up.
    Forward,
    /// Method, path, query, content type and body together stand for the id. Only for senders that
    /// never send two different events with the same bytes; Mollie, Dropbox and Plaid do.
    UseBodyHash,
}

/// What a duplicate is answered while the first attempt is still running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum InFlight {
    /// 200 at once, and this process stands by: it keeps the request and runs it itself should the
    /// first attempt fail or its process die. The default: an error would use up one of the
    /// sender's few retries, or count towards switching the endpoint off.
    #[default]
    Acknowledge,
    /// 503 with `retry-after`: the sender comes again.
    RetryLater,
    /// The answer waits for the outcome: then it is the duplicate's answer, or that of a run of its
    /// own.
    Wait {
        /// How long at most, from a millisecond to ten years. Senders give up after a few seconds.
        max: Duration,
        /// What follows when that is over.
        then: AfterWait,
    },
}

/// What a duplicate is answered that waited until `max` without a result; see [`InFlight::Wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterWait {
    /// As [`InFlight::Acknowledge`].
    Acknowledge,
    /// As [`InFlight::RetryLater`].
    RetryLater,
}

/// What a duplicate of a completed event is answered.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Duplicate {
    /// 200 with `{"status":"success","message":"Duplicate request ignored."}`. The default.
    #[default]
    Acknowledge,
    /// This answer. Duplicates that were stood by for get it, too. It should be one that the
    /// sender takes for success, or it will go on retrying.
    Reply(Response<Bytes>),
    /// The answer of the handler: status, headers and body are stored with the record, in the same
    /// step, and given to duplicates, also to those that [wait](InFlight::Wait). For senders that
    /// act on the answer, and get it lost: Twilio runs the TwiML in it, Discord shows the message.
    ///
    /// Not the default, since some senders *execute* an answer: Telegram takes a body with a
    /// `method` for a [call of its Bot API][telegram], and would make that call once more for each
    /// duplicate.
    ///
    /// Only a duplicate of the same method, path, query and body gets it, in its namespace. Any
    /// other gets the answer of [`Acknowledge`](Self::Acknowledge), as does one whose first
    /// attempt is still running, and any where nothing was stored:
    ///
    /// - a body that is over `max_body`, has no known length, is not all there when the handler
    ///   answers, breaks off, or has trailers. It is a stream, which is not held up;
    /// - headers of more than 8 KiB.
    ///
    /// Headers are stored but for credentials (`set-cookie`, `www-authenticate`,
    /// `authentication-info` and their like, `proxy-…`, whatever is
    /// [sensitive](http::HeaderValue::is_sensitive)), for those about the connection ([RFC 9110,
    /// 7.6.1][hop], with those that `connection` names), and for `content-length` and `date`, which
    /// the server makes. Anybody who can read the store can read the answers.
    ///
    /// An answer makes its record longer by its size in bytes, up to three times that for a body
    /// that is not text. What is kept in this process is bounded in bytes, and at the cap the
    /// record stays without its answer: in a
    /// [`MemoryStore`](crate::MemoryStore::max_answer_bytes), in a [`Fallback`](crate::Fallback),
    /// in [`Cached`](crate::Cached::max_bytes), and what could not be written yet, by
    /// [`Limits::bytes`](crate::Limits::bytes).
    ///
    /// [telegram]: https://core.telegram.org/bots/api#making-requests-when-getting-updates
    /// [hop]: https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1
    Replay {
        /// How many bytes the body of a stored answer may have.
        max_body: usize,
    },
}

/// What becomes of a request that the store failed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFailure {
    /// It is refused with 503 and `retry-after`. The default: right where the sender retries.
    #[default]
    Refuse,
    /// The handler gets it, unprotected. Right where the sender does not retry (GitHub), and the
    /// handler bears running twice. The run is recorded only where the lease may have been taken
    /// nevertheless, because the answer timed out, say.
    Forward,
}

/// What becomes of a run whose sender hung up, or ran into a timeout outside this layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDisconnect {
    /// It goes on in the background and is recorded. The default: senders hang up after a few
    /// seconds, and a handler that is cut off in the middle is the harder case.
    #[default]
    Finish,
    /// The handler is dropped where it is, and the lease released.
    Cancel,
}
