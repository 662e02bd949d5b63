//! What a store keeps is read back exactly, by this version and by others, and garbage is an error.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::{prelude::*, sample::Index};
use tower_webhook_dedup::{BodyHash, Entry, Record, Token};

#[path = "support/property.rs"]
mod property;

const TOKEN: &str = "00112233445566778899aabbccddeeff";
const HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn token() -> impl Strategy<Value = Token> {
    "[0-9a-f]{32}".prop_map(|text| text.parse().unwrap())
}

/// Whole milliseconds, up to the year 10 000.
fn time() -> impl Strategy<Value = SystemTime> {
    (0..253_402_300_800_000_u64).prop_map(at)
}

fn at(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

fn millis(time: SystemTime) -> u128 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    since.as_millis()
}

fn known<T: ToString>(value: Option<T>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

fn hash() -> impl Strategy<Value = BodyHash> {
    any::<[u8; 4]>().prop_map(|body| BodyHash::of(&body))
}

/// A done record has no public way to say when, but for its text.
fn done(at: SystemTime, token: Token, status: Option<u16>, hash: Option<BodyHash>) -> Entry {
    let (at, status, hash) = (millis(at), known(status), known(hash));
    let text = format!("v1 done {token} {at} {status} {hash}");
    text.parse().unwrap()
}

fn entry() -> impl Strategy<Value = Entry> {
    let lease = (1..400_000_000_000_u64).prop_map(Duration::from_millis);
    let status = || prop::option::of(any::<u16>());
    prop_oneof![
        (token(), time(), lease, any::<u32>()).prop_map(|(token, since, lease, attempt)| {
            Entry::Running {
                token,
                since,
                lease,
                attempt,
            }
        }),
        (token(), time(), any::<u32>(), status()).prop_map(|(token, at, attempts, status)| {
            Entry::Failed {
                token,
                at,
                attempts,
                status,
            }
        }),
        (time(), token(), status(), prop::option::of(hash()))
            .prop_map(|(at, token, status, hash)| done(at, token, status, hash)),
    ]
}

/// No control character is in it.
fn header_value() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![b' '..=b'~', 128..=255_u8], 0..12)
}

/// The state as its word in the text.
fn state(entry: &Entry) -> &'static str {
    match entry {
        Entry::Running { .. } => "running",
        Entry::Failed { .. } => "failed",
        Entry::Done { .. } => "done",
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(property::config(512))]

    #[test]
    fn an_entry_is_read_back_from_its_text(entry in entry()) {
        let text = entry.to_string();
        prop_assert_eq!(text.parse(), Ok(entry.clone()));
        prop_assert_eq!(text.lines().count(), 1);
        // The three fields that never change.
        let fields: Vec<_> = text.split(' ').collect();
        prop_assert_eq!(fields[0], "v1");
        prop_assert_eq!(fields[1], state(&entry));
        prop_assert_eq!(fields[2], entry.token().to_string());
    }

    #[test]
    fn a_done_record_says_when_and_how(
        time in time(),
        token in token(),
        status in prop::option::of(any::<u16>()),
        hash in prop::option::of(hash()),
    ) {
        let Entry::Done { token: read, record } = done(time, token, status, hash) else {
            panic!("not done");
        };
        prop_assert_eq!(read, token);
        prop_assert_eq!(record.completed_at(), time);
        prop_assert_eq!(record.status(), status);
        prop_assert_eq!(record.body_hash(), hash);
    }

    #[test]
    fn an_answer_is_read_back_whatever_is_in_it(
        headers in prop::collection::vec(("[a-z!#$%&'*+.^_`|~-]{1,8}", header_value()), 0..4),
        body in prop_oneof![any::<Vec<u8>>(), "\\PC{0,40}|[ %=\n\r\t]{0,8}".prop_map(String::into_bytes)],
        given_up in any::<bool>(),
    ) {
        let encoded = |bytes: &[u8]| {
            bytes.iter().map(|byte| format!("%{byte:02X}")).collect::<String>()
        };
        let mut text = format!("v1 done {TOKEN} 1764201600077 200 {HASH}");
        if given_up {
            text += " given-up";
        }
        text += &format!(" request={HASH}");
        let mut expected = HeaderMap::new();
        for (name, value) in headers {
            text += &format!(" header:{name}={}", encoded(&value));
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            expected.append(name, HeaderValue::from_bytes(&value).unwrap());
        }
        text += &format!(" body={}", encoded(&body));
        let entry: Entry = text.parse().unwrap();
        let written = entry.to_string();
        prop_assert_eq!(written.parse(), Ok(entry.clone()));
        prop_assert!(written.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{}", written);
        let Entry::Done { record, .. } = entry else { panic!("not done") };
        prop_assert_eq!(record.is_given_up(), given_up);
        let answer = record.answer().unwrap();
        prop_assert_eq!(answer.headers(), &expected);
        prop_assert_eq!(&answer.body()[..], &body[..]);
    }

    #[test]
    fn fields_that_are_not_known_are_passed_over(
        entry in entry(),
        more in "( [!-~]{1,8}){1,4}",
    ) {
        prop_assert_eq!(format!("{entry}{more}").parse(), Ok(entry));
    }

    #[test]
    fn of_a_later_version_the_first_three_fields_are_read(
        entry in entry(),
        version in 2..1000_u32,
        rest in "( [!-~]{1,8}){0,5}",
    ) {
        let (state, token) = (state(&entry), entry.token());
        let later: Entry = format!("v{version} {state} {token}{rest}").parse().unwrap();
        prop_assert_eq!(later.token(), token);
        prop_assert_eq!(self::state(&later), state);
    }

    #[test]
    fn a_damaged_entry_never_panics_and_is_never_another_state(
        entry in entry(),
        at in any::<Index>(),
        to in any::<Index>(),
        character in any::<char>(),
    ) {
        let text = entry.to_string();
        let (at, to) = (at.index(text.len()), to.index(text.len()));
        let damaged = [
            format!("{}{character}{}", &text[..at], &text[at..]),
            format!("{}{character}{}", &text[..at], &text[at + 1..]),
            format!("{}{}", &text[..at.min(to)], &text[at.max(to)..]),
            format!("{}{}", &text[..at.max(to)], &text[at.min(to)..]),
            text[..at].to_owned(),
        ];
        for text in damaged {
            if let Ok(read) = text.parse::<Entry>() {
                prop_assert_eq!(state(&read), state(&entry), "{}", text);
                // What was read can be written, and read again.
                prop_assert_eq!(read.to_string().parse(), Ok(read));
            }
        }
    }

    #[test]
    fn any_text_never_panics(
        text in "\\PC{0,40}|v[0-9]{1,12} (running|failed|done) [0-9a-f]{30,34}( [!-~]{0,24}){0,5}",
    ) {
        if let Ok(read) = text.parse::<Entry>() {
            prop_assert_eq!(read.to_string().parse(), Ok(read));
        }
    }

    #[test]
    fn a_token_is_read_back_from_its_text(bytes in any::<[u8; 16]>()) {
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let token: Token = text.parse().unwrap();
        prop_assert_eq!(token.to_string(), text);
        prop_assert_eq!(token.as_bytes(), &bytes);
    }

    #[test]
    fn any_text_is_a_token_only_if_it_is_32_digits(text in "[0-9a-f]{30,34}|\\PC{0,40}") {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        prop_assert_eq!(text.parse::<Token>().is_ok(), digits);
    }
}

