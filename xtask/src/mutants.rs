//! `cargo xtask mutants`: plants one fault at a time into a copy of the sources, and demands that a test catches it.
//!
//! The faults are data, in `xtask/mutants.txt`: each with the file, the text to find, what stands there instead, and the
//! tests that must fail. A fault that no test catches has survived: a promise without a proof. Add the test, or take the
//! fault off the list where it changes nothing.
//!
//! 1. The sources are copied to `target/mutants/tree` and built in `target/mutants/target`. Nothing else is touched.
//! 2. The tests of each fault are run on the unchanged copy first. Where they fail there, nothing can be said.
//! 3. A fault whose text is not found exactly once, or that does not compile, is an error: the list is out of date.
//! 4. Tests that do not end within [`RUN_WITHIN`] have caught the fault as well.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use onlyonce_testkit::repository::{self, cargo};
use onlyonce_testkit::verdict::Verdict;

use crate::arguments::Arguments;
use crate::files;

/// Where the faults are listed, from the top of the repository.
const LIST: &str = "xtask/mutants.txt";
/// How long the tests of one fault may run.
const RUN_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A fault that is planted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Fault {
    name: String,
    /// Which promise it breaks.
    why: String,
    file: String,
    /// Arguments of `cargo test`, after `-p`.
    tests: String,
    find: String,
    replace: String,
}

/// What became of a fault.
enum Found {
    /// These tests failed; none where they did not end.
    Caught(Vec<String>),
    Survived,
    /// It could not be planted, for this reason.
    DoesNotApply(String),
}

/// With words, only faults whose name or file contains one of them.
pub(crate) fn run(arguments: Arguments) -> Result<Verdict> {
    let only = &arguments.words(usize::MAX)?;
    let root = repository::root();
    let list = fs::read_to_string(root.join(LIST)).with_context(|| format!("cannot read {LIST}"))?;
    let mut faults = parse(&list)?;
    faults.retain(|fault| {
        let is_named = |text: &String| fault.name.contains(text) || fault.file.contains(text);
        only.is_empty() || only.iter().any(is_named)
    });
    if faults.is_empty() {
        bail!("no fault in {LIST} has {only:?} in its name or file");
    }
    let scratch = Scratch::new(repository::target()?.join("mutants"))?;
    scratch.copy(&files::files()?)?;
    let commands: BTreeSet<_> = faults.iter().map(|fault| fault.tests.as_str()).collect();
    for tests in commands {
        eprintln!("unchanged: {tests}");
        scratch.passes(tests)?;
    }
    let mut counts = [0; 3];
    for (index, fault) in faults.iter().enumerate() {
        let began = Instant::now();
        let found = scratch.judge(fault)?;
        let (count, word, told) = match &found {
            Found::Caught(by) => (0, "caught", caught_by(by)),
            Found::Survived => {
                (1, "SURVIVED", format!("\n    breaks: {}\n    tests:  {}", fault.why, fault.tests))
            }
            Found::DoesNotApply(reason) => (2, "DOES NOT APPLY", reason.clone()),
        };
        counts[count] += 1;
        let (number, took) = (index + 1, began.elapsed().as_secs_f64());
        println!("{number:>3}/{} {word:<9} {} ({took:.0} s) {told}", faults.len(), fault.name);
    }
    let [caught, survived, inapplicable] = counts;
    println!("{caught} caught, {survived} survived, {inapplicable} do not apply");
    if inapplicable > 0 {
        bail!("{inapplicable} faults of {LIST} do not apply any more; bring them up to date");
    }
    Ok(if survived == 0 { Verdict::Yes } else { Verdict::No })
}

fn caught_by(tests: &[String]) -> String {
    match tests {
        [] => "by tests that did not end".to_owned(),
        [one] => format!("by {one}"),
        [first, others @ ..] => format!("by {first} and {} more", others.len()),
    }
}

