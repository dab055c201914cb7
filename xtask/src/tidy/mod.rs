//! `cargo xtask tidy`: the rules no compiler knows. All faults are told at once, each with its place and its remedy.
//!
//! A rule is a function from the files of the repository to faults, so that its tests can plant a fault in a file
//! that exists only in memory. A line is excused by naming the rule and the reason on it or on the line above:
//!
//! ```text
//! // tidy: allow(words) the header's own name
//! ```

mod comments;
mod field;
mod layering;
mod licences;
mod links;
mod names;
mod origins;
mod portable;
mod promises;
mod states;
mod words;

use std::fmt;

use anyhow::Result;
use onlyonce_testkit::repository;
use onlyonce_testkit::verdict::Verdict;
use serde_json::Value;

use crate::arguments::Arguments;
use crate::files::{self, File};

/// What is wrong, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fault {
    path: String,
    /// None where the fault is of the whole file.
    line: Option<usize>,
    rule: &'static str,
    message: String,
}

type Rule = fn(&[File]) -> Vec<Fault>;
type PackageRule = fn(&[File], &Value) -> Vec<Fault>;

const RULES: [Rule; 9] = [
    states::faults,
    words::faults,
    names::faults,
    comments::faults,
    origins::faults,
    links::faults,
    portable::faults,
    promises::faults,
    field::faults,
];
const PACKAGE_RULES: [PackageRule; 2] = [layering::faults, licences::faults];

pub(crate) fn run(arguments: Arguments) -> Result<Verdict> {
    arguments.words(0)?;
    check()
}

/// Prints every fault.
pub(crate) fn check() -> Result<Verdict> {
    let files = files::files()?;
    let faults = faults(&files, &repository::metadata()?);
    for fault in &faults {
        println!("{fault}");
    }
    if faults.is_empty() {
        println!("tidy: {} files, {} rules, no faults", files.len(), RULES.len() + PACKAGE_RULES.len());
        return Ok(Verdict::Yes);
    }
    println!("tidy: {} faults", faults.len());
    Ok(Verdict::No)
}

fn faults(files: &[File], metadata: &Value) -> Vec<Fault> {
    let by_files = RULES.iter().flat_map(|rule| rule(files));
    let by_packages = PACKAGE_RULES.iter().flat_map(|rule| rule(files, metadata));
    let mut faults: Vec<Fault> =
        by_files.chain(by_packages).filter(|fault| !is_excused(fault, files)).collect();
    faults.sort();
    faults
}

fn is_excused(fault: &Fault, files: &[File]) -> bool {
    let Some(number) = fault.line else { return false };
    let Some(file) = files.iter().find(|file| file.path == fault.path) else { return false };
    let excuse = format!("tidy: allow({})", fault.rule);
    let here_or_above = file.text.lines().skip(number.saturating_sub(2)).take(if number > 1 { 2 } else { 1 });
    // An excuse without a reason excuses nothing.
    here_or_above.filter_map(|line| line.split_once(&excuse)).any(|(_, reason)| !reason.trim().is_empty())
}

impl Fault {
    fn at(file: &File, line: usize, rule: &'static str, message: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line: Some(line), rule, message: message.into() }
    }

    fn of(path: impl Into<String>, rule: &'static str, message: impl Into<String>) -> Self {
        Self { path: path.into(), line: None, rule, message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}: {}", self.path, self.rule, self.message),
            None => write!(f, "{}: {}: {}", self.path, self.rule, self.message),
        }
    }
}

/// Whether a rule about text has to leave this file alone: these spell out what they forbid, or are not written by us.
fn is_exempt(file: &File) -> bool {
    file.path.starts_with("xtask/src/tidy/") || file.ends_with("Cargo.lock") || file.path.contains("/vendor/")
}

/// The code of a line of Rust, without its comment. A `//` inside a string ends it too early, which no rule minds.
fn code(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

/// The lines of a Rust file before its unit tests.
fn lines_before_tests(file: &File) -> impl Iterator<Item = (usize, &str)> {
    file.lines().take_while(|(_, line)| line.trim() != "#[cfg(test)]")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a rule finds in one planted file, as `line: message`.
    pub(super) fn found(rule: Rule, path: &str, text: &str) -> Vec<String> {
        let files = [file(path, text)];
        let faults = rule(&files).into_iter().filter(|fault| !is_excused(fault, &files));
        faults.map(|fault| format!("{}: {}", fault.line.unwrap_or(0), fault.message)).collect()
    }

    pub(super) fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn an_excuse_needs_a_reason() {
        let excused = "// tidy: allow(words) their word\nlet tenant = 1;\n";
        assert!(found(words::faults, "crates/onlyonce/src/a.rs", excused).is_empty());
        let bare = "// tidy: allow(words)\nlet tenant = 1;\n";
        assert_eq!(found(words::faults, "crates/onlyonce/src/a.rs", bare).len(), 1);
        let other = "// tidy: allow(names) their word\nlet tenant = 1;\n";
        assert_eq!(found(words::faults, "crates/onlyonce/src/a.rs", other).len(), 1);
    }

    #[test]
    fn a_fault_tells_its_place() {
        let fault = Fault::at(&file("a.rs", ""), 3, "words", "say \"scope\"");
        assert_eq!(fault.to_string(), "a.rs:3: words: say \"scope\"");
    }
}
