//! When senders come again.

use crate::plan::Millis;

/// Pauses between the attempts of a sender, and how long it waits for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// At once, after a minute, after five more; 3 s. <https://docs.slack.dev/apis/events-api>
    Slack,
    /// For three days, at growing pauses that are not published.
    /// <https://docs.stripe.com/webhooks>
    Stripe,
    /// The schedule that the specification suggests; 15 s.
    /// <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>
    StandardWebhooks,
    /// One attempt, as GitHub makes; 10 s.
    /// <https://docs.github.com/en/webhooks/using-webhooks/handling-failed-webhook-deliveries>
    Once,
}

const SECOND: Millis = 1_000;
const MINUTE: Millis = 60 * SECOND;
const HOUR: Millis = 60 * MINUTE;

impl Schedule {
    pub(crate) const ALL: [Self; 4] = [
        Self::Slack,
        Self::Stripe,
        Self::StandardWebhooks,
        Self::Once,
    ];

    /// The pauses before the second attempt, the third, and so on.
    pub(crate) const fn pauses(self) -> &'static [Millis] {
        match self {
            Self::Slack => &[0, MINUTE, 5 * MINUTE],
            Self::Stripe => &[
                MINUTE,
                5 * MINUTE,
                30 * MINUTE,
                HOUR,
                3 * HOUR,
                6 * HOUR,
                12 * HOUR,
                24 * HOUR,
                24 * HOUR,
            ],
            Self::StandardWebhooks => &[
                5 * SECOND,
                5 * MINUTE,
                30 * MINUTE,
                2 * HOUR,
                5 * HOUR,
                10 * HOUR,
                14 * HOUR,
                20 * HOUR,
                24 * HOUR,
            ],
            Self::Once => &[],
        }
    }

    pub(crate) const fn timeout(self) -> Millis {
        match self {
            Self::Slack => 3 * SECOND,
            Self::Stripe => 20 * SECOND,
            Self::StandardWebhooks => 15 * SECOND,
            Self::Once => 10 * SECOND,
        }
    }
}
