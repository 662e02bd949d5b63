//! What a request tells the handler to do.

use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};

pub(crate) struct Orders {
    pub(crate) sleep: Duration,
    pub(crate) panic: bool,
    pub(crate) status: StatusCode,
}

impl Orders {
    /// What the headers say, or a sentence about one that makes no sense.
    pub(crate) fn read(headers: &HeaderMap) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().map(Duration::from_millis);
        let flag = |text: &str| match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        };
        let status = |text: &str| {
            let status: StatusCode = text.parse().ok()?;
            // Those below are not answers yet.
            (200..600).contains(&status.as_u16()).then_some(status)
        };
        let sleep = header(
            headers,
            "x-demo-sleep-ms",
            "a number of milliseconds",
            number,
        )?;
        let panic = header(headers, "x-demo-panic", "0 or 1", flag)?;
        let status = header(headers, "x-demo-status", "a status from 200 to 599", status)?;
        Ok(Self {
            sleep: sleep.unwrap_or_default(),
            panic: panic.unwrap_or_default(),
            status: status.unwrap_or_default(),
        })
    }
}

/// The value of a header, where the request has it.
fn header<T>(
    headers: &HeaderMap,
    name: &str,
    what: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, String> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let parsed = value.to_str().ok().and_then(parse);
    let wrong = || format!("{name} must be {what}, not {value:?}\n");
    parsed.map(Some).ok_or_else(wrong)
}
