//! The text of an event id.

use std::{ops::Range, sync::Arc};

/// The text of an event id, or where in the body it stands: a duplicate never needs it, and so does
/// not copy it.
#[derive(Clone)]
pub(crate) enum IdText {
    InBody(Range<usize>),
    Made(Arc<str>),
}

impl IdText {
    /// Of an id that may be a part of this body.
    pub(crate) fn new(id: &str, body: &[u8]) -> Self {
        if body.as_ptr_range().contains(&id.as_ptr()) {
            let start = id.as_ptr().addr() - body.as_ptr().addr();
            Self::InBody(start..start + id.len())
        } else {
            Self::Made(id.into())
        }
    }

    /// The text; the body has to be the same.
    pub(crate) fn of<'a>(&'a self, body: &'a [u8]) -> &'a str {
        match self {
            Self::InBody(range) => {
                let text = body.get(range.clone()).unwrap_or_default();
                str::from_utf8(text).unwrap_or_default()
            }
            Self::Made(text) => text,
        }
    }

    /// How many bytes it takes next to the body.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::InBody(_) => 0,
            Self::Made(text) => text.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::IdText;

    #[test]
    fn an_id_in_the_body_is_not_copied() {
        let body = String::from(r#"{"id":"évt_1"}"#);
        let id = IdText::new(&body[7..13], body.as_bytes());
        assert!(matches!(id, IdText::InBody(_)));
        // Of the same body elsewhere, too.
        assert_eq!(id.of(r#"{"id":"évt_1"}"#.as_bytes()), "évt_1");
    }

    #[test]
    fn any_other_id_is() {
        let body = "evt_1";
        for id in [IdText::new("evt_2", body.as_bytes()), IdText::new("x", b"")] {
            assert!(matches!(id, IdText::Made(_)));
        }
        assert_eq!(IdText::new("evt_2", body.as_bytes()).of(b"other"), "evt_2");
    }
}
