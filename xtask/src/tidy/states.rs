//! `machine.rs` alone compares the state of a record. An engine that does it is a second set of rules.

use super::{Fault, code, lines_before_tests};
use crate::files::File;

/// Where the states may be spelled out: the machine, the type itself, and its stored shape.
const MAY: [&str; 3] = [
    "crates/onlyonce-core/src/machine.rs",
    "crates/onlyonce-core/src/record.rs",
    "crates/onlyonce-store/src/codec.rs",
];
const STATES: [&str; 5] = ["Pending", "Running", "Completed", "Retryable", "Unknown"];

pub(super) fn faults(files: &[File]) -> Vec<Fault> {
    files.iter().filter(|file| is_subject(file)).flat_map(of_file).collect()
}

fn is_subject(file: &File) -> bool {
    let is_source = file.path.starts_with("crates/") && file.path.contains("/src/") && file.ends_with(".rs");
    // The checker of histories has a state of its own.
    let is_test =
        ["/conformance", "/tests", "crates/onlyonce-testkit/"].iter().any(|part| file.path.contains(part));
    // The machine and the codec may grow into folders of the same name.
    let may = MAY.iter().any(|path| file.path == *path || file.path.starts_with(&path.replace(".rs", "/")));
    is_source && !is_test && !may
}

fn of_file(file: &File) -> Vec<Fault> {
    let lines = lines_before_tests(file).filter(|(_, line)| names_a_state(code(line)));
    lines
        .map(|(number, _)| {
            let message =
                "the state of a record is compared outside machine.rs; ask a function there, or add one";
            Fault::at(file, number, "states", message)
        })
        .collect()
}

/// `State::Running`, but neither `StateName::Running` nor `BreakerState::Running`.
fn names_a_state(code: &str) -> bool {
    code.match_indices("State::").any(|(at, word)| {
        let is_whole =
            code[..at].chars().next_back().is_none_or(|char| !char.is_alphanumeric() && char != '_');
        let rest = &code[at + word.len()..];
        is_whole && STATES.iter().any(|state| rest.starts_with(state))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::found;
    use super::*;

    const MATCH: &str = "fn f() {\n    if matches!(record.state, State::Running { .. }) {}\n}\n";

    #[test]
    fn an_engine_that_matches_on_state_is_found() {
        let found = found(faults, "crates/onlyonce-store/src/memory.rs", MATCH);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("2: "), "{found:?}");
    }

    #[test]
    fn the_machine_the_codec_and_tests_may() {
        for path in [
            "crates/onlyonce-core/src/machine.rs",
            "crates/onlyonce-core/src/machine/verdict.rs",
            "crates/onlyonce-store/src/codec.rs",
            "crates/onlyonce-store/src/conformance/fencing.rs",
            "crates/onlyonce-core/tests/it/model.rs",
        ] {
            assert!(found(faults, path, MATCH).is_empty(), "{path}");
        }
        let in_tests = format!("#[cfg(test)]\nmod tests {{\n{MATCH}}}\n");
        assert!(found(faults, "crates/onlyonce/src/engine.rs", &in_tests).is_empty());
    }

    #[test]
    fn names_and_comments_are_no_comparison() {
        let text =
            "/// See [`State::Running`].\nlet name = StateName::Running;\nlet b = BreakerState::Running;\n";
        assert!(found(faults, "crates/onlyonce/src/engine.rs", text).is_empty());
    }
}
