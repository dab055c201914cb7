//! Clients that are gone before their answer comes.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::subject::{Ask, Halt, Subject};
use super::super::wire::{Answer, Manner};
use super::{Findings, Found, Scenario, answered, must, ran_once, should};

const ANSWERED_WITHIN: Duration = Duration::from_secs(20);
const RETRY_EVERY: Duration = Duration::from_millis(300);
/// The retries of the two scenarios are bounded by this too.
const RETRIES_MAX: u32 = 10;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        group: "middle",
        checks: &[
            must("hang-up-once", "A client hangs up after sending and retries: it ran once"),
            should("hang-up-answered", "Its retry gets the answer"),
        ],
        writes: RETRIES_MAX + 1,
        play: |subject| Box::pin(hang_up(subject)),
    },
    Scenario {
        group: "middle",
        checks: &[
            must("half-not-run", "Half a body runs nothing"),
            must("half-retried", "The whole request under the same key runs, once"),
        ],
        writes: RETRIES_MAX + 1,
        play: |subject| Box::pin(half(subject)),
    },
];

async fn hang_up(subject: &Subject) -> Findings {
    let before = subject.count().await?;
    let key = subject.key("hang-up");
    subject.send(Ask { manner: Manner::HangsUp, ..Ask::with(&key) }).await?;
    let retried = until_answered(subject, &key).await?;
    // Once more: what ran after the first answer would show.
    let again = subject.call(Ask::with(&key)).await?;
    let ran = subject.ran_since(before).await?;
    Ok(vec![
        ran_once(subject, ran, &[&retried, &again]),
        Found::when(retried.is_success(), format!("the retry was {}", answered(&retried))),
    ])
}

async fn half(subject: &Subject) -> Findings {
    if subject.body.len() < 2 {
        return Ok(vec![Found::unclear("--body is too short to be cut in half"); 2]);
    }
    let before = subject.count().await?;
    let key = subject.key("half");
    subject.send(Ask { manner: Manner::BreaksOff, ..Ask::with(&key) }).await?;
    let ran_half = subject.ran_since(before).await?;
    let retried = until_answered(subject, &key).await?;
    let ran = subject.ran_since(before).await?;
    let not_run = match ran_half {
        Some(ran) => Found::when(ran == 0, format!("the count rose by {ran}")),
        None => Found::unclear("nothing counts the runs; use --count"),
    };
    let whole = if retried.is_success() {
        ran_once(subject, ran, &[&retried])
    } else {
        Found::broken(format!("the retry was {}", answered(&retried)))
    };
    Ok(vec![not_run, whole])
}

/// Retries while it is told that the first request is in progress, or that nobody knows.
async fn until_answered(subject: &Subject, key: &str) -> Result<Answer, Halt> {
    let began = Instant::now();
    let mut tries = 0;
    loop {
        let answer = subject.call(Ask::with(key)).await?;
        tries += 1;
        let is_over = tries >= RETRIES_MAX - 1 || began.elapsed() > ANSWERED_WITHIN;
        if !matches!(answer.status, 409 | 425 | 503) || is_over {
            return Ok(answer);
        }
        sleep(RETRY_EVERY).await;
    }
}
