//! The flags, and the layer that they describe.

use std::{error::Error, num::NonZeroUsize, time::Duration};

use clap::{
    CommandFactory, Parser,
    builder::{PossibleValuesParser, TypedValueParser},
    error::ErrorKind,
};
use http::HeaderName;
use tower_webhook_dedup::{
    AfterWait, BoxStore, EventId, InFlight, JsonPointer, KeyBy, LeaseStore, MemoryStore, MissingId,
    OnDisconnect, Preset, RedisStore, StoreFailure, WebhookDedupLayer, providers,
};

const HELP: &str = "\
The handler is at /webhooks/demo, and does what the request's headers tell it:
  curl -i localhost:3000/webhooks/demo -d '{\"id\":\"evt_1\"}'    (do it twice)
  curl -i localhost:3000/webhooks/demo -d '{\"id\":\"evt_2\"}' -H 'x-demo-status: 500'
  curl -i localhost:3000/webhooks/demo -d '{\"id\":\"evt_3\"}' -H 'x-demo-sleep-ms: 5000'
  curl -i localhost:3000/webhooks/demo -d '{\"id\":\"evt_4\"}' -H 'x-demo-panic: 1'

With --provider stripe, or another, the layer takes what that sender sends.
What it did is at /runs, how many tasks there are at /stats, and /healthz answers while the server
runs.
RUST_LOG=debug tells what the layer does.";

/// A server to poke at with curl.
#[derive(Clone, Debug, Parser)]
#[command(name = "playground", after_help = HELP)]
pub(crate) struct Options {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:3000")]
    pub(crate) listen: String,

    /// Keep events in this Redis; without it, in memory.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,

    /// What is known about this sender; the other flags override it.
    #[arg(long, value_name = "NAME", value_parser = provider())]
    provider: Option<Preset>,

    /// Where the event id is in a JSON body [default: /id].
    #[arg(long, conflicts_with_all = ["header", "provider"])]
    pointer: Option<JsonPointer>,

    /// Take the event id from this header instead.
    #[arg(long, value_name = "NAME", conflicts_with = "provider")]
    header: Option<HeaderName>,

    /// What keeps these events apart from others in the store; without it, the path.
    #[arg(long)]
    namespace: Option<String>,

    /// How long a lease lasts unless it is renewed [default: 30s].
    #[arg(long, value_parser = duration)]
    lease: Option<Duration>,

    /// How long the handler may run [default: 5m].
    #[arg(long, value_parser = duration)]
    run_limit: Option<Duration>,

    /// How long a completed event is remembered [default: 4d].
    #[arg(long, value_parser = duration)]
    retention: Option<Duration>,

    /// What a duplicate of a running event is answered: acknowledge, retry-later, or wait:2s
    /// [default: acknowledge].
    #[arg(long, value_parser = in_flight)]
    in_flight: Option<InFlight>,

    /// What becomes of a request without an event id [default: refuse].
    #[arg(long, value_parser = one_of([
        ("refuse", MissingId::Refuse),
        ("forward", MissingId::Forward),
        ("use-body-hash", MissingId::UseBodyHash),
    ]))]
    missing_id: Option<MissingId>,

    /// What becomes of a request that the store failed on [default: refuse].
    #[arg(long, value_parser = one_of([
        ("refuse", StoreFailure::Refuse),
        ("forward", StoreFailure::Forward),
    ]))]
    store_failure: Option<StoreFailure>,

    /// What becomes of a run whose sender hung up [default: finish].
    #[arg(long, value_parser = one_of([
        ("finish", OnDisconnect::Finish),
        ("cancel", OnDisconnect::Cancel),
    ]))]
    on_disconnect: Option<OnDisconnect>,

    /// What makes two requests the same event [default: id-and-body].
    #[arg(long, value_parser = one_of([
        ("id-and-body", KeyBy::IdAndBody),
        ("id", KeyBy::Id),
    ]))]
    key_by: Option<KeyBy>,

    /// The longest body, in bytes [default: 2097152].
    #[arg(long, value_name = "BYTES")]
    max_body: Option<usize>,

    /// How long a body may take to arrive [default: 30s].
    #[arg(long, value_parser = duration)]
    body_timeout: Option<Duration>,

    /// How long one call to the store may take [default: 300ms].
    #[arg(long, value_parser = duration)]
    store_timeout: Option<Duration>,

    /// Of how many events /runs tells; older ones are forgotten.
    #[arg(long, value_name = "EVENTS", default_value = "100000")]
    pub(crate) keep_runs: NonZeroUsize,
}

impl Options {
    /// Ends the program on what the layer would panic on.
    pub(crate) fn checked(self) -> Self {
        let lease = self.lease.unwrap_or(Duration::from_secs(30));
        let store_timeout = self.store_timeout.unwrap_or(Duration::from_millis(300));
        if lease < 4 * store_timeout {
            let why = "the lease must be at least four times the store timeout";
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

    pub(crate) fn layer(&self, store: BoxStore) -> Layer {
        let preset = match (&self.provider, &self.header, &self.pointer) {
            (Some(preset), _, _) => preset.clone(),
            (None, Some(name), _) => EventId::header(name.clone()).into(),
            (None, None, Some(pointer)) => EventId::from(pointer.clone()).into(),
            (None, None, None) => EventId::pointer("/id").into(),
        };
        let layer = Layer::new(store, preset);
        // What is not given keeps its default, or what is known about the sender.
        let layer = given(layer, self.lease, Layer::lease);
        let layer = given(layer, self.run_limit, Layer::run_limit);
        let layer = given(layer, self.retention, Layer::retention);
        let layer = given(layer, self.in_flight, Layer::in_flight);
        let layer = given(layer, self.missing_id, Layer::missing_id);
        let layer = given(layer, self.store_failure, Layer::store_failure);
        let layer = given(layer, self.on_disconnect, Layer::on_disconnect);
        let layer = given(layer, self.key_by.clone(), Layer::key_by);
        let layer = given(layer, self.max_body, Layer::max_body);
        let layer = given(layer, self.body_timeout, Layer::body_timeout);
        let layer = given(layer, self.store_timeout, Layer::store_timeout);
        given(layer, self.namespace.as_deref(), Layer::namespace)
    }
}

type Layer = WebhookDedupLayer<BoxStore>;

fn given<T>(layer: Layer, value: Option<T>, set: fn(Layer, T) -> Layer) -> Layer {
    match value {
        Some(value) => set(layer, value),
        None => layer,
    }
}

/// A preset, by its name.
fn provider() -> impl TypedValueParser<Value = Preset> {
    let names = providers::all().filter_map(|preset| preset.name());
    PossibleValuesParser::new(names.collect::<Vec<_>>()).try_map(|name| {
        let mut all = providers::all();
        all.find(|preset| preset.name() == Some(&name))
            .ok_or("no such preset")
    })
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
