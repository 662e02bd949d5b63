//! The flags, and the layer that they describe.

use std::{error::Error, time::Duration};

use clap::{
    CommandFactory, Parser,
    builder::{PossibleValuesParser, TypedValueParser},
    error::ErrorKind,
};
use http::HeaderName;
use tower_webhook_dedup::{
    AfterWait, BoxStore, EventId, InFlight, JsonPointer, KeyBy, LeaseStore, MemoryStore, MissingId,
    OnDisconnect, RedisStore, StoreFailure, WebhookDedupLayer,
};

const HELP: &str = "\
The handler is at /webhooks/demo, and does what the request's headers tell it:
  curl -i localhost:3000/webhooks/demo -d '{\"id\":\"evt_1\"}'    (do it twice)
  curl -i localhost:3000/webhooks/demo -d '{\"id\":\"evt_2\"}' -H 'x-demo-status: 500'
  curl -i localhost:3000/webhooks/demo -d '{\"id\":\"evt_3\"}' -H 'x-demo-sleep-ms: 5000'
  curl -i localhost:3000/webhooks/demo -d '{\"id\":\"evt_4\"}' -H 'x-demo-panic: 1'

What it did is at /runs, and /healthz answers while the server runs.
RUST_LOG=debug tells what the layer does.";

/// A server to poke at with curl.
#[derive(Clone, Debug, Parser)]
#[command(after_help = HELP)]
pub(crate) struct Options {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:3000")]
    pub(crate) listen: String,

    /// Keep events in this Redis; without it, in memory.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,

    /// Where the event id is in a JSON body.
    #[arg(long, default_value = "/id", conflicts_with = "header")]
    pointer: JsonPointer,

    /// Take the event id from this header instead.
    #[arg(long, value_name = "NAME")]
    header: Option<HeaderName>,

    /// What keeps these events apart from others in the store; without it, the path.
    #[arg(long)]
    namespace: Option<String>,

    /// How long a lease lasts unless it is renewed.
    #[arg(long, default_value = "30s", value_parser = duration)]
    lease: Duration,

    /// How long the handler may run.
    #[arg(long, default_value = "5m", value_parser = duration)]
    run_limit: Duration,

    /// How long a completed event is remembered.
    #[arg(long, default_value = "4d", value_parser = duration)]
    retention: Duration,

    /// What a duplicate of a running event is answered: acknowledge, retry-later, or wait:2s.
    #[arg(long, default_value = "acknowledge", value_parser = in_flight)]
    in_flight: InFlight,

    /// What becomes of a request without an event id.
    #[arg(long, default_value = "refuse", value_parser = one_of([
        ("refuse", MissingId::Refuse),
        ("forward", MissingId::Forward),
        ("use-body-hash", MissingId::UseBodyHash),
    ]))]
    missing_id: MissingId,

    /// What becomes of a request that the store failed on.
    #[arg(long, default_value = "refuse", value_parser = one_of([
        ("refuse", StoreFailure::Refuse),
        ("forward", StoreFailure::Forward),
    ]))]
    store_failure: StoreFailure,

    /// What becomes of a run whose sender hung up.
    #[arg(long, default_value = "finish", value_parser = one_of([
        ("finish", OnDisconnect::Finish),
        ("cancel", OnDisconnect::Cancel),
    ]))]
    on_disconnect: OnDisconnect,

    /// What makes two requests the same event.
    #[arg(long, default_value = "id-and-body", value_parser = one_of([
        ("id-and-body", KeyBy::IdAndBody),
        ("id", KeyBy::Id),
    ]))]
    key_by: KeyBy,

    /// The longest body, in bytes.
    #[arg(long, default_value_t = 2 * 1024 * 1024, value_name = "BYTES")]
    max_body: usize,

    /// How long a body may take to arrive.
    #[arg(long, default_value = "30s", value_parser = duration)]
    body_timeout: Duration,

    /// How long one call to the store may take.
    #[arg(long, default_value = "300ms", value_parser = duration)]
    store_timeout: Duration,
}

impl Options {
    /// Ends the program on what the layer would panic on.
    pub(crate) fn checked(self) -> Self {
        if self.lease < 4 * self.store_timeout {
            let why = "the lease must be at least four times the store timeout\n";
            Self::command()
                .error(ErrorKind::ValueValidation, why)
                .exit();
        }
        self
    }

    pub(crate) fn store(&self) -> Result<BoxStore, Box<dyn Error>> {
        Ok(match &self.redis {
            Some(url) => RedisStore::open(url)?.boxed(),
            None => MemoryStore::new().boxed(),
        })
    }

    pub(crate) fn layer(&self, store: BoxStore) -> WebhookDedupLayer<BoxStore> {
        let event_id = match &self.header {
            Some(name) => EventId::header(name.clone()),
            None => EventId::from(self.pointer.clone()),
        };
        let layer = WebhookDedupLayer::new(store, event_id)
            .lease(self.lease)
            .run_limit(self.run_limit)
            .retention(self.retention)
            .in_flight(self.in_flight)
            .missing_id(self.missing_id)
            .store_failure(self.store_failure)
            .on_disconnect(self.on_disconnect)
            .key_by(self.key_by.clone())
            .max_body(self.max_body)
            .body_timeout(self.body_timeout)
            .store_timeout(self.store_timeout);
        match &self.namespace {
            Some(namespace) => layer.namespace(namespace.as_str()),
            None => layer,
        }
    }
}

/// A time that the layer takes.
fn duration(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_secs(3650 * 24 * 3600);
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (Duration::from_millis(1)..=LONGEST).contains(&time) {
        Ok(time)
    } else {
        Err("give a time from 1ms to ten years".into())
    }
}

fn in_flight(text: &str) -> Result<InFlight, String> {
    if let Some(max) = text.strip_prefix("wait:") {
        return Ok(InFlight::Wait {
            max: duration(max)?,
            then: AfterWait::RetryLater,
        });
    }
    match text {
        "acknowledge" => Ok(InFlight::Acknowledge),
        "retry-later" => Ok(InFlight::RetryLater),
        _ => Err("give acknowledge, retry-later, or wait: and a time".into()),
    }
}

/// One of these words, and what it stands for.
fn one_of<T: Clone + Send + Sync + 'static, const N: usize>(
    choices: [(&'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let words = choices.each_ref().map(|&(word, _)| word);
    PossibleValuesParser::new(words).try_map(move |text| {
        let choice = choices.iter().find(|(word, _)| *word == text);
        choice
            .map(|(_, value)| value.clone())
            .ok_or("no such choice")
    })
}
