//! Callers are kept apart.

use super::super::subject::{Ask, Caller, Subject};
use super::replay::is_same_body;
use super::{Findings, Found, Scenario, answered, must};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        group: "scope",
        checks: &[
            must(
                "scope-no-leak",
                "Another caller with the same key and body does not get the first caller's answer",
            ),
            must("scope-runs", "Its request runs for itself"),
            must("scope-untouched", "The first caller still gets its own answer"),
        ],
        writes: 3,
        play: |subject| Box::pin(callers(subject)),
    },
    Scenario {
        group: "scope",
        checks: &[must("scope-nobody", "Nobody gets a stored answer without credentials")],
        writes: 2,
        play: |subject| Box::pin(nobody(subject)),
    },
];

async fn callers(subject: &Subject) -> Findings {
    if subject.other_caller.is_empty() {
        return Ok(vec![Found::unclear("only one caller is known; name another with --other-caller"); 3]);
    }
    let key = subject.key("scope");
    let first = subject.call(Ask::with(&key)).await?;
    let before = subject.count().await?;
    let other = subject.call(Ask { caller: Caller::Other, ..Ask::with(&key) }).await?;
    let again = subject.call(Ask::with(&key)).await?;
    let ran = subject.ran_since(before).await?;
    let is_first = other.is_success() && is_same_body(subject, &first, &other);
    let is_told = ran.is_some() || subject.has_identity();
    let apart = match (is_first, is_told) {
        (false, _) => Found::held(answered(&other)),
        (true, false) => {
            Found::unclear("answers of different keys are alike, so they tell nothing; use --count")
        }
        // The same answer of a run of its own: answers are alike.
        (true, true) if ran == Some(1) => Found::held("the same answer, of a run of its own"),
        (true, true) => Found::broken("it got the first caller's answer"),
    };
    let runs = match ran {
        Some(ran) => Found::when(ran == 1, format!("the count rose by {ran}")),
        None if other.is_success() && !is_first => Found::held("it has an answer of its own"),
        None if !other.is_success() => Found::broken(answered(&other)),
        None if subject.has_identity() => Found::broken("it got the first caller's answer"),
        None => Found::unclear("nothing counts the runs; use --count"),
    };
    let is_own = again.status == first.status && is_same_body(subject, &first, &again);
    Ok(vec![apart, runs, Found::when(is_own, answered(&again))])
}

async fn nobody(subject: &Subject) -> Findings {
    if subject.headers.is_empty() {
        return Ok(vec![Found::unclear("the caller has no credentials; name them with --header")]);
    }
    let key = subject.key("nobody");
    let first = subject.call(Ask::with(&key)).await?;
    let nobody = subject.call(Ask { caller: Caller::Nobody, ..Ask::with(&key) }).await?;
    Ok(vec![match nobody.is_success() && is_same_body(subject, &first, &nobody) {
        false => Found::held(answered(&nobody)),
        true if subject.has_identity() => Found::broken("it got the stored answer"),
        true => Found::unclear("answers of different requests are alike"),
    }])
}
