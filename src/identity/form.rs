//! Reading one field of a query string or a form.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use super::NoId;

/// Reads the field `name` of `application/x-www-form-urlencoded` text.
///
/// Strict where the [URL Standard] is lenient: a name or value that is not UTF-8 is no id, since
/// the replacement character would make one id of many.
///
/// [URL Standard]: https://url.spec.whatwg.org/#urlencoded-parsing
pub(super) fn field<'a>(encoded: &'a [u8], name: &str) -> Result<Cow<'a, str>, NoId> {
    let mut values = encoded
        .split(|&byte| byte == b'&')
        .map(|pair| match pair.iter().position(|&byte| byte == b'=') {
            Some(equals) => (&pair[..equals], &pair[equals + 1..]),
            None => (pair, &pair[pair.len()..]),
        })
        .filter(|(key, _)| decode(key).is_some_and(|key| key == name));
    match (values.next(), values.next()) {
        (None, _) => Err(NoId::Absent),
        (Some((_, value)), None) => decode(value).ok_or(NoId::WrongType),
        (Some(_), Some(_)) => Err(NoId::Ambiguous),
    }
}

fn decode(text: &[u8]) -> Option<Cow<'_, str>> {
    if text.contains(&b'+') {
        let spaced: Vec<u8> = text
            .iter()
            .map(|&b| if b == b'+' { b' ' } else { b })
            .collect();
        return Some(Cow::Owned(
            percent_decode(&spaced).decode_utf8().ok()?.into_owned(),
        ));
    }
    percent_decode(text).decode_utf8().ok()
}
