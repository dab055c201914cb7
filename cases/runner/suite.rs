//! The cases as named tests.

use std::collections::BTreeMap;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

use super::data::{self, Case};
use super::node::Node;
use super::store::Engine;
use super::{run as case, upstream};

/// Runs the tests named by the arguments, including `every_case_of_the_list_is_there_once`.
pub(crate) fn run(cases: Vec<Case>, mut trials: Vec<Trial>) -> ExitCode {
    let arguments = Arguments::from_args();
    upstream::keep_ordered_panics_quiet();
    trials.push(Trial::test("every_case_of_the_list_is_there_once", move || check_list(&cases)));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Every case on one engine.
pub(crate) fn trials<N: Node + 'static>(cases: &[Case], engine: Engine) -> impl Iterator<Item = Trial> {
    cases.iter().map(move |case| trial::<N>(case.clone(), engine))
}

fn trial<N: Node + 'static>(case: Case, engine: Engine) -> Trial {
    let name = name::<N>(&case, engine);
    match reason_not_to_run::<N>(&case, engine) {
        None => Trial::test(name, move || {
            let differs = case.differs.clone().map(|differs| format!("\nnote: it differs: {differs}"));
            case::run::<N>(N::fitted(case), engine)
                .map_err(|error| Failed::from(error + &differs.unwrap_or_default()))
        }),
        Some(reason) => {
            let told = move || {
                println!("not run on the {} with {engine:?}: {reason}", N::NAME);
                Ok(())
            };
            Trial::test(name, told).with_ignored_flag(true)
        }
    }
}

fn reason_not_to_run<N: Node>(case: &Case, engine: Engine) -> Option<String> {
    let elsewhere = || (!case.on.contains(&N::SUITE)).then(|| format!("it is no case for the {}", N::NAME));
    let not_on = || case.not_on.get(&engine).cloned();
    let obstacle = || N::obstacle(case).map(str::to_owned);
    case.skip.clone().or_else(elsewhere).or_else(not_on).or_else(obstacle)
}

/// `layer::sqlite::KEY_05_an_empty_key_is_refused`
fn name<N: Node>(case: &Case, engine: Engine) -> String {
    let words = |text: &str| {
        let plain = text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { ' ' });
        plain.collect::<String>().split_whitespace().collect::<Vec<_>>().join("_")
    };
    format!("{}::{}::{}_{}", N::NAME, engine.name(), words(&case.id), words(&case.what.to_lowercase()))
}

/// The list of required cases is in `cases/README.md`.
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
    // `OWN` cases are ours, beyond the list; each must be there once too.
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
