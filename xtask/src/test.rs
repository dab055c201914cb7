//! `cargo xtask test`: everything a change must pass.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use onlyonce_testkit::browser;
use onlyonce_testkit::engines::{dynamodb, mariadb, postgres, redis, sqlite};
use onlyonce_testkit::repository::{self, cargo};
use onlyonce_testkit::verdict::Verdict;
use serde_json::Value;

use crate::arguments::Arguments;
use crate::ci;
use crate::examples as services;
use crate::memory;
use crate::package;
use crate::program;
use crate::steps::{Ending, Steps, has_cargo, pass, pass_and_see, require_component};
use crate::tidy;

/// The features whose tests always run. By name and not `--all-features`, so that an engine with a large SDK can have a step
/// of its own.
const FEATURES: &str = "onlyonce-store/conformance,onlyonce-store/dynamodb,onlyonce-store/failpoints,onlyonce-store/mysql,onlyonce-store/postgres,onlyonce-store/redis,\
                        onlyonce-store/sqlite,onlyonce/deadpool-postgres,onlyonce/sqlite,onlyonce/sqlx,onlyonce/sqlx-mysql,onlyonce-server/all-stores";
/// On which stores there is chaos, and for how many minutes.
const CHAOS: [(&str, &str); 1] = [("postgres", "2")];
/// A comment with these words makes an example one that is also run. The others listen until they are stopped.
const RUNS_TO_ITS_END: &str = "xtask: run this example";
/// How long such an example may take.
const EXAMPLE_WITHIN: Duration = Duration::from_secs(120);

/// With words, only the tests whose name contains one of them, and none of the other steps.
pub(crate) fn run(arguments: Arguments) -> Result<Verdict> {
    let filter = arguments.words(usize::MAX)?;
    let mut steps = Steps::default();
    let mut count = Count::default();
    if filter.is_empty() {
        all(&mut steps, &mut count);
    } else {
        say_vectors();
        steps.run("tests", || {
            let ending = tests(&filter, &mut count)?;
            // A mistyped name must not look like a passed test.
            let found_none = ending == Ending::Passed && count == Count::default();
            Ok(if found_none { Ending::Failed("no test has such a name".to_owned()) } else { ending })
        });
    }
    let verdict = steps.summary();
    println!("{count}");
    Ok(verdict)
}

/// Every step, in the order in which a mistake is cheapest to find.
pub(crate) fn all(steps: &mut Steps, count: &mut Count) {
    // It waits for the network while the others compile.
    let installed = thread::spawn(engines);
    steps.run("tidy", tidy_step);
    steps.run("format", format);
    steps.run("lints", lints);
    steps.run("crates", ci::pack_crates);
    steps.run("deny", ci::deny_offline);
    say_vectors();
    steps.run("engines", || {
        installed.join().unwrap_or_else(|_| bail!("the installation panicked; see above"))
    });
    steps.run("tests", || tests(&[], count));
    steps.run("doc tests", || doc_tests(count));
    steps.run("docs", docs);
    steps.run("default", default_features);
    steps.run("examples", examples);
    steps.run("services", services);
    steps.run("packages", packages);
    steps.run("chaos", chaos);
}

fn tidy_step() -> Result<Ending> {
    Ok(ending(tidy::check()?))
}

/// The servers that tests start, and the browser. Without them those tests fail and say so.
fn engines() -> Result<Ending> {
    let installed = sqlite::install().and_then(|()| redis::install()).and_then(|()| dynamodb::install());
    let installed = installed.and_then(|()| mariadb::install()).and_then(|_| postgres::install());
    let installed = installed.and_then(|folder| Ok((folder, browser::install()?)));
    Ok(match installed {
        Ok((folder, browser)) => {
            eprintln!("PostgreSQL: {}\nChromium: {browser}", folder.display());
            Ending::Passed
        }
        Err(reason) => Ending::Failed(reason),
    })
}

fn format() -> Result<Ending> {
    require_component("rustfmt", "fmt")?;
    pass(&mut cargo(&["fmt", "--all", "--check"]))
}

