//! Finds the tests that name a promise.
//!
//! 1. A Rust test is a function with an attribute that ends in `test`, in any file, or with a parameter `engine: Engine`,
//!    which a macro runs on each engine. In a folder `conformance`, `tests/it/write_first` or `tests/crash` every function
//!    counts, since a macro, or a list, makes each of them many tests. So does chaos, which is a step of the test command.
//! 2. The ids stand in its doc comment. Attributes may stand in between.
//! 3. Cases as data, in `cases/*.toml`, name them under `proves`; those that are not skipped count.

use super::is_id;
use crate::files::File;

/// What `cargo xtask chaos` proves stands here.
const CHAOS: &str = "tools/chaos/src/main.rs";
/// The parameter of a case that runs on every engine.
const ON_ENGINES: &str = "(engine: Engine) {";

/// That a test proves a promise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Proof {
    pub(crate) id: String,
    /// As in `onlyonce_core::machine::tests::a_superseded_attempt_cannot_complete`.
    pub(crate) test: String,
    pub(crate) path: String,
    pub(crate) line: usize,
}

/// Every proof in these files, in order.
pub(crate) fn proofs(files: &[File]) -> Vec<Proof> {
    let mut proofs: Vec<Proof> =
        files.iter().filter(|file| has_tests_of_ours(file)).flat_map(of_file).collect();
    proofs.sort();
    // A case that names an id twice proves it once.
    proofs.dedup_by(|a, b| (&a.id, &a.test) == (&b.id, &b.test));
    proofs
}

fn has_tests_of_ours(file: &File) -> bool {
    // The test kit's tests, like those of this crate, are about the checks themselves: they name ids without proving them.
    let is_product = file.path.starts_with("crates/") && !file.path.starts_with("crates/onlyonce-testkit/");
    is_product || file.path.starts_with("cases/") || file.path == CHAOS
}

fn of_file(file: &File) -> Vec<Proof> {
    if file.ends_with(".rs") {
        return of_rust(file);
    }
    if file.path.starts_with("cases/") && file.ends_with(".toml") { of_cases(file) } else { Vec::new() }
}

fn of_rust(file: &File) -> Vec<Proof> {
    let every_function =
        ["/conformance/", "/conformance.rs", "/tests/it/write_first/", "/tests/crash/", CHAOS]
            .iter()
            .any(|place| file.path.contains(place));
    let mut proofs = Vec::new();
    let mut modules = Modules::of(&file.path);
    let mut ids: Vec<String> = Vec::new();
    let mut is_test = every_function;
    let mut is_within_attribute = false;
    for (number, line) in file.lines() {
        modules.enter_or_leave(line);
        let text = line.trim();
        if is_within_attribute {
            is_within_attribute = !text.ends_with(']');
        } else if let Some(doc) = text.strip_prefix("///") {
            ids.extend(ids_in(doc));
        } else if let Some(attribute) = text.strip_prefix("#[") {
            is_test |= attribute.split(['(', ']']).next().is_some_and(|path| path.ends_with("test"));
            is_within_attribute = !attribute.contains(']');
        } else if !text.starts_with("//") {
            if let Some(name) = function(text).filter(|_| is_test || text.contains(ON_ENGINES)) {
                let test = modules.path_of(name);
                proofs.extend(ids.iter().map(|id| Proof {
                    id: id.clone(),
                    test: test.clone(),
                    path: file.path.clone(),
                    line: number,
                }));
            }
            ids.clear();
            is_test = every_function;
        }
    }
    proofs
}

/// The name of the function this line begins.
fn function(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_head = before
        .split_whitespace()
        .all(|word| matches!(word, "pub" | "async" | "const") || word.starts_with("pub("));
    let name = after.split(|char: char| !(char.is_alphanumeric() || char == '_')).next()?;
    (is_head && !name.is_empty()).then_some(name)
}

fn ids_in(text: &str) -> impl Iterator<Item = String> {
    text.split(|char: char| !char.is_ascii_alphanumeric()).filter(|word| is_id(word)).map(str::to_owned)
}

