//! The answers that the layer gives by itself.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use http_body::Body;
use serde_json::json;

use crate::{Duplicate, Outcome, Refusal, body::ResponseBody};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

const DUPLICATE: &str = r#"{"status":"success","message":"Duplicate request ignored."}"#;
const DUPLICATE_BY_BODY: &str =
    r#"{"status":"success","message":"Duplicate request ignored: its body was seen before."}"#;
const STANDBY: &str =
    r#"{"status":"success","message":"Request accepted; its event is being processed."}"#;
const GAVE_UP: &str =
    r#"{"status":"success","message":"Request accepted; its event failed and is given up."}"#;

/// Success, for a request that the handler need not see, or not yet.
pub(crate) fn success(
    blank: Response<()>,
    duplicate: &Duplicate,
    outcome: &Outcome,
) -> Response<Bytes> {
    if let Duplicate::Reply(reply) = duplicate {
        return reply.clone();
    }
    let text = match outcome {
        Outcome::Standby => STANDBY,
        Outcome::GaveUp { .. } => GAVE_UP,
        Outcome::Duplicate { by_body: true, .. } => DUPLICATE_BY_BODY,
        _ => DUPLICATE,
    };
    let body = Bytes::from_static(text.as_bytes());
    answer(blank, StatusCode::OK, JSON, body)
}

/// A refusal as `application/problem+json` ([RFC 9457]), with `retry-after` where there is one.
///
/// [RFC 9457]: https://www.rfc-editor.org/rfc/rfc9457
pub(crate) fn problem(refusal: &Refusal) -> Response<Bytes> {
    problem_as(refusal, refusal.status())
}

/// As [`problem`], with 503 in place of each 4xx, for senders that take those for the end.
pub(crate) fn problem_without_4xx(refusal: &Refusal) -> Response<Bytes> {
    let status = refusal.status();
    let status = if status.is_client_error() {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        status
    };
    problem_as(refusal, status)
}

fn problem_as(refusal: &Refusal, status: StatusCode) -> Response<Bytes> {
    let problem = json!({
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": refusal.to_string(),
    });
    let body = Bytes::from(problem.to_string());
    let mut response = answer(Response::new(()), status, PROBLEM, body);
    if let Some(time) = refusal.retry_after() {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(whole_seconds(time)));
    }
    response
}

/// Rounded up, so that nobody comes too early.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn answer(
    blank: Response<()>,
    status: StatusCode,
    content_type: HeaderValue,
    body: Bytes,
) -> Response<Bytes> {
    let mut response = blank.map(|()| body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// An answer of the layer's own in the type that it shares with the inner service's.
pub(crate) fn own<B: Body>(response: Response<Bytes>) -> Response<ResponseBody<B>> {
    response.map(ResponseBody::own)
}

/// Says in header and extensions what became of the request.
pub(crate) fn mark<B>(
    mut response: Response<B>,
    header: Option<&HeaderName>,
    outcome: Outcome,
) -> Response<B> {
    if let Some(name) = header {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(outcome.as_str()));
    }
    response.extensions_mut().insert(outcome);
    response
}