#[test]
fn the_text_of_each_state_is_what_a_person_reads() {
    let token: Token = TOKEN.parse().unwrap();
    let running = Entry::Running {
        token,
        since: at(1_764_201_600_077),
        lease: Duration::from_secs(30),
        attempt: 2,
    };
    assert_eq!(
        running.to_string(),
        format!("v1 running {TOKEN} 1764201600077 30000 2")
    );
    let failed = Entry::Failed {
        token,
        at: at(1_764_201_600_077),
        attempts: 3,
        status: Some(500),
    };
    assert_eq!(
        failed.to_string(),
        format!("v1 failed {TOKEN} 1764201600077 3 500")
    );
    let text = format!("v1 done {TOKEN} 1764201600077 200 {HASH}");
    assert_eq!(text.parse::<Entry>().unwrap().to_string(), text);
    let text = format!("v1 done {TOKEN} 1764201600077 - -");
    assert_eq!(text.parse::<Entry>().unwrap().to_string(), text);
    let text = format!("v1 done {TOKEN} 1764201600077 500 {HASH} given-up");
    let entry: Entry = text.parse().unwrap();
    assert_eq!(entry.to_string(), text);
    let Entry::Done { record, .. } = entry else {
        panic!("not done");
    };
    assert!(record.is_given_up());
}

#[test]
fn an_answer_is_text_that_a_person_reads() {
    let text = format!(
        "v1 done {TOKEN} 1764201600077 200 {HASH} request={HASH} \
         header:content-type=text/xml;%20charset=utf-8 body=<Response><Say>100%25</Say>%0A</Response>"
    );
    let entry: Entry = text.parse().unwrap();
    assert_eq!(entry.to_string(), text);
    let Entry::Done { record, .. } = &entry else {
        panic!("not done");
    };
    let answer = record.answer().unwrap();
    assert_eq!(answer.headers()["content-type"], "text/xml; charset=utf-8");
    assert_eq!(answer.body(), "<Response><Say>100%</Say>\n</Response>");
    let shown = format!("{entry:?}");
    assert!(!shown.contains("Say") && !shown.contains("xml"), "{shown}");
}