fn lints() -> Result<Ending> {
    require_component("clippy", "clippy")?;
    pass(&mut cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--features",
        FEATURES,
        "--",
        "-D",
        "warnings",
    ]))
}

/// The published vectors are large and not ours, so they are not in the repository.
fn say_vectors() {
    match env::var("ONLYONCE_VECTORS") {
        Ok(folder) => eprintln!("\npublished vectors: from {folder} (ONLYONCE_VECTORS)"),
        Err(_) => eprintln!(
            "\npublished vectors: only our extracts; set ONLYONCE_VECTORS to their folder to run all of them"
        ),
    }
}

fn tests(filter: &[String], count: &mut Count) -> Result<Ending> {
    let workspace = ["--workspace", "--features", FEATURES];
    if has_cargo("nextest") {
        let threads =
            available_parallelism().map_or(3, |cores| cores.get() + cores.get().div_ceil(2)).to_string();
        let mut command =
            cargo(&["nextest", "run", "--no-fail-fast", "--no-tests=pass", "--test-threads", &threads]);
        command.args(workspace).args(filter);
        let folder = memory::Folder::new();
        match &folder {
            Some(folder) => folder.name_to(&mut command),
            None => eprintln!("tests write to the disk: there is not enough free memory for their files"),
        }
        return counted(&mut command, Runner::Nextest, count);
    }
    let mut command = cargo(&["test", "--tests", "--no-fail-fast"]);
    command.args(workspace);
    if !filter.is_empty() {
        command.arg("--").args(filter);
    }
    counted(&mut command, Runner::Cargo, count)
}

/// Apart from the other tests, since nextest does not run them.
fn doc_tests(count: &mut Count) -> Result<Ending> {
    let mut command = cargo(&["test", "--doc", "--workspace", "--no-fail-fast", "--features", FEATURES]);
    counted(&mut command, Runner::Cargo, count)
}

fn counted(command: &mut Command, runner: Runner, count: &mut Count) -> Result<Ending> {
    pass_and_see(command, |line| count.add(runner, line))
}

fn docs() -> Result<Ending> {
    pass(cargo(&["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings"))
}

/// The program as a newcomer builds it. Everything else here has every engine.
fn default_features() -> Result<Ending> {
    pass(&mut cargo(&["check", "--package", "onlyonce-server", "--quiet"]))
}

/// The gateway in front of services that are not ours. If what they need cannot be installed, the step fails and names it.
fn services() -> Result<Ending> {
    Ok(ending(services::run_all(&tested_program()?)?))
}

/// The program that the tests have built, with every engine: what follows them does not build another.
fn tested_program() -> Result<PathBuf> {
    let program = repository::target()?.join("debug/onlyonce");
    ensure!(program.is_file(), "{} is not there; the step \"tests\" builds it", program.display());
    Ok(program)
}

/// Every package around the program that the services were tested with, installed and started. `cargo xtask package` makes those
/// that are released, which takes as long as a release build.
fn packages() -> Result<Ending> {
    Ok(ending(package::around(&tested_program()?)?))
}

fn ending(verdict: Verdict) -> Ending {
    match verdict {
        Verdict::Yes => Ending::Passed,
        Verdict::No => Ending::Failed("see above".to_owned()),
    }
}

/// Faults, with a seed that is drawn and printed: each run tests something else.
fn chaos() -> Result<Ending> {
    for (store, minutes) in CHAOS {
        let arguments = ["--store", store, "--minutes", minutes].map(str::to_owned);
        let mut command = program::command(program::CHAOS, &arguments);
        let ending = pass(command.arg("--program").arg(tested_program()?))?;
        if ending != Ending::Passed {
            return Ok(ending);
        }
    }
    Ok(Ending::Passed)
}

fn examples() -> Result<Ending> {
    let examples = examples_that_end(&repository::metadata()?);
    // As the tests built them.
    let built = pass(&mut cargo(&["build", "--workspace", "--examples", "--quiet", "--features", FEATURES]))?;
    if built != Ending::Passed {
        return Ok(built);
    }
    for example in &examples {
        let ending = example.run()?;
        if ending != Ending::Passed {
            return Ok(ending);
        }
    }
    Ok(Ending::Passed)
}

/// An example that says it ends by itself.
struct Example(String);

impl Example {
    fn run(&self) -> Result<Ending> {
        let Self(name) = self;
        eprintln!("-- {name}");
        let mut run = Command::new(repository::target()?.join("debug/examples").join(name));
        let mut child =
            run.current_dir(repository::root()).spawn().with_context(|| format!("cannot start {name}"))?;
        let started = Instant::now();
        while started.elapsed() < EXAMPLE_WITHIN {
            match child.try_wait()? {
                Some(status) if status.success() => return Ok(Ending::Passed),
                Some(status) => return Ok(Ending::Failed(format!("example {name}: {status}"))),
                None => thread::sleep(Duration::from_millis(20)),
            }
        }
        child.kill()?;
        child.wait()?;
        Ok(Ending::Failed(format!("example {name} did not end within {EXAMPLE_WITHIN:?}")))
    }
}

/// The examples of our own packages that say they end by themselves.
fn examples_that_end(metadata: &Value) -> Vec<Example> {
    let members = metadata["workspace_members"].as_array().into_iter().flatten().collect::<Vec<_>>();
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages.filter(|package| members.contains(&&package["id"])).flat_map(of_package).collect()
}

fn of_package(package: &Value) -> Vec<Example> {
    let targets = package["targets"].as_array().into_iter().flatten();
    targets
        .filter(|target| target["kind"][0] == "example")
        .filter(|target| {
            let source = target["src_path"].as_str().and_then(|path| std::fs::read_to_string(path).ok());
            source.is_some_and(|source| source.contains(RUNS_TO_ITS_END))
        })
        .filter_map(|target| Some(Example(target["name"].as_str()?.to_owned())))
        .collect()
}

/// Who runs the tests, and so how the line with the counts begins.
#[derive(Clone, Copy)]
enum Runner {
    Nextest,
    Cargo,
}

/// How many tests passed and failed, read from what the runners print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    passed: u64,
    failed: u64,
}