/// A case proves what it says unless it is skipped: both suites run theirs.
fn of_cases(file: &File) -> Vec<Proof> {
    let mut proofs = Vec::new();
    let mut case = Case::default();
    for (number, line) in file.lines() {
        if line.trim() == "[[case]]" {
            proofs.append(&mut std::mem::take(&mut case).proofs());
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        match key.trim() {
            "id" => case.id = value.trim().trim_matches('"').to_owned(),
            "skip" => case.is_skipped = true,
            "proves" => case.proves.extend(ids_in(value).map(|id| Proof {
                id,
                test: format!("{}: {}", file.path, case.id),
                path: file.path.clone(),
                line: number,
            })),
            _ => {}
        }
    }
    proofs.append(&mut case.proofs());
    proofs
}

#[derive(Default)]
struct Case {
    id: String,
    is_skipped: bool,
    proves: Vec<Proof>,
}

impl Case {
    fn proofs(self) -> Vec<Proof> {
        if self.is_skipped { Vec::new() } else { self.proves }
    }
}

/// Where in the tree of modules a line stands. Reads indentation, which rustfmt keeps honest.
struct Modules {
    of_file: String,
    inline: Vec<(usize, String)>,
}

impl Modules {
    fn of(path: &str) -> Self {
        let parts = path.trim_end_matches(".rs").split('/').skip(1);
        let parts = parts.filter(|part| !matches!(*part, "src" | "tests" | "lib" | "main" | "mod"));
        Self { of_file: parts.collect::<Vec<_>>().join("::").replace('-', "_"), inline: Vec::new() }
    }

    fn enter_or_leave(&mut self, line: &str) {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if let Some(name) = text.split_once("mod ").and_then(|(before, rest)| {
            (before.is_empty() || before.starts_with("pub")).then(|| rest.strip_suffix(" {")).flatten()
        }) {
            self.inline.push((indent, name.to_owned()));
        } else if text == "}" && self.inline.last().is_some_and(|(opened, _)| *opened == indent) {
            self.inline.pop();
        }
    }

    fn path_of(&self, function: &str) -> String {
        let inline: String = self.inline.iter().map(|(_, name)| format!("{name}::")).collect();
        format!("{}::{inline}{function}", self.of_file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        proofs(&[file]).into_iter().map(|proof| format!("{} {}", proof.id, proof.test)).collect()
    }

    #[test]
    fn ids_above_a_test_are_its_proofs() {
        let text = "mod tests {\n    /// K05, K06: both spellings.\n    #[test]\n    fn both() {\n    }\n}\n";
        assert_eq!(
            found("crates/onlyonce-core/src/key.rs", text),
            ["K05 onlyonce_core::key::tests::both", "K06 onlyonce_core::key::tests::both"]
        );
    }

    #[test]
    fn attributes_may_stand_in_between() {
        let text = "/// R07\n#[tokio::test(flavor = \"multi_thread\")]\n#[cfg_attr(\n    miri,\n    ignore\n)]\nasync fn goes_on() {}\n";
        assert_eq!(found("crates/onlyonce/tests/it/main.rs", text), ["R07 onlyonce::it::goes_on"]);
    }

    #[test]
    fn a_function_that_is_no_test_proves_nothing() {
        let text =
            "/// R07\nfn helper() {}\n#[test]\nfn a_test() {}\n/// R08\nstruct A;\n#[test]\nfn b_test() {}\n";
        assert_eq!(found("crates/onlyonce/src/wait.rs", text), Vec::<String>::new());
    }

    #[test]
    fn conformance_cases_are_tests_of_every_engine() {
        let text = "/// R05\npub async fn superseded(store: &dyn Store) {\n}\n";
        assert_eq!(
            found("crates/onlyonce-store/src/conformance/fencing.rs", text),
            ["R05 onlyonce_store::conformance::fencing::superseded"]
        );
    }

    #[test]
    fn a_case_for_every_engine_is_a_test() {
        let text = "/// R05\nasync fn found(engine: Engine) {\n}\n/// R06\nfn helper(engine: Engine) -> World {\n}\n";
        assert_eq!(found("crates/onlyonce/tests/it/keys.rs", text), ["R05 onlyonce::it::keys::found"]);
    }

    #[test]
    fn crash_scenarios_are_tests_at_every_step() {
        let text = "/// P05, U03\nasync fn killed_while_serving(step: &Failpoint) {\n}\n";
        assert_eq!(
            found("crates/onlyonce/tests/crash/scenario.rs", text),
            [
                "P05 onlyonce::crash::scenario::killed_while_serving",
                "U03 onlyonce::crash::scenario::killed_while_serving"
            ]
        );
    }

    #[test]
    fn chaos_proves_what_it_names_and_other_commands_nothing() {
        let text = "/// M04\nfn run() {}\n";
        assert_eq!(found(CHAOS, text), ["M04 chaos::run"]);
        let test = "/// M04\n#[test]\nfn a() {}\n";
        for path in
            ["xtask/src/crash.rs", "crates/onlyonce-testkit/src/history.rs", "tools/chaos/src/judge.rs"]
        {
            assert_eq!(found(path, test), Vec::<String>::new(), "{path}");
        }
    }

    #[test]
    fn a_case_that_runs_proves_what_it_names() {
        let case = |extra: &str| format!("[[case]]\nid = \"KEY-19\"\nproves = [\"K07\", \"O06\"]\n{extra}\n");
        assert_eq!(
            found("cases/key.toml", &case("")),
            ["K07 cases/key.toml: KEY-19", "O06 cases/key.toml: KEY-19"]
        );
        assert!(found("cases/key.toml", &case("skip = \"later\"")).is_empty());
        assert_eq!(found("cases/key.toml", &[case("skip = \"later\""), case("")].concat()).len(), 2);
    }

    #[test]
    fn leaving_a_module_is_noticed() {
        let text = "mod a {\n    #[test]\n    fn x() {\n    }\n}\n/// K01\n#[test]\nfn y() {}\n";
        assert_eq!(found("crates/onlyonce/src/key.rs", text), ["K01 onlyonce::key::y"]);
    }
}
