//! Comments: a `TODO` names an issue, and code that is not run is not kept.

use super::{Fault, is_exempt};
use crate::files::File;

const KINDS: [&str; 7] = [".rs", ".toml", ".sql", ".lua", ".sh", ".js", ".yml"];
const REMINDERS: [&str; 3] = ["TODO", "FIXME", "XXX"];

pub(super) fn faults(files: &[File]) -> Vec<Fault> {
    let sources =
        files.iter().filter(|file| !is_exempt(file) && KINDS.iter().any(|kind| file.ends_with(kind)));
    sources.flat_map(of_file).collect()
}

fn of_file(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, line) in file.lines() {
        if let Some(word) = reminder(line) {
            let message = format!("{word} without an issue; write {word}(#123), or do it now");
            faults.push(Fault::at(file, number, "comments", message));
        }
        if file.ends_with(".rs") && is_code_in_comment(line) {
            let message = "commented-out code; delete it, the history keeps it";
            faults.push(Fault::at(file, number, "comments", message));
        }
    }
    faults
}

/// A reminder that names no issue. In backticks it is only spoken about.
fn reminder(line: &str) -> Option<&'static str> {
    let word = REMINDERS.into_iter().find(|word| {
        line.split_once(word).is_some_and(|(before, after)| {
            let joins = |char: char| char.is_alphanumeric() || matches!(char, '_' | '`');
            !before.ends_with(joins) && !after.starts_with(joins)
        })
    })?;
    let names_issue = line.contains("/issues/")
        || line.split('#').skip(1).any(|rest| rest.starts_with(|char: char| char.is_ascii_digit()));
    (!names_issue).then_some(word)
}

/// Whether a plain comment reads like a statement. Sentences may end in a semicolon too, so that alone is not enough.
fn is_code_in_comment(line: &str) -> bool {
    let Some(text) = line.trim_start().strip_prefix("//") else { return false };
    if text.starts_with(['/', '!']) {
        return false;
    }
    let text = text.trim();
    let begins = |words: &[&str]| words.iter().any(|word| text.starts_with(word));
    let is_binding = text.starts_with("let ") && text.contains('=') && text.ends_with([';', '{']);
    let is_import = begins(&["use ", "pub use "]) && text.contains("::") && text.ends_with(';');
    let is_item = begins(&["fn ", "pub fn ", "async fn ", "pub async fn ", "impl ", "pub struct "])
        && text.ends_with('{');
    let is_block = begins(&["if ", "for ", "while ", "match ", "} else"]) && text.ends_with('{');
    let is_call = text.ends_with(");")
        && !text.contains(". ")
        && text.split('(').next().is_some_and(|head| !head.trim().contains(' '));
    let is_attribute = text.starts_with("#[") && text.ends_with(']');
    is_binding || is_import || is_item || is_block || is_call || is_attribute || text == "}" || text == "};"
}

#[cfg(test)]
mod tests {
    use super::super::tests::found;
    use super::*;

    fn count(line: &str) -> usize {
        found(faults, "crates/onlyonce/src/a.rs", line).len()
    }

    #[test]
    fn a_reminder_names_an_issue() {
        assert_eq!(count("// TODO: later"), 1);
        assert_eq!(count("let a = 1; // FIXME"), 1);
        for line in [
            "// TODO(#12): later",
            "// TODO https://example.org/issues/3",
            "// a `TODO` names an issue",
            "// TODOS",
        ] {
            assert_eq!(count(line), 0, "{line}");
        }
    }

    #[test]
    fn commented_out_code_is_found() {
        for line in [
            "// let x = 3;",
            "    // use std::io;",
            "// if ready {",
            "// }",
            "// store.load(id);",
            "// pub fn f() {",
            "// #[ignore]",
        ] {
            assert_eq!(count(line), 1, "{line}");
        }
    }

    #[test]
    fn sentences_are_left_alone() {
        for line in [
            "// use the store's clock;",
            "// let the caller look again;",
            "// for the caller (who waits);",
            "/// let x = 3;",
            "//! use std::io;",
            "// It is freed (see free());",
        ] {
            assert_eq!(count(line), 0, "{line}");
        }
    }
}
