//! How long an answer is kept.

use std::time::Duration;

use onlyonce::refusal::Code;
use tokio::time::sleep;

use super::super::subject::{Ask, Subject};
use super::replay::is_same_body;
use super::{Findings, Found, Scenario, answered, may, should};

const A_WHILE: Duration = Duration::from_secs(2);
/// Longer is not waited for.
const RETENTION_MAX: Duration = Duration::from_secs(60);
/// A store may be late by its own granularity.
const MARGIN: Duration = Duration::from_secs(2);

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        group: "time",
        checks: &[
            should("kept", "An answer is kept for a while"),
            may("expiry-told", "The answer says until when it is kept"),
        ],
        writes: 2,
        play: |subject| Box::pin(kept(subject)),
    },
    Scenario {
        group: "time",
        checks: &[may("expired", "After its time a key is a new request, or refused as gone")],
        writes: 2,
        play: |subject| Box::pin(expired(subject)),
    },
];

async fn kept(subject: &Subject) -> Findings {
    let key = subject.key("kept");
    let first = subject.call(Ask::with(&key)).await?;
    sleep(A_WHILE).await;
    let later = subject.call(Ask::with(&key)).await?;
    let is_kept = later.status == first.status && is_same_body(subject, &first, &later);
    let told = first.header("idempotency-key-expires");
    Ok(vec![
        Found::when(is_kept, format!("{} after {A_WHILE:?}", answered(&later))),
        Found::when(told.is_some(), format!("Idempotency-Key-Expires: {}", told.unwrap_or("none"))),
    ])
}

async fn expired(subject: &Subject) -> Findings {
    let Some(retention) = subject.retention.filter(|retention| *retention <= RETENTION_MAX) else {
        return Ok(vec![Found::unclear(
            "not waited for; name a retention of a minute at most with --retention",
        )]);
    };
    let key = subject.key("expired");
    let first = subject.call(Ask::with(&key)).await?;
    sleep(retention + MARGIN).await;
    let later = subject.call(Ask::with(&key)).await?;
    let is_gone = later.status == subject.dialect.status(Code::Expired);
    Ok(vec![match later.is_success() && is_same_body(subject, &first, &later) {
        _ if is_gone => Found::held(answered(&later)),
        false => Found::when(later.is_success(), answered(&later)),
        true if subject.has_identity() => Found::broken("it was still replayed"),
        true => Found::unclear("answers of different requests are alike"),
    }])
}