#[test]
fn half_an_answer_is_none() {
    for rest in [
        "",
        " given-up",
        " body=x",
        &format!(" request={HASH}"),
        " header:a=b body=x",
        // Of a process that knows more.
        &format!(" request={HASH} body64=eA== header=x request"),
    ] {
        let text = format!("v1 done {TOKEN} 1 200 {HASH}{rest}");
        let Ok(Entry::Done { record, .. }) = text.parse() else {
            panic!("{text}");
        };
        assert!(record.answer().is_none(), "{text}");
    }
}

#[test]
fn entries_made_now_are_read_back_to_the_millisecond() {
    let token = Token::random();
    let record = Record::new(Some(200), Some(BodyHash::of(b"{}")));
    let done = Entry::Done { token, record };
    assert_eq!(done.to_string().parse(), Ok(done));
    for entry in [
        Entry::running(token, Duration::from_secs(30), 1),
        Entry::failed(token, 2, None),
    ] {
        let read: Entry = entry.to_string().parse().unwrap();
        let (Entry::Running { since: was, .. } | Entry::Failed { at: was, .. }) = entry else {
            panic!("{entry}");
        };
        let (Entry::Running { since: is, .. } | Entry::Failed { at: is, .. }) = read else {
            panic!("{read}");
        };
        assert_eq!(millis(was), millis(is));
        assert_eq!(read.token(), token);
    }
}

#[test]
fn of_a_later_version_what_fits_is_taken_and_the_rest_guessed() {
    let read = |rest: &str| format!("v2 {rest}").parse::<Entry>().unwrap();
    let Entry::Running { lease, attempt, .. } = read(&format!("running {TOKEN}")) else {
        panic!("not running");
    };
    assert_eq!((lease, attempt), (Duration::from_secs(30), 1));
    let Entry::Done { record, .. } = read(&format!("done {TOKEN} x y z")) else {
        panic!("not done");
    };
    assert_eq!((record.status(), record.body_hash()), (None, None));
    // An answer that may have another form is given to nobody, and hides no event that is done.
    let hash = BodyHash::of(b"target");
    for answer in [
        format!("request={hash} header:x-a=b body=gzip:x"),
        "request=sha512:x header:=b body".to_owned(),
        "header:x-a=%00 request=x".to_owned(),
    ] {
        let Entry::Done { record, .. } = read(&format!("done {TOKEN} 1 200 - {answer}")) else {
            panic!("not done: {answer}");
        };
        assert_eq!(record.status(), Some(200));
        assert!(record.answer().is_none(), "{answer}");
    }
    let Entry::Failed { attempts, .. } = read(&format!("failed {TOKEN} 0 7")) else {
        panic!("not failed");
    };
    assert_eq!(attempts, 7);
}

#[test]
fn what_is_not_an_entry_is_an_error() {
    let garbage = [
        String::new(),
        " ".into(),
        "locked".into(),
        "OK".into(),
        "1".into(),
        "v1".into(),
        "v1 running".into(),
        format!("v1 running {TOKEN}"),
        format!("v1 running {TOKEN} 1"),
        format!("v1 running {TOKEN} 1 2"),
        format!("v1 running {TOKEN} 1 2 x"),
        format!("v1 running {TOKEN} 1 -2 1"),
        format!("v1 running {TOKEN} 99999999999999999999 1 1"),
        format!("v1 running {TOKEN} 1 1 4294967296"),
        format!("v1 running {} 1 2 1", &TOKEN[1..]),
        format!("v1 running {TOKEN}0 1 2 1"),
        format!("v1 Running {TOKEN} 1 2 1"),
        format!("v1 done {TOKEN}"),
        format!("v1 done {TOKEN} 1 200"),
        format!("v1 done {TOKEN} 1 65536 -"),
        format!("v1 done {TOKEN} 1 200 {}", &HASH[1..]),
        format!("v1 done {TOKEN} 1 200 - request={} body=", &HASH[1..]),
        format!("v1 done {TOKEN} 1 200 - request={HASH} header:=x body="),
        format!("v1 done {TOKEN} 1 200 - request={HASH} header:a=%00 body="),
        format!("v1 failed {TOKEN} 1 1"),
        format!("v1 paused {TOKEN} 1 1 1"),
        format!("v2 paused {TOKEN} 1 1 1"),
        "v2 done".into(),
        format!("v2 done {}", &TOKEN[1..]),
        format!("v done {TOKEN} 1 200 -"),
        format!("vv1 done {TOKEN} 1 200 -"),
        format!("v-1 done {TOKEN} 1 200 -"),
        format!("v1.0 done {TOKEN} 1 200 -"),
        format!("1 done {TOKEN} 1 200 -"),
        format!("v4294967296 done {TOKEN} 1 200 -"),
        format!("v1\u{a0}done {TOKEN} 1 200 -"),
    ];
    for text in garbage {
        assert!(text.parse::<Entry>().is_err(), "{text}");
    }
}

#[test]
fn tokens_do_not_repeat() {
    let tokens: std::collections::HashSet<_> = (0..10_000).map(|_| Token::random()).collect();
    assert_eq!(tokens.len(), 10_000);
}
