//! What a provider's webhooks look like, as tables: where their bodies have what, and what their events mean.

use std::collections::BTreeMap;

use crate::config::{Scheme, Word};

/// The settings of a source that are not set.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Preset {
    pub(crate) name: &'static str,
    pub(crate) scheme: Scheme,
    pub(crate) token: &'static str,
    pub(crate) scope: &'static str,
    pub(crate) key: &'static str,
    pub(crate) verdict: &'static str,
    pub(crate) never_will: Option<&'static str>,
    pub(crate) response: Option<&'static str>,
    pub(crate) id: &'static str,
    pub(crate) time: Option<&'static str>,
    /// Where an event says why the provider declined; the first that is there counts.
    pub(crate) decline_codes: &'static [&'static str],
    /// What its words mean. None: our own words.
    pub(crate) verdicts: &'static [(Word, &'static [&'static str])],
    /// Most of what a provider sends is not about requests of ours: what names no record is then ignored, and not refused.
    pub(crate) sends_other_things: bool,
}

/// Whoever writes webhooks for us.
pub(crate) static NONE: Preset = Preset {
    name: "none",
    scheme: Scheme::Onlyonce,
    token: "/token",
    scope: "/scope",
    key: "/key",
    verdict: "/verdict",
    never_will: Some("/final"),
    response: Some("/response"),
    id: "/id",
    time: None,
    decline_codes: &[],
    verdicts: &[],
    sends_other_things: false,
};

/// Stripe. `request.idempotency_key` of an event is not used: it is the service's own key, has no scope, and is null on
/// events that Stripe causes itself. Stripe has no event for what never was.
pub(crate) static STRIPE: Preset = Preset {
    name: "stripe",
    scheme: Scheme::Stripe,
    token: "/data/object/metadata/onlyonce_token",
    scope: "/data/object/metadata/onlyonce_scope",
    key: "/data/object/metadata/onlyonce_key",
    verdict: "/type",
    never_will: None,
    response: None,
    id: "/id",
    time: Some("/created"),
    decline_codes: &["/data/object/last_payment_error/decline_code", "/data/object/failure_code"],
    verdicts: &[
        (
            Word::Happened,
            &[
                "payment_intent.succeeded",
                "payment_intent.processing",
                "payment_intent.amount_capturable_updated",
                "charge.succeeded",
                "charge.captured",
                "setup_intent.succeeded",
                "refund.created",
                "transfer.created",
                "payout.created",
                "payout.paid",
                "invoice.paid",
                "checkout.session.completed",
            ],
        ),
        (
            Word::Declined,
            &[
                "payment_intent.payment_failed",
                "payment_intent.canceled",
                "charge.failed",
                "charge.expired",
                "setup_intent.setup_failed",
                "setup_intent.canceled",
                "refund.failed",
                "payout.failed",
                "payout.canceled",
                "transfer.reversed",
                "invoice.payment_failed",
                "invoice.voided",
            ],
        ),
    ],
    sends_other_things: true,
};

impl Preset {
    /// What words mean, with `more` laid over it. None: our own words.
    pub(crate) fn verdicts_with(
        &self,
        more: Option<BTreeMap<String, Word>>,
    ) -> Option<BTreeMap<String, Word>> {
        let named = |(word, events): &(Word, &[&str])| {
            events.iter().map(|event| ((*event).to_owned(), *word)).collect::<Vec<_>>()
        };
        let own: BTreeMap<_, _> = self.verdicts.iter().flat_map(named).collect();
        match more {
            None if own.is_empty() => None,
            more => Some(own.into_iter().chain(more.unwrap_or_default()).collect()),
        }
    }
}

impl Word {
    /// Each as it is written.
    pub(crate) const ALL: [(&'static str, Self); 6] = [
        ("happened", Self::Happened),
        ("declined", Self::Declined),
        ("did-not-happen", Self::DidNotHappen),
        ("did-not-happen-final", Self::DidNotHappenFinal),
        ("unknown", Self::Unknown),
        ("ignore", Self::Ignore),
    ];

    /// The word that is written so.
    pub(crate) fn written(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(written, _)| *written == text).map(|(_, word)| *word)
    }
}
