//! The checks of the fuzzer hold for its corpus: what senders really send, and every case that it
//! found. `scripts/fuzz` looks for more.

#[path = "fuzz/checks.rs"]
mod checks;

use std::{
    fs,
    path::{Path, PathBuf},
};

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn corpus(target: &str, check: fn(&[u8])) {
    let mut cases = 0;
    for file in fs::read_dir(tests().join("fuzz/corpus").join(target)).unwrap() {
        let path = file.unwrap().path();
        println!("{}", path.display());
        check(&fs::read(path).unwrap());
        cases += 1;
    }
    assert!(cases > 0);
}

/// Headers and bodies, as `scripts/fuzz` has them.
fn fixtures() -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let files = fs::read_dir(tests().join("fixtures/providers")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let headers = paths.filter(|path| path.extension().is_some_and(|kind| kind == "headers"));
    headers.map(|headers| {
        let body = ["json", "txt"].map(|kind| headers.with_extension(kind));
        let body = body.iter().find(|body| body.exists()).unwrap();
        (fs::read(&headers).unwrap(), fs::read(body).unwrap())
    })
}

#[test]
fn pointers() {
    corpus("pointer", checks::pointer);
    for (_, body) in fixtures() {
        checks::pointer(&[b"/id\n", &body[..]].concat());
    }
}

#[test]
fn keys() {
    corpus("key", checks::key);
}

#[test]
fn entries() {
    corpus("entry", checks::entry);
}

#[test]
fn bodies_in_another_spelling() {
    corpus("canonical", checks::canonical);
    for (_, body) in fixtures() {
        checks::canonical(&body);
    }
}

#[test]
fn requests() {
    corpus("request", checks::request);
    for (headers, body) in fixtures() {
        for kind in (0..6).chain(0xc0..0xc6) {
            checks::request(&[&[kind], &headers[..], b"\n", &body[..]].concat());
        }
    }
}
