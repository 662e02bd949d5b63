//! Presets that know the senders: where the event id is, whether the body changes between attempts, how
//! long retries go on, which requests are handshakes.
//!
//! ```
//! use tower_webhook_dedup::{MemoryStore, WebhookDedupLayer, providers};
//!
//! let layer = WebhookDedupLayer::new(MemoryStore::new(), providers::stripe());
//! ```
//!
//! What they say rests on the documentation of the senders, as it was at the end of 2025; each function
//! names its sources, and what no source says for sure. Senders change: look at theirs before you
//! rely on a number. Every value is overridden by the setter of the layer.
//!
//! The setters that no preset mentions keep their defaults; so a duplicate of a running event is answered
//! with 200, and this process [stands by](crate::InFlight::Acknowledge): that costs the sender no retry
//! and endangers no endpoint. The [namespace](crate::WebhookDedupLayer::namespace) is the name of the
//! preset and the path of the request.
//!
//! # The presets
//!
//! "alone": the id alone is the key ([`KeyBy::Id`](crate::KeyBy::Id)), since the body differs between
//! attempts or is not known not to. "and body": [`KeyBy::IdAndBody`](crate::KeyBy::IdAndBody). The record
//! is kept for as long as the longest schedule of automatic retries, rounded up.
//!
//! | preset | event id | key | kept | caveats |
//! |---|---|---|---|---|
//! | [`adyen`] | `/notificationItems/0/NotificationRequestItem/eventCode and /notificationItems/0/NotificationRequestItem/pspReference` | alone | 31 days | several items in a request are forwarded unprotected |
//! | [`clerk`] | `header webhook-id or header svix-id` | and body | 36 hours | |
//! | [`cloudevents`] | `header ce-source and header ce-id or /source and /id` | alone | 26 hours | duplicates get 204; batch mode has no id |
//! | [`coinbase_commerce`] | `/event/id` | alone | 4 days | |
//! | [`discord_interactions`] | `/id` | alone | 1 hour | the answer counts: duplicates wait for it; never retries |
//! | [`github`] | `header x-github-delivery` | and body | 4 days | never retries; unprotected when the store fails; bodies of 25 MiB |
//! | [`gitlab`] | `header idempotency-key` | and body | 3 days | from GitLab 17.4 on; refusals are 503 |
//! | [`intercom`] | `/id` | alone | 26 hours | how long it retries is assumed |
//! | [`jira`] | `header x-atlassian-webhook-identifier` | alone | 3 hours | Jira Cloud; 4xx are not retried |
//! | [`linear`] | `header linear-delivery` | alone | 8 hours | |
//! | [`mailgun`] | `/event-data/id` | alone | 12 hours | the signature does not cover the body |
//! | [`notion`] | `/id` | alone | 26 hours | |
//! | [`paddle`] | `/event_id` | alone | 4 days | replays by hand, up to 90 days later, run again after 4 |
//! | [`paypal`] | `/id` | alone | 4 days | |
//! | [`pubsub`] | `/message/messageId and /subscription` | alone | 8 days | duplicates get 204 |
//! | [`razorpay`] | `header x-razorpay-event-id` | and body | 8 days | |
//! | [`shopify`] | `header x-shopify-event-id and header x-shopify-topic and header x-shopify-shop-domain` | and body | 8 hours | its pages disagree on the id |
//! | [`slack`] | `/event_id` | alone | 26 hours | events only, no slash commands |
//! | [`sns`] | `header x-amz-sns-message-id` | alone | 2 hours | refusals are 503 |
//! | [`square`] | `/event_id` | and body | 26 hours | |
//! | [`standard_webhooks`] | `header webhook-id or header svix-id` | and body | 4 days | |
//! | [`stripe`] | `/id` | alone | 4 days | one id for all endpoints of an account |
//! | [`svix`] | `header webhook-id or header svix-id` | and body | 36 hours | |
//! | [`telegram`] | `/update_id` | alone | 26 hours | one bot a path; duplicates get no body |
//! | [`twilio`] | `header i-twilio-idempotency-token` | alone | 1 hour | the answer counts: duplicates wait for it; hardly retries |
//! | [`twitch`] | `header twitch-eventsub-message-id` | alone | 26 hours | how long it retries is assumed |
//! | [`typeform`] | `/event_id` | alone | 4 days | little is documented |
//! | [`zoom`] | `none` | and body | 3 hours | the whole request stands for the id |
//!
//! # Handshakes
//!
//! Slack, Zoom, Discord, Twitch, Notion, SNS and GitHub check an endpoint by a `POST` that the handler has
//! to answer each time. Their presets let it [pass by](crate::WebhookDedupLayer::bypass). It is
//! recognised by its body, which is what signatures cover, and by its header where it has one. `GET`,
//! `HEAD` and `OPTIONS` (Meta, Dropbox, CloudEvents) are [none of the layer's
//! business](crate::WebhookDedupLayer::applies_to) anyhow. For Azure Event Grid there is
//! [`is_event_grid_validation`].
//!
//! # Batches
//!
//! SendGrid, HubSpot, WhatsApp, Azure Event Grid, Auth0's log streams, and CloudEvents in batch mode send
//! several events in one request. No preset can be right for them: the layer runs a request or does not,
//! but of a batch that comes again some elements are new and some are not, and a retry may be cut into
//! other batches. Do not use `EventId::pointer("/0/id")` there: it drops all events but the first of each
//! request. Use [`Dedup`](crate::Dedup) in the handler instead, for each element. The page
//! [batches] shows how.
//!
//! # Senders that no preset can be right for
//!
//! Mollie, Dropbox, Plaid and Klarna Checkout say that something changed, not what: the same bytes come
//! for different events, hours or days apart, and there is no id in them. Telling duplicates by the body
//! ([`MissingId::UseBodyHash`](crate::MissingId::UseBodyHash)) would swallow the later ones: the payment
//! that was authorised before would never be paid. Leave the layer out. Have the handler fetch the
//! current state, which makes running twice harmless.
//!
//! - [Mollie](https://docs.mollie.com/reference/webhooks): the body is `id=tr_…` for each change of a payment.
//! - [Dropbox](https://www.dropbox.com/developers/reference/webhooks): the body lists accounts.
//! - [Plaid](https://plaid.com/docs/api/webhooks): the body is a code and an item.
//! - Klarna Checkout: the body is empty, the order in the query.

