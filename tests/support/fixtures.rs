//! Requests of real providers, and what their manifest says of them.

#![allow(dead_code, reason = "no test uses all of it")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body_util::Full;

/// One row of the manifest, and its files.
#[derive(Clone, Debug)]
pub(crate) struct Fixture {
    pub(crate) name: String,
    /// Where the id is.
    pub(crate) source: String,
    value: String,
    /// Which fixture carries the same event; `-` where none does.
    pub(crate) same_as: String,
    pub(crate) sha256: String,
    pub(crate) note: String,
    /// Which presets are for it.
    pub(crate) presets: Vec<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/providers")
}

pub(crate) fn fixtures() -> Vec<Fixture> {
    let manifest = fs::read_to_string(folder().join("MANIFEST.tsv")).unwrap();
    let fixtures: Vec<_> = manifest.lines().skip(1).map(read).collect();
    assert!(fixtures.len() >= 70);
    fixtures
}

/// The fixture of this name.
pub(crate) fn fixture(name: &str) -> Fixture {
    let all = fixtures();
    all.into_iter().find(|it| it.name == name).unwrap()
}

fn read(row: &str) -> Fixture {
    let [name, file, source, value, same_as, _, sha256, note, presets] =
        <[&str; 9]>::try_from(row.split('\t').collect::<Vec<_>>()).unwrap();
    let headers = fs::read_to_string(folder().join(format!("{name}.headers"))).unwrap();
    let headers = headers.lines().filter(|line| !line.is_empty()).map(|line| {
        let (name, value) = line.split_once(": ").unwrap();
        (
            name.parse::<HeaderName>().unwrap(),
            value.parse::<HeaderValue>().unwrap(),
        )
    });
    let presets = presets.split(',').filter(|&preset| preset != "-");
    Fixture {
        name: name.to_owned(),
        source: source.to_owned(),
        value: value.to_owned(),
        same_as: same_as.to_owned(),
        sha256: sha256.to_owned(),
        note: note.to_owned(),
        presets: presets.map(ToOwned::to_owned).collect(),
        headers: headers.collect(),
        body: fs::read(folder().join(file)).unwrap().into(),
    }
}

impl Fixture {
    pub(crate) fn request_with<B>(&self, body: B) -> Request<B> {
        let mut request = Request::post("/hooks/provider").body(body).unwrap();
        *request.headers_mut() = self.headers.clone();
        request
    }

    pub(crate) fn request(&self) -> Request<Full<Bytes>> {
        self.request_with(Full::new(self.body.clone()))
    }

    /// The id, without what the manifest says about it.
    pub(crate) fn id(&self) -> &str {
        self.value.split(" (").next().unwrap()
    }

    /// Whether the handler has to see it each time.
    pub(crate) fn is_handshake(&self) -> bool {
        self.note.starts_with("handshake")
    }
}
