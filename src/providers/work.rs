//! Senders that people work with: code, tickets, documents, shops.

use super::{DAY, HOUR, handshake};
use crate::{EventId, Preset, StoreFailure};

/// [GitHub]: the header `X-GitHub-Delivery` and the body, kept 4 days.
///
/// - GitHub [never retries] by itself: what is answered with an error is lost, unless somebody
///   redelivers it. So when the store fails, the handler gets the event unprotected.
/// - A [redelivery] by hand has the same id, and is possible for 3 days, 7 on Enterprise Server. One
///   that should run again needs [`Dedup::forget`](crate::Dedup::forget).
/// - No signature covers the header. The body is in the key, so that nobody can hide an event behind the
///   id of another.
/// - `ping` passes by. Bodies have up to 25 MB, and so may they here. Axum has a limit of 2 MB of its own,
///   and what it refuses never comes again: `.layer(DefaultBodyLimit::disable())`, before this layer is
///   added, leaves the limit to this one.
/// - Unsure: that the body of a redelivery is the same is expected, not stated.
///
/// [GitHub]: https://github.com/github/docs/blob/main/content/webhooks/using-webhooks/best-practices-for-using-webhooks.md
/// [never retries]: https://github.com/github/docs/blob/main/content/webhooks/using-webhooks/handling-failed-webhook-deliveries.md
/// [redelivery]: https://github.com/github/docs/blob/main/content/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks.md
pub fn github() -> Preset {
    Preset::named("github", EventId::header("x-github-delivery"), 4 * DAY)
        .max_body(25 * 1024 * 1024)
        .store_failure(StoreFailure::Forward)
        .bypass(handshake::github())
}

/// [GitLab]: the header `Idempotency-Key` and the body, kept 3 days.
///
/// - The header is there from 17.4 on, and is the same in a resend by hand; recent events are listed for
///   2 days. `X-Gitlab-Webhook-UUID` is [new in each delivery][code], and `X-Gitlab-Event-UUID` is shared
///   by the events of recursive hooks.
/// - Refusals are 503, and never 4xx: up to 17.10, four of those in a row disable a hook for good. Since
///   then any failure counts, and it takes 40.
/// - Only a token in a header proves the sender; nothing covers the body.
/// - Unsure: hooks with a signing token have a `webhook-id`, too. Whether a resend keeps that is not
///   known.
///
/// [GitLab]: https://docs.gitlab.com/user/project/integrations/webhooks/
/// [code]: https://github.com/gitlabhq/gitlabhq/blob/master/app/services/web_hook_service.rb
pub fn gitlab() -> Preset {
    let event_id = EventId::header("idempotency-key");
    Preset::named("gitlab", event_id, 3 * DAY).refuse_without_4xx()
}

/// [Shopify]: the headers `X-Shopify-Event-Id`, `X-Shopify-Topic` and `X-Shopify-Shop-Domain`, and the
/// body, kept 8 hours.
///
/// - [8 retries in 4 hours][retries], of the original body. Eight failures in a row remove a subscription
///   that was made by the API.
/// - No signature covers the headers. The body is in the key, so that nobody can hide an event behind the
///   id of another.
/// - Unsure: other pages of Shopify's have `X-Shopify-Webhook-Id` as the idempotency key. To use that:
///   `WebhookDedupLayer::new(store, EventId::header("x-shopify-webhook-id"))`.
///
/// [Shopify]: https://shopify.dev/docs/apps/build/webhooks/ignore-duplicates
/// [retries]: https://shopify.dev/changelog/updates-to-webhook-retry-mechanism
pub fn shopify() -> Preset {
    let event_id = EventId::header("x-shopify-event-id")
        .and(EventId::header("x-shopify-topic"))
        .and(EventId::header("x-shopify-shop-domain"));
    Preset::named("shopify", event_id, 8 * HOUR)
}

/// [Jira Cloud][Jira]: the header `X-Atlassian-Webhook-Identifier` alone, kept 3 hours.
///
/// - The header is the same in each retry. Up to 5 of them, 5 to 15 minutes apart, and only after
///   408, 409, 425, 429, 5xx or a failed connection: a 400 of this layer's, for a request without the
///   header, ends it.
/// - The id counts for one site: give each site a path, or a
///   [namespace](crate::WebhookDedupLayer::namespace).
/// - Unsure: whether the body is the same in all attempts, and Jira Data Center, where no such header is
///   documented. No signature covers the header.
///
/// [Jira]: https://developer.atlassian.com/cloud/jira/platform/webhooks
pub fn jira() -> Preset {
    let event_id = EventId::header("x-atlassian-webhook-identifier");
    Preset::named("jira", event_id, 3 * HOUR).by_id()
}

/// [Linear]: the header `Linear-Delivery` alone, kept 8 hours.
///
/// - Three retries, after a minute, an hour and 6 hours. Linear waits 5 seconds, and may disable a hook
///   that goes on failing. `webhookId` in the body is the subscription.
/// - Unsure: that the id is the same in each retry is how receivers use it; and `webhookTimestamp` in
///   the body may be new. No signature covers the header.
///
/// [Linear]: https://linear.app/developers/webhooks
pub fn linear() -> Preset {
    Preset::named("linear", EventId::header("linear-delivery"), 8 * HOUR).by_id()
}

/// [Notion]: `/id` alone, kept 26 hours.
///
/// - 8 attempts, the last after about 24 hours. `attempt_number` in the body counts them.
/// - The `verification_token` of a new subscription passes by.
///
/// [Notion]: https://developers.notion.com/reference/webhooks-events-delivery
pub fn notion() -> Preset {
    Preset::named("notion", EventId::pointer("/id"), 26 * HOUR)
        .by_id()
        .bypass(handshake::notion())
}

/// [Typeform]: `/event_id` alone, kept 4 days.
///
/// - Unsure: nearly all of it. That retries have the same id is how receivers use it; for how long they
///   go on is not known, so the default of the layer is used.
///
/// [Typeform]: https://www.typeform.com/developers/webhooks/
pub fn typeform() -> Preset {
    Preset::named("typeform", EventId::pointer("/event_id"), 4 * DAY).by_id()
}
