//! What is checked: groups of scenarios, each of which is played once and answers several questions.

mod at_once;
mod body;
mod key;
mod middle;
mod publication;
mod replay;
mod scope;
mod time;

use std::future::Future;
use std::pin::Pin;

use super::subject::{Halt, Subject};
use super::wire::Answer;

/// How much a rule weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Without it a retry is not safe.
    Must,
    Should,
    May,
}

impl Level {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Must => "must",
            Self::Should => "should",
            Self::May => "may",
        }
    }
}

/// Three verdicts, and never a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Held,
    Broken,
    CannotTell,
}

impl Verdict {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Broken => "broken",
            Self::CannotTell => "cannot tell",
        }
    }
}

/// What became of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) verdict: Verdict,
    pub(super) why: String,
}

impl Found {
    fn held(why: impl Into<String>) -> Self {
        Self { verdict: Verdict::Held, why: why.into() }
    }

    fn broken(why: impl Into<String>) -> Self {
        Self { verdict: Verdict::Broken, why: why.into() }
    }

    pub(super) fn unclear(why: impl Into<String>) -> Self {
        Self { verdict: Verdict::CannotTell, why: why.into() }
    }

    fn when(is_held: bool, why: impl Into<String>) -> Self {
        if is_held { Self::held(why) } else { Self::broken(why) }
    }
}

/// A rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    pub(super) id: &'static str,
    pub(super) level: Level,
    pub(super) what: &'static str,
}

const fn must(id: &'static str, what: &'static str) -> Check {
    Check { id, level: Level::Must, what }
}

const fn should(id: &'static str, what: &'static str) -> Check {
    Check { id, level: Level::Should, what }
}

const fn may(id: &'static str, what: &'static str) -> Check {
    Check { id, level: Level::May, what }
}

/// The findings of a scenario, in the order of its checks.
type Played<'a> = Pin<Box<dyn Future<Output = Findings> + Send + 'a>>;

/// See [`Played`].
type Findings = Result<Vec<Found>, Halt>;

/// What is played once, for all of its checks.
pub(super) struct Scenario {
    pub(super) group: &'static str,
    pub(super) checks: &'static [Check],
    /// How many requests it sends at most.
    pub(super) writes: u32,
    pub(super) play: for<'a> fn(&'a Subject) -> Played<'a>,
}

/// The groups, in the order of the report.
pub(super) const GROUPS: [&str; 8] =
    ["key", "replay", "body", "scope", "at-once", "middle", "time", "publication"];

pub(super) fn scenarios() -> impl Iterator<Item = &'static Scenario> {
    [
        key::SCENARIOS,
        replay::SCENARIOS,
        body::SCENARIOS,
        scope::SCENARIOS,
        at_once::SCENARIOS,
        middle::SCENARIOS,
        time::SCENARIOS,
        publication::SCENARIOS,
    ]
    .into_iter()
    .flatten()
}

/// Whether it ran once: by the count, else by answers that only one run can have given.
fn ran_once(subject: &Subject, ran: Option<u64>, answers: &[&Answer]) -> Found {
    ran_times(subject, ran, 1, answers)
}

/// The same for what may not have run any more.
fn ran_times(subject: &Subject, ran: Option<u64>, times: u64, answers: &[&Answer]) -> Found {
    if let Some(ran) = ran {
        return Found::when(ran == times, format!("the count rose by {ran}"));
    }
    let mut done = answers.iter().filter(|answer| answer.is_success());
    let Some(first) = done.next() else {
        return Found::unclear("nothing counts the runs, and no answer says that it ran; use --count");
    };
    if done.any(|answer| answer.body != first.body) {
        return Found::broken("the answers differ: it ran more than once");
    }
    match subject.has_identity() {
        true => Found::held("the answers are one and the same, and those of different keys differ"),
        false => Found::unclear("answers of different keys are alike, so they tell nothing; use --count"),
    }
}

/// `201`, for sentences.
fn answered(answer: &Answer) -> String {
    format!("answered with {}", answer.status)
}
