//! The cases of `cases/` on an axum app with the layer, over real sockets: one test a case and engine, named by both.
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
mod http2;
mod logs;
mod moved;
mod node;
mod payload;
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
use crate::store::Engine;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    upstream::keep_ordered_panics_quiet();
    let cases = data::all();
    let listed = cases.clone();
    let mut trials = vec![Trial::test("every_case_of_the_list_is_there_once", move || check_list(&listed))];
    for engine in Engine::ALL {
        trials.extend(cases.iter().map(|case| trial(case, engine)));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(case: &Case, engine: Engine) -> Trial {
    let (case, name) = (case.clone(), name(case, engine));
    match reason_not_to_run(&case, engine) {
        None => Trial::test(name, move || {
            let differs = case.differs.clone().map(|differs| format!("\nnote: it differs: {differs}"));
            run::run(case, engine).map_err(|error| Failed::from(error + &differs.unwrap_or_default()))
        }),
        Some(reason) => {
            let told = move || {
                println!("not run on the layer with {engine:?}: {reason}");
                Ok(())
            };
            Trial::test(name, told).with_ignored_flag(true)
        }
    }
}

fn reason_not_to_run(case: &Case, engine: Engine) -> Option<String> {
    let elsewhere = || "it is a case for the gateway".to_owned();
    let not_on = case.not_on.get(&engine).cloned();
    case.skip.clone().or_else(|| (!case.on.contains(&Suite::Layer)).then(elsewhere)).or(not_on)
}

/// `layer::sqlite::KEY_05_an_empty_key_is_refused`
fn name(case: &Case, engine: Engine) -> String {
    let words = |text: &str| {
        let plain = text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { ' ' });
        plain.collect::<String>().split_whitespace().collect::<Vec<_>>().join("_")
    };
    format!("layer::{}::{}_{}", engine.name(), words(&case.id), words(&case.what.to_lowercase()))
}

/// The list that the data is held against stands in `cases/README.md`.
fn check_list(cases: &[Case]) -> Result<(), Failed> {
    let readme = std::fs::read_to_string(data::folder().join("README.md"))?;
    let (_, list) = readme.split_once("<!-- ids -->").ok_or("cases/README.md has no list of ids")?;
    let mut counts: BTreeMap<&str, i32> = BTreeMap::new();
    for id in list.split_whitespace().filter(|word| is_id(word)) {
        *counts.entry(id).or_default() += 1;
    }
    if let Some((twice, _)) = counts.iter().find(|(_, count)| **count > 1) {
        return Err(format!("{twice} is listed twice").into());
    }
    // `OWN` cases are ours, beyond the list; they too are there once.
    for case in cases.iter().filter(|case| case.id.starts_with("OWN-")) {
        counts.insert(&case.id, 1);
    }
    for case in cases {
        *counts.entry(&case.id).or_default() -= 1;
    }
    let wrong: Vec<_> = counts.iter().filter(|(_, count)| **count != 0).map(|(id, _)| *id).collect();
    if !wrong.is_empty() {
        return Err(format!("missing, unlisted or doubled: {wrong:?}").into());
    }
    let unproving =
        cases.iter().find(|case| case.proves.is_empty() || !case.proves.iter().all(|it| is_promise(it)));
    unproving.map_or(Ok(()), |case| Err(format!("{} proves {:?}", case.id, case.proves).into()))
}

/// `K05`
fn is_promise(word: &str) -> bool {
    matches!(word.as_bytes(), [kind, tens, ones]
        if kind.is_ascii_uppercase() && tens.is_ascii_digit() && ones.is_ascii_digit())
}

fn is_id(word: &str) -> bool {
    matches!(word.split_once('-'), Some((kind, number))
        if kind.len() == 3 && kind.bytes().all(|c| c.is_ascii_uppercase())
            && number.len() == 2 && number.bytes().all(|c| c.is_ascii_digit()))
}