impl Count {
    fn add(&mut self, runner: Runner, line: &str) {
        let line = line.trim();
        let counts = match runner {
            // The output of a failed test, which it repeats, has a result of its own.
            Runner::Nextest if line.starts_with("Summary [") => line.split_once(" run: "),
            Runner::Cargo if line.starts_with("test result:") => line.split_once(": "),
            Runner::Nextest | Runner::Cargo => None,
        };
        if let Some((_, counts)) = counts {
            self.passed += before(counts, " passed");
            self.failed += before(counts, " failed") + before(counts, " timed out");
        }
    }
}

/// The number in front of `word`.
fn before(text: &str, word: &str) -> u64 {
    let Some((head, _)) = text.split_once(word) else { return 0 };
    head.rsplit(|char: char| !char.is_ascii_digit())
        .next()
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(runner: Runner, lines: &[&str]) -> String {
        let mut count = Count::default();
        lines.iter().for_each(|line| count.add(runner, line));
        count.to_string()
    }

    #[test]
    fn nextest_is_counted() {
        let passed = "     Summary [   0.018s] 12 tests run: 12 passed (1 slow), 3 skipped";
        assert_eq!(counted(Runner::Nextest, &[passed]), "12 passed, 0 failed");
        let repeated = "    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.00s";
        let failed = "     Summary [   1.018s] 12/14 tests run: 9 passed, 2 failed, 1 timed out, 3 skipped";
        assert_eq!(counted(Runner::Nextest, &[repeated, failed, repeated]), "9 passed, 3 failed");
    }

    #[test]
    fn cargo_test_is_counted_over_all_binaries() {
        let lines = [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ];
        assert_eq!(counted(Runner::Cargo, &lines), "10 passed, 2 failed");
    }

    #[test]
    fn what_a_test_prints_is_not_counted() {
        for runner in [Runner::Nextest, Runner::Cargo] {
            assert_eq!(counted(runner, &["3 passed, 4 failed", "Summary: 9 passed"]), "0 passed, 0 failed");
        }
    }
}
