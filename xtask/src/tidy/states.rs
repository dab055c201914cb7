//! The rules about states are in `machine.rs` alone: an engine or a worker that names a state, or judges whether a request is
//! the one that has the key, is a second set of rules.

use super::{Fault, code, lines_before_tests};
use crate::files::File;

/// Where states may be spelled out: the machine, the type itself, and its stored shapes.
const MAY: [&str; 4] = [
    "crates/onlyonce-core/src/machine.rs",
    "crates/onlyonce-core/src/record.rs",
    "crates/onlyonce-store/src/codec.rs",
    "crates/onlyonce-store/src/sql.rs",
];
const STATES: [&str; 5] = ["Pending", "Running", "Completed", "Retryable", "Unknown"];
/// How a request is compared with a record.
const COMPARES: &str = "fingerprint.matches(";

const STATE_COMPARED: &str =
    "the state of a record is compared outside machine.rs; ask a function there, or add one";
const STATE_NAMED: &str = "a state is named outside machine.rs; ask a function there, or add one";
const REQUEST_COMPARED: &str =
    "a request is compared with a record outside machine.rs; ask a function there, or add one";

pub(super) fn faults(files: &[File]) -> Vec<Fault> {
    files.iter().filter(|file| is_subject(file)).flat_map(of_file).collect()
}

fn is_subject(file: &File) -> bool {
    let is_source = file.path.starts_with("crates/") && file.path.contains("/src/") && file.ends_with(".rs");
    // The checker of histories has a state of its own.
    let is_test =
        ["/conformance", "/tests", "crates/onlyonce-testkit/"].iter().any(|part| file.path.contains(part));
    // Each of these may grow into a folder of the same name.
    let may = MAY.iter().any(|path| file.path == *path || file.path.starts_with(&path.replace(".rs", "/")));
    is_source && !is_test && !may
}

fn of_file(file: &File) -> Vec<Fault> {
    let faults = lines_before_tests(file).filter_map(|(number, line)| {
        let message = objection(code(line))?;
        Some(Fault::at(file, number, "states", message))
    });
    faults.collect()
}

fn objection(code: &str) -> Option<&'static str> {
    if uses(code, "State::").next().is_some() {
        return Some(STATE_COMPARED);
    }
    if uses(code, "StateName::").any(|state| !is_spelled_out(code, state)) {
        return Some(STATE_NAMED);
    }
    code.contains(COMPARES).then_some(REQUEST_COMPARED)
}

/// What follows this path on a line: the name of a state, or an import of several. `BreakerState::Running` is none.
fn uses<'a>(code: &'a str, path: &'static str) -> impl Iterator<Item = &'a str> {
    code.match_indices(path).filter_map(move |(at, _)| {
        let is_joined = code[..at].ends_with(|char: char| char.is_alphanumeric() || char == '_');
        let rest = &code[at + path.len()..];
        let state = STATES.iter().chain(&["{", "*"]).find(|state| rest.starts_with(**state));
        state.filter(|_| !is_joined).map(|state| &rest[..state.len()])
    })
}

/// `StateName::Running => "running"`, and the other way round: the name is shown or parsed, and nothing is decided.
fn is_spelled_out(code: &str, state: &str) -> bool {
    code.contains(&format!("\"{}\"", state.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::super::tests::found;
    use super::*;

    const ENGINE: &str = "crates/onlyonce/src/engine.rs";
    const MATCH: &str = "fn f() {\n    if matches!(record.state, State::Running { .. }) {}\n}\n";

    #[test]
    fn an_engine_that_matches_on_state_is_found() {
        let found = found(faults, "crates/onlyonce-store/src/memory.rs", MATCH);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("2: "), "{found:?}");
    }

    #[test]
    fn the_machine_the_stored_shapes_and_tests_may() {
        for path in [
            "crates/onlyonce-core/src/machine.rs",
            "crates/onlyonce-core/src/machine/verdict.rs",
            "crates/onlyonce-core/src/record.rs",
            "crates/onlyonce-store/src/codec.rs",
            "crates/onlyonce-store/src/sql.rs",
            "crates/onlyonce-store/src/sql/column.rs",
            "crates/onlyonce-testkit/src/history.rs",
            "crates/onlyonce-store/src/conformance/fencing.rs",
            "crates/onlyonce-core/tests/it/model.rs",
        ] {
            assert!(found(faults, path, MATCH).is_empty(), "{path}");
            assert!(found(faults, path, "let a = StateName::Running;\n").is_empty(), "{path}");
        }
        let in_tests = format!("#[cfg(test)]\nmod tests {{\n{MATCH}}}\n");
        assert!(found(faults, ENGINE, &in_tests).is_empty());
    }

    #[test]
    fn an_engine_or_worker_that_names_a_state_is_found() {
        for line in [
            "const MAY_EXPIRE: [StateName; 2] = [StateName::Completed, StateName::Retryable];",
            "if state == StateName::Unknown {",
            "use onlyonce_core::record::StateName::{Completed, Running};",
            "use onlyonce_core::record::StateName::*;",
            "state: Some(record::StateName::Running),",
        ] {
            for path in
                ["crates/onlyonce-store/src/postgres/reap.rs", "crates/onlyonce/src/worker/sweeper.rs"]
            {
                assert_eq!(found(faults, path, line).len(), 1, "{path}: {line}");
            }
        }
    }

    #[test]
    fn all_states_and_their_spelling_may_be_used_anywhere() {
        for line in [
            "for state in StateName::ALL {",
            "query.state.map(StateName::as_str)",
            "\"running\" => Some(StateName::Running),",
            "StateName::Running => \"running\",",
        ] {
            assert_eq!(found(faults, ENGINE, line), [""; 0], "{line}");
        }
        assert_eq!(found(faults, ENGINE, "\"running\" => Some(StateName::Unknown),").len(), 1);
    }

    #[test]
    fn a_request_is_compared_with_a_record_in_the_machine_alone() {
        let line = "if request.fingerprint.matches(&record.fingerprint) {";
        assert_eq!(found(faults, ENGINE, line).len(), 1);
        assert!(found(faults, "crates/onlyonce-core/src/machine.rs", line).is_empty());
    }

    #[test]
    fn comments_and_other_types_are_no_comparison() {
        let text = "/// See [`State::Running`] and [`StateName::Running`].\nlet b = BreakerState::Running;\n";
        assert!(found(faults, ENGINE, text).is_empty());
    }
}
