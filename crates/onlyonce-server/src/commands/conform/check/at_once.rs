//! Many requests with one key at the same time.

use onlyonce::refusal::Code;

use super::super::subject::{Ask, Subject};
use super::super::wire::Answer;
use super::replay::is_same_body;
use super::{Findings, Found, Scenario, answered, must, ran_once, should};

const AT_ONCE: u32 = 8;

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    group: "at-once",
    checks: &[
        must("at-once-one-run", "Of eight requests with one key at the same time, one runs"),
        must("at-once-answers", "The others get its answer, or are refused"),
        must("at-once-no-5xx", "None of them gets a 5xx"),
        must("at-once-later", "Afterwards a retry gets the answer"),
        should("at-once-status", "Who is refused gets the documented status"),
        should("at-once-retry-after", "Who is refused is told when to come back"),
    ],
    writes: AT_ONCE + 1,
    play: |subject| Box::pin(at_once(subject)),
}];

async fn at_once(subject: &Subject) -> Findings {
    let before = subject.count().await?;
    let key = subject.key("at-once");
    let calls = (0..AT_ONCE).map(|_| subject.call(Ask::with(&key)));
    let answers = futures_util::future::try_join_all(calls).await?;
    let later = subject.call(Ask::with(&key)).await?;
    let ran = subject.ran_since(before).await?;
    let done: Vec<&Answer> = answers.iter().filter(|answer| answer.is_success()).collect();
    let refused: Vec<&Answer> = answers.iter().filter(|answer| !answer.is_success()).collect();
    let statuses = answers.iter().map(|answer| answer.status.to_string()).collect::<Vec<_>>().join(" ");
    let is_one = done
        .iter()
        .all(|answer| is_same_body(subject, done[0], answer) || is_same_body(subject, answer, done[0]));
    let are_refusals = refused.iter().all(|answer| answer.is_refusal());
    let is_later =
        later.is_success() && done.first().is_none_or(|first| is_same_body(subject, first, &later));
    let everybody: Vec<&Answer> = done.iter().copied().chain([&later]).collect();
    let expected = subject.dialect.status(Code::InProgress);
    let of_refused = |is_held: fn(&Answer, u16) -> bool| match refused.is_empty() {
        true => Found::unclear("nobody was refused: all were answered"),
        false => {
            Found::when(refused.iter().all(|answer| is_held(answer, expected)), format!("answers {statuses}"))
        }
    };
    Ok(vec![
        ran_once(subject, ran, &everybody),
        Found::when(is_one && are_refusals && !done.is_empty(), format!("answers {statuses}")),
        Found::when(answers.iter().all(|answer| answer.status < 500), format!("answers {statuses}")),
        Found::when(is_later, answered(&later)),
        of_refused(|answer, expected| answer.status == expected),
        of_refused(|answer, _| answer.header("retry-after").is_some()),
    ])
}
