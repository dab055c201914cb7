//! A retry gets the same answer, and nothing runs again.

use super::super::subject::{Ask, Subject};
use super::super::wire::Answer;
use super::{Findings, Found, Scenario, answered, must, ran_once, should};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    group: "replay",
    checks: &[
        must("replay-once", "A retry does not run the write again"),
        must("replay-status", "A retry gets the same status"),
        must("replay-body", "A retry gets the same body, byte for byte"),
        must("replay-third", "So does every further retry"),
        should("replay-content-type", "A retry gets the same content type"),
        should("replay-location", "A retry gets the same Location"),
        should("replay-marked", "A replay is marked as one, and the first answer is not"),
        should("replay-no-cookie", "A replay sets no cookie"),
    ],
    writes: 3,
    play: |subject| Box::pin(replay(subject)),
}];

async fn replay(subject: &Subject) -> Findings {
    let before = subject.count().await?;
    let key = subject.key("replay");
    let first = subject.call(Ask::with(&key)).await?;
    let second = subject.call(Ask::with(&key)).await?;
    let third = subject.call(Ask::with(&key)).await?;
    let ran = subject.ran_since(before).await?;
    let same = |name: &str| {
        let [was, is] = [&first, &second].map(|answer| answer.header(name).unwrap_or("none"));
        Found::when(was == is, format!("{was}, then {is}"))
    };
    let marker = subject.dialect.replayed.as_str();
    let is_marked =
        |answer: &Answer| answer.header(marker).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let marks =
        format!("{marker}: {} on the first answer, {} on the retry", is_marked(&first), is_marked(&second));
    let is_third = third.status == first.status && is_same_body(subject, &first, &third);
    Ok(vec![
        ran_once(subject, ran, &[&first, &second, &third]),
        Found::when(first.status == second.status, format!("{}, then {}", first.status, second.status)),
        Found::when(
            is_same_body(subject, &first, &second),
            format!("{} bytes, then {}", first.body.len(), second.body.len()),
        ),
        Found::when(is_third, answered(&third)),
        same("content-type"),
        same("location"),
        Found::when(is_marked(&second) && !is_marked(&first), marks),
        Found::when(second.header("set-cookie").is_none(), answered(&second)),
    ])
}

/// Byte for byte, but for the member that a dialect adds to mark a replay.
pub(super) fn is_same_body(subject: &Subject, first: &Answer, replay: &Answer) -> bool {
    first.body == replay.body
        || subject.dialect.marked(&first.body).is_some_and(|marked| marked == replay.body)
}
