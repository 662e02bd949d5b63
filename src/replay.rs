//! What of an answer is kept for duplicates, and given to them.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, Response, StatusCode,
    header::{
        AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, DATE, SET_COOKIE, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE, WWW_AUTHENTICATE,
    },
    response::Parts,
};
use http_body::Body;

use crate::{BodyHash, ResponseBody, StoredAnswer, body::Ahead, buffered::owned_headers};

/// Headers that take more, names and values together, are not kept, and their answer is not either.
const MOST_HEADERS: usize = 8 * 1024;

/// Credentials, which are not for another connection to see; what is about the connection
/// ([RFC 9110, 7.6.1]); and what the server makes anew for each answer. `proxy-…` are both.
///
/// [RFC 9110, 7.6.1]: https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1
const NEVER: [HeaderName; 16] = [
    AUTHORIZATION,
    COOKIE,
    SET_COOKIE,
    WWW_AUTHENTICATE,
    HeaderName::from_static("authentication-control"),
    HeaderName::from_static("authentication-info"),
    HeaderName::from_static("optional-www-authenticate"),
    HeaderName::from_static("set-cookie2"),
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    CONTENT_LENGTH,
    DATE,
];

/// The answer as it is kept, where it can be, and its body as it goes out. `target` is what it is
/// an answer for.
pub(crate) fn keep<R: Body>(
    target: BodyHash,
    most: usize,
    parts: &Parts,
    body: R,
) -> (Option<StoredAnswer>, ResponseBody<R>) {
    // Without a length it is a stream, which is not to be held up.
    let length = body.size_hint().exact();
    let length = length.and_then(|length| usize::try_from(length).ok());
    let (Some(length), Some(headers)) = (length.filter(|&it| it <= most), kept(&parts.headers))
    else {
        return (None, ResponseBody::inner(body));
    };
    let (body, data) = Ahead::read(body, length);
    let answer = data.map(|data| StoredAnswer::new(target, headers, data));
    (answer, ResponseBody::ahead(body))
}

/// The answer to a duplicate.
pub(crate) fn replay(answer: &StoredAnswer, status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(answer.body().clone());
    *response.status_mut() = status;
    *response.headers_mut() = answer.headers().clone();
    response
}

/// The headers that are kept, in memory of their own; `None` where they are too many.
fn kept(headers: &HeaderMap) -> Option<HeaderMap> {
    let named = headers.get_all(CONNECTION).iter();
    let named: Vec<_> = named
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .map(<[u8]>::trim_ascii)
        .collect();
    let is_kept = |name: &HeaderName| {
        !NEVER.contains(name)
            && !name.as_str().starts_with("proxy-")
            && !named
                .iter()
                .any(|it| it.eq_ignore_ascii_case(name.as_ref()))
    };
    let mut kept = HeaderMap::new();
    let mut bytes = 0;
    for (name, value) in headers {
        // Whoever marked it would not have it written anywhere.
        if !is_kept(name) || value.is_sensitive() {
            continue;
        }
        bytes += name.as_str().len() + value.len();
        if bytes > MOST_HEADERS {
            return None;
        }
        kept.append(name, value.clone());
    }
    Some(owned_headers(&kept))
}
