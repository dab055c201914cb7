//! `onlyonce keys …`: looks at records, settles those whose outcome is unknown, and forgets.

mod forget;
mod list;
mod purge;
mod show;
mod verdict;

use std::io::{self, Write};

use serde_json::Value;

use super::failure::Failure;
use super::target::{Name, Target};
use super::text::{clean, member};
use crate::Ended;
use crate::cli::Keys;

pub(super) use show::command;

pub(crate) async fn run(verb: Keys) -> Result<Ended, Failure> {
    match verb {
        Keys::List(arguments) => list::run(&arguments).await,
        Keys::Show(arguments) => show::run(&arguments).await,
        Keys::Verdict(arguments) => verdict::run(&arguments).await,
        Keys::Forget(arguments) => forget::run(&arguments).await,
        Keys::Purge(arguments) => purge::run(&arguments).await,
    }
}

/// Closes the target whether or not it was of use. What went wrong first is told.
pub(super) async fn closing<T>(target: Target, done: Result<T, Failure>) -> Result<T, Failure> {
    let closed = target.close().await;
    let done = done?;
    closed?;
    Ok(done)
}

/// Prints an answer as it is.
pub(super) fn print_json(answer: &Value) -> Result<Ended, Failure> {
    writeln!(io::stdout().lock(), "{answer:#}")?;
    Ok(Ended::Yes)
}

/// A record as people name it.
fn named(name: &Name) -> String {
    format!("key \"{}\" of scope {}", clean(&name.key), short(&name.scope))
}

/// The same of an item that has both.
pub(super) fn named_short(item: &Value) -> String {
    let text = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
    named(&Name { scope: text("scope"), key: text("key") })
}

/// The beginning of a digest.
fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// A scope as people know it: by its label, or else by its beginning.
pub(super) fn label(item: &Value) -> String {
    match item["scope_label"].as_str() {
        Some(label) => clean(label),
        None => short(&member(item, "scope")).to_owned(),
    }
}

/// Where the entry of a change is.
pub(super) fn audited(answer: &Value) -> String {
    match member(answer, "audit") {
        id if id.is_empty() => String::new(),
        id => format!("; audit entry {id}"),
    }
}