/// The copy of the sources, and where it is built.
struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    fn new(folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(folder.join("tree"))?;
        Ok(Self { folder })
    }

    fn tree(&self) -> PathBuf {
        self.folder.join("tree")
    }

    /// Makes the copy equal to the sources. Files that are equal already are left alone: cargo would build them anew.
    fn copy(&self, files: &[files::File]) -> Result<()> {
        let tree = self.tree();
        let wanted: BTreeSet<PathBuf> = files.iter().map(|file| tree.join(&file.path)).collect();
        for path in files::under(&tree)? {
            if !wanted.contains(&path) {
                fs::remove_file(path)?;
            }
        }
        for file in files {
            let path = tree.join(&file.path);
            if fs::read_to_string(&path).is_ok_and(|text| text == file.text) {
                continue;
            }
            fs::create_dir_all(path.parent().expect("a file is in a folder"))?;
            fs::write(&path, &file.text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Demands that these tests pass on the unchanged copy, and that there are any.
    fn passes(&self, tests: &str) -> Result<()> {
        let log = self.folder.join("unchanged.log");
        let built = self.cargo(tests, &["--no-run"], &log)?;
        let passed = built.is_some_and(|status| status.success())
            && self.cargo(tests, &[], &log)?.is_some_and(|status| status.success());
        if !passed {
            bail!("`cargo test -p {tests}` fails on the unchanged sources; see {}", log.display());
        }
        let told = fs::read_to_string(&log)?;
        if !told.lines().any(|line| line.starts_with("test ") && line.ends_with(" ok")) {
            bail!("`cargo test -p {tests}` runs no test; correct it in {LIST}");
        }
        Ok(())
    }

    /// Plants a fault, runs its tests, and takes it out again.
    fn judge(&self, fault: &Fault) -> Result<Found> {
        let path = self.tree().join(&fault.file);
        let Ok(text) = fs::read_to_string(&path) else {
            return Ok(Found::DoesNotApply(format!("there is no file {}", fault.file)));
        };
        let planted = match planted(fault, &text) {
            Ok(planted) => planted,
            Err(reason) => return Ok(Found::DoesNotApply(reason)),
        };
        fs::write(&path, planted)?;
        let found = self.tested(fault);
        fs::write(&path, text)?;
        found
    }

    fn tested(&self, fault: &Fault) -> Result<Found> {
        let log = self.folder.join("planted.log");
        let built = self.cargo(&fault.tests, &["--no-run"], &log)?;
        if !built.is_some_and(|status| status.success()) {
            let told = fs::read_to_string(&log)?;
            let error = told.lines().find(|line| line.starts_with("error")).unwrap_or("see planted.log");
            return Ok(Found::DoesNotApply(format!("does not compile: {error}")));
        }
        Ok(match self.cargo(&fault.tests, &[], &log)? {
            Some(status) if status.success() => Found::Survived,
            Some(_) => Found::Caught(failed(&fs::read_to_string(&log)?)),
            None => Found::Caught(Vec::new()),
        })
    }

    /// Runs `cargo test` on the copy, with its output in `log`. None where the tests did not end in time. Building has no
    /// time limit.
    fn cargo(&self, tests: &str, more: &[&str], log: &Path) -> Result<Option<ExitStatus>> {
        let output = File::create(log)?;
        let mut child = cargo(&["test"])
            .args(more)
            .arg("-p")
            .args(tests.split_whitespace())
            .current_dir(self.tree())
            .env("CARGO_TARGET_DIR", self.folder.join("target"))
            .env("CARGO_TERM_COLOR", "never")
            .env("RUST_BACKTRACE", "0")
            .env_remove("CARGO_MANIFEST_DIR")
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .context("cannot run cargo test")?;
        let began = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            if more.is_empty() && began.elapsed() > RUN_WITHIN {
                // The tests are processes that cargo started, in its process group.
                Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status()?;
                child.wait()?;
                return Ok(None);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// The tests that failed, by what the test runner said.
fn failed(told: &str) -> Vec<String> {
    let lines = told.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    lines.map(str::to_owned).collect()
}

/// The text with the fault in it.
fn planted(fault: &Fault, text: &str) -> Result<String, String> {
    match text.matches(&fault.find).count() {
        1 => Ok(text.replacen(&fault.find, &fault.replace, 1)),
        count => Err(format!("its text is found {count} times in {}, and must be once", fault.file)),
    }
}

/// Reads the list: see its head for the format.
fn parse(list: &str) -> Result<Vec<Fault>> {
    let mut faults: Vec<Fault> = Vec::new();
    for (number, line) in list.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix("= ") {
            faults.push(Fault { name: name.to_owned(), ..Fault::default() });
            continue;
        }
        let fault =
            faults.last_mut().with_context(|| format!("{LIST}:{number}: no fault begins before this"))?;
        let (mark, rest) = line.split_once(' ').unwrap_or((line, ""));
        let field = match mark {
            "why" => &mut fault.why,
            "file" => &mut fault.file,
            "tests" => &mut fault.tests,
            "-" => &mut fault.find,
            "+" => &mut fault.replace,
            _ => bail!("{LIST}:{number}: {line:?} begins with none of =, why, file, tests, -, +"),
        };
        if !field.is_empty() {
            field.push('\n');
        }
        field.push_str(rest);
    }
    for fault in &faults {
        let fields = [&fault.why, &fault.file, &fault.tests, &fault.find];
        if fields.iter().any(|field| field.is_empty()) || fault.find == fault.replace {
            bail!("{LIST}: {:?} lacks its why, file, tests or text, or changes nothing", fault.name);
        }
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "# A comment.\n\n= one\nwhy it matters\nfile a.rs\ntests a --lib\n- if a {\n-     b\n+ if !a {\n+     b\n";

    #[test]
    fn a_fault_is_read_and_planted_line_by_line() {
        let faults = parse(LISTED).unwrap();
        let [fault] = &faults[..] else { panic!("{faults:?}") };
        assert_eq!((fault.name.as_str(), fault.tests.as_str()), ("one", "a --lib"));
        assert_eq!(planted(fault, "x\nif a {\n    b\n}\n").unwrap(), "x\nif !a {\n    b\n}\n");
    }

    #[test]
    fn a_text_that_is_not_there_exactly_once_is_told() {
        let fault = &parse(LISTED).unwrap()[0];
        for (text, count) in [("if b {\n", "0 times"), ("if a {\n    b\nif a {\n    b\n", "2 times")] {
            let reason = planted(fault, text).unwrap_err();
            assert!(reason.contains(count), "{reason}");
        }
    }

    #[test]
    fn a_list_that_is_not_whole_is_refused() {
        for (from, to) in
            [("= one\n", ""), ("why it matters\n", ""), ("- if a {\n-     b\n", ""), ("tests a", "test a")]
        {
            assert!(parse(&LISTED.replace(from, to)).is_err(), "{from:?}");
        }
    }

    #[test]
    fn failed_tests_are_named() {
        let told = "test a::b ... ok\ntest a::c ... FAILED\n\nfailures:\n    a::c\n";
        assert_eq!(failed(told), ["a::c"]);
    }

    /// The list is kept up to date with the sources, not only when it is run.
    #[test]
    fn every_fault_of_the_list_can_be_planted() {
        let root = repository::root();
        let faults = parse(&fs::read_to_string(root.join(LIST)).unwrap()).unwrap();
        let mut names = BTreeSet::new();
        for fault in &faults {
            assert!(names.insert(&fault.name), "two faults are called {:?}", fault.name);
            let text = fs::read_to_string(root.join(&fault.file)).unwrap();
            planted(fault, &text).map_err(|reason| format!("{}: {reason}", fault.name)).unwrap();
        }
    }
}