#[cfg(any(doc, doctest))]
#[doc = include_str!("../../docs/batches.md")]
pub mod batches {}

mod handshake;
mod payments;
mod people;
mod standards;
mod work;

use std::time::Duration;

pub use self::{
    handshake::is_event_grid_validation, payments::*, people::*, standards::*, work::*,
};
use crate::{Duplicate, Preset};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Duplicates get the answer of the first attempt.
const REPLAYED: Duplicate = Duplicate::Replay {
    max_body: 64 * 1024,
};

/// All presets, for programs whose configuration names one; see [`Preset::name`].
///
/// ```
/// use tower_webhook_dedup::providers;
///
/// let preset = providers::all().find(|preset| preset.name() == Some("stripe"));
/// assert!(preset.is_some());
/// ```
pub fn all() -> impl Iterator<Item = Preset> {
    let all: [fn() -> Preset; 28] = [
        adyen,
        clerk,
        cloudevents,
        coinbase_commerce,
        discord_interactions,
        github,
        gitlab,
        intercom,
        jira,
        linear,
        mailgun,
        notion,
        paddle,
        paypal,
        pubsub,
        razorpay,
        shopify,
        slack,
        sns,
        square,
        standard_webhooks,
        stripe,
        svix,
        telegram,
        twilio,
        twitch,
        typeform,
        zoom,
    ];
    all.into_iter().map(|preset| preset())
}
