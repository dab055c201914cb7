//! `cargo xtask crash`: kills a real process at every durable step, and judges what the next one makes of it.
//!
//! The single steps run in `cargo xtask test` too. With `--all` every pair of steps runs as well: the process that
//! recovers from the first death dies a second time. That is thousands of scenarios, so only progress is printed, and
//! each failure with the command that repeats it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use onlyonce_testkit::repository::cargo;
use onlyonce_testkit::verdict::Verdict;

use crate::arguments::Arguments;

/// As in `crates/onlyonce/tests/crash/trials.rs`.
const PAIRS: &str = "ONLYONCE_CRASH_PAIRS";
/// How many scenarios pass between two lines of progress.
const TELL_EVERY: usize = 100;

/// With `--all` every pair of steps too, which takes some minutes; with a word only scenarios whose name contains it.
pub(crate) fn run(mut arguments: Arguments) -> Result<Verdict> {
    let all = arguments.flag("--all");
    let filter = arguments.words(1)?;
    let mut command = cargo(&["test", "--quiet", "--package", "onlyonce", "--features", "all-stores"]);
    command.args(["--test", "crash", "--", "--color=never"]).args(&filter);
    if all {
        command.env(PAIRS, "1");
    }
    let mut tally = Tally::default();
    let is_success = pass_lines(&mut command, |line| {
        if let Some(news) = tally.add(line, all) {
            println!("{news}");
        }
    })?;
    println!("{} of {} scenarios passed", tally.passed, tally.passed + tally.failed.len());
    for name in &tally.failed {
        println!("failed: {name}\n  repeat: {}", repeat(name, all));
    }
    // A mistyped name must not look like a passed test.
    let is_proven = is_success && tally.failed.is_empty() && tally.passed > 0;
    Ok(if is_proven { Verdict::Yes } else { Verdict::No })
}

/// Runs it, and shows every line of its stdout to `see`. Its stderr goes where ours goes.
fn pass_lines(command: &mut Command, mut see: impl FnMut(&str)) -> Result<bool> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let stdout = child.stdout.take().expect("stdout was piped");
    for line in BufReader::new(stdout).lines() {
        see(&line?);
    }
    Ok(child.wait()?.success())
}

/// What has been seen of the scenarios so far.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
}

impl Tally {
    /// Counts a line of the test's output, and returns what to print about it.
    fn add(&mut self, line: &str, all: bool) -> Option<String> {
        let (name, ending) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let name = name.trim();
        match ending.trim() {
            "ok" => {
                self.passed += 1;
                self.passed.is_multiple_of(TELL_EVERY).then(|| format!("{} passed, at {name}", self.passed))
            }
            "FAILED" => {
                self.failed.push(name.to_owned());
                Some(format!("FAILED {name}\n  repeat: {}", repeat(name, all)))
            }
            _ => None,
        }
    }
}

fn repeat(name: &str, all: bool) -> String {
    let all = if all { "--all " } else { "" };
    format!("cargo xtask crash {all}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_with_the_command_that_repeats_it() {
        let mut tally = Tally::default();
        assert_eq!(tally.add("test opaque::killed_at_run_after            ... ok", true), None);
        let news = tally.add("test pairs::keyed::a_then_b ... FAILED", true);
        assert_eq!(
            news.as_deref(),
            Some("FAILED pairs::keyed::a_then_b\n  repeat: cargo xtask crash --all pairs::keyed::a_then_b")
        );
        assert_eq!((tally.passed, tally.failed.len()), (1, 1));
    }

    #[test]
    fn what_is_no_result_is_not_counted() {
        let mut tally = Tally::default();
        for line in ["running 3 tests", "test result: ok. 3 passed", "test a ... ignored"] {
            assert_eq!(tally.add(line, false), None);
        }
        assert_eq!((tally.passed, tally.failed.len()), (0, 0));
    }

    #[test]
    fn progress_is_told_now_and_then() {
        let mut tally = Tally { passed: TELL_EVERY - 1, failed: Vec::new() };
        assert_eq!(tally.add("test a ... ok", false).as_deref(), Some("100 passed, at a"));
    }
}
