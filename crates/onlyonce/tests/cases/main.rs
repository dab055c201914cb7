//! The cases of `cases/` on an axum app with the layer, over real sockets: one test a case, named by its id.
//!
//! ```text
//!  client ── socket ── axum, hyper ── the layer ── U      one runtime, one store, one server a case
//! ```
//!
//! A case that is not for the layer, or that nobody can run, is listed as ignored with its reason: it is never left out
//! in silence, and `every_case_of_the_list_is_there_once` counts them.

#![allow(missing_docs, reason = "a test binary has no readers of its documentation")]

mod check;
mod client;
mod data;
mod logs;
mod node;
mod run;
mod settings;
mod step;
mod store;
mod upstream;
mod vectors;

use std::collections::BTreeMap;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::data::{Case, Suite};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let cases = data::all();
    let ids: Vec<_> = cases.iter().map(|case| case.id.clone()).collect();
    let mut trials = vec![Trial::test("every_case_of_the_list_is_there_once", move || listed(&ids))];
    trials.extend(cases.into_iter().map(trial));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(case: Case) -> Trial {
    let name = name(&case);
    match reason_not_to_run(&case) {
        None => Trial::test(name, move || run::run(case).map_err(Failed::from)),
        Some(reason) => {
            let told = move || {
                println!("not run on the layer: {reason}");
                Ok(())
            };
            Trial::test(name, told).with_ignored_flag(true)
        }
    }
}

fn reason_not_to_run(case: &Case) -> Option<String> {
    let elsewhere = || "it is a case for the gateway".to_owned();
    case.skip.clone().or_else(|| (!case.on.contains(&Suite::Layer)).then(elsewhere))
}

/// `layer::KEY_05_an_empty_key_is_refused`
fn name(case: &Case) -> String {
    let words = |text: &str| {
        let plain = text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { ' ' });
        plain.collect::<String>().split_whitespace().collect::<Vec<_>>().join("_")
    };
    format!("layer::{}_{}", words(&case.id), words(&case.what.to_lowercase()))
}

/// The list that the data is held against stands in `cases/README.md`.
fn listed(ids: &[String]) -> Result<(), Failed> {
    let readme = std::fs::read_to_string(data::folder().join("README.md"))?;
    let (_, list) = readme.split_once("<!-- ids -->").ok_or("cases/README.md has no list of ids")?;
    let mut counts: BTreeMap<&str, i32> = BTreeMap::new();
    for id in list.split(|c: char| c.is_whitespace() || c == '`').filter(|word| is_id(word)) {
        *counts.entry(id).or_default() += 1;
    }
    if let Some((twice, _)) = counts.iter().find(|(_, count)| **count > 1) {
        return Err(format!("{twice} is listed twice").into());
    }
    // `OWN` cases are ours, beyond the list.
    for id in ids.iter().filter(|id| !id.starts_with("OWN-")) {
        *counts.entry(id).or_default() -= 1;
    }
    let wrong: Vec<_> = counts.iter().filter(|(_, count)| **count != 0).map(|(id, _)| *id).collect();
    if wrong.is_empty() { Ok(()) } else { Err(format!("missing, unlisted or doubled: {wrong:?}").into()) }
}

fn is_id(word: &str) -> bool {
    matches!(word.split_once('-'), Some((kind, number))
        if kind.len() == 3 && kind.bytes().all(|c| c.is_ascii_uppercase())
            && number.len() == 2 && number.bytes().all(|c| c.is_ascii_digit()))
}
