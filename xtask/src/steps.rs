//! Steps of a check: each runs to its end, is timed, and is listed in a table at the end.
//!
//! A failed step does not stop the others: whoever fixes a change wants to know everything that is wrong with it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use onlyonce_testkit::repository::cargo;
use onlyonce_testkit::verdict::Verdict;

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Passed,
    /// With a note for the table, such as why.
    Failed(String),
}

/// Steps done so far.
#[derive(Default)]
pub(crate) struct Steps {
    done: Vec<(&'static str, Ending, Duration)>,
}

impl Steps {
    /// Runs one step. An error of the step itself is its failure and not the end of the run.
    pub(crate) fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<Ending>) {
        eprintln!("\n== {name}");
        let started = Instant::now();
        let ending = step().unwrap_or_else(|error| Ending::Failed(format!("{error:#}")));
        match &ending {
            Ending::Passed => {}
            Ending::Failed(why) => eprintln!("{name} failed: {why}"),
        }
        self.done.push((name, ending, started.elapsed()));
    }

    /// Prints the table and says whether everything has passed.
    pub(crate) fn summary(&self) -> Verdict {
        println!();
        for (name, ending, took) in &self.done {
            let (word, note) = match ending {
                Ending::Passed => ("passed", ""),
                Ending::Failed(why) => ("FAILED", why.lines().next().unwrap_or_default()),
            };
            println!("{name:<10} {word:<8} {:>7.1} s  {note}", took.as_secs_f64());
        }
        let failed = self.done.iter().any(|(_, ending, _)| matches!(ending, Ending::Failed(_)));
        if failed { Verdict::No } else { Verdict::Yes }
    }
}

/// Whether `cargo NAME` exists on this machine.
pub(crate) fn has_cargo(name: &str) -> bool {
    let asked = cargo(&[name, "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// Fails where the toolchain lacks a component, which is known by its `cargo` subcommand: a change whose format and lints
/// nobody has checked has not passed.
pub(crate) fn require_component(component: &str, subcommand: &str) -> Result<()> {
    if !has_cargo(subcommand) {
        bail!("{component} is missing; run `rustup component add {component}`");
    }
    Ok(())
}

/// Runs it, its output going where ours goes.
pub(crate) fn pass(command: &mut Command) -> Result<Ending> {
    let status = command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    Ok(ending(status.success()))
}

/// Runs it like [`pass`], and shows every line of its output to `see` as well.
pub(crate) fn pass_and_see(command: &mut Command, mut see: impl FnMut(&str)) -> Result<Ending> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let (sender, lines) = mpsc::channel();
    let stdout = child.stdout.take().expect("stdout was piped");
    let stderr = child.stderr.take().expect("stderr was piped");
    let readers = [forward(stdout, sender.clone()), forward(stderr, sender)];
    for line in lines {
        eprintln!("{line}");
        see(&plain(&line));
    }
    for reader in readers {
        reader.join().expect("a reader of lines does not panic");
    }
    Ok(ending(child.wait()?.success()))
}

fn forward(from: impl Read + Send + 'static, to: mpsc::Sender<String>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        // A line that is no UTF-8 is shown all the same: tests may print anything.
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            if to.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    })
}

fn ending(success: bool) -> Ending {
    if success { Ending::Passed } else { Ending::Failed("see above".to_owned()) }
}

/// The line without its colours.
fn plain(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_taken_off() {
        assert_eq!(plain("\u{1b}[1;32mok\u{1b}[0m. 3 passed"), "ok. 3 passed");
    }

    #[test]
    fn a_failed_step_does_not_stop_the_others() {
        let mut steps = Steps::default();
        steps.run("first", || anyhow::bail!("broken"));
        steps.run("second", || Ok(Ending::Passed));
        assert_eq!(steps.done.len(), 2);
        assert_eq!(steps.summary(), Verdict::No);
    }

    #[test]
    fn a_missing_component_fails_the_step_with_the_remedy() {
        let lints = || {
            require_component("clippy", "no-such-subcommand")?;
            Ok(Ending::Passed)
        };
        let mut steps = Steps::default();
        steps.run("lints", lints);
        let (_, ending, _) = &steps.done[0];
        let remedy = "clippy is missing; run `rustup component add clippy`";
        assert_eq!(*ending, Ending::Failed(remedy.to_owned()));
        assert_eq!(steps.summary(), Verdict::No);
    }

    #[test]
    fn a_component_that_is_installed_is_no_failure() {
        require_component("rustfmt", "fmt").unwrap();
    }

    #[test]
    fn lines_of_both_streams_are_seen() {
        let mut seen = Vec::new();
        let ending =
            pass_and_see(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"]), |line| {
                seen.push(line.to_owned());
            });
        seen.sort();
        assert_eq!(seen, ["one", "two"]);
        assert_eq!(ending.unwrap(), Ending::Failed("see above".to_owned()));
    }
}
