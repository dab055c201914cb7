//! Names of functions, modules and types: what a reader of this project does not expect to meet.

use super::{Fault, code, is_exempt};
use crate::files::File;

/// Prefixes that say nothing about what the function does or gives.
const PREFIXES: [(&str, &str); 3] = [
    ("get_", "a function that gives is named after what it gives"),
    ("handle_", "name what is done"),
    ("process_", "name what is done"),
];
/// What the standard library has made everyone expect.
const EXPECTED: [&str; 3] = ["get_mut", "get_or_insert", "get_or_insert_with"];
const MODULES: [&str; 5] = ["util", "utils", "helper", "helpers", "misc"];
const TYPES: [&str; 4] = ["pub struct ", "pub enum ", "pub trait ", "pub type "];

pub(super) fn faults(files: &[File]) -> Vec<Fault> {
    let rust = files.iter().filter(|file| file.ends_with(".rs") && !is_exempt(file));
    rust.flat_map(|file| module(file).into_iter().chain(of_lines(file))).collect()
}

fn module(file: &File) -> Option<Fault> {
    let stem = stems(&file.path).into_iter().last()?;
    let message = format!("a module named \"{stem}\" collects what has no home; name it after what is in it");
    MODULES.contains(&stem.as_str()).then(|| Fault::of(&file.path, "names", message))
}

fn of_lines(file: &File) -> Vec<Fault> {
    let stems = stems(&file.path);
    let mut faults = Vec::new();
    for (number, line) in file.lines() {
        let code = code(line);
        faults.extend(prefix(code).map(|message| Fault::at(file, number, "names", message)));
        faults.extend(repetition(code, &stems).map(|message| Fault::at(file, number, "names", message)));
    }
    faults
}

fn prefix(code: &str) -> Option<String> {
    let (_, after) = code.split_once("fn ")?;
    let name = identifier(after);
    let (prefix, remedy) = PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix))?;
    (!EXPECTED.contains(&name)).then(|| format!("\"{name}\" begins with \"{prefix}\"; {remedy}"))
}

/// `StoreError` in the store: at the call site it is `store::StoreError`.
fn repetition(code: &str, stems: &[String]) -> Option<String> {
    let after = TYPES.iter().find_map(|kind| code.trim_start().strip_prefix(kind))?;
    let name = identifier(after);
    let stem = stems.iter().find(|stem| {
        let rest = name.strip_prefix(camel(stem).as_str());
        rest.is_some_and(|rest| rest.starts_with(|char: char| char.is_uppercase()))
    })?;
    let short = &name[camel(stem).len()..];
    Some(format!("\"{name}\" repeats its module; name it \"{short}\", which reads {stem}::{short}"))
}

/// The words this file's types are reached by: the crate's last, its folders, itself.
fn stems(path: &str) -> Vec<String> {
    let parts = path.trim_end_matches(".rs").split('/').skip(1);
    // `error` is re-exported by its parent: `store::ErrorKind` repeats nothing.
    let parts = parts.filter(|part| !matches!(*part, "src" | "lib" | "main" | "mod" | "tests" | "error"));
    parts.map(|part| part.rsplit('-').next().unwrap_or(part).to_owned()).collect()
}

fn camel(stem: &str) -> String {
    stem.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}

fn identifier(text: &str) -> &str {
    text.split(|char: char| !char.is_alphanumeric() && char != '_').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::tests::found;
    use super::*;

    #[test]
    fn empty_prefixes_are_found() {
        let text = "pub fn get_record() {}\nasync fn handle_request() {}\nfn get_mut() {}\n// fn get_x()\nfn target() {}\n";
        let found = found(faults, "crates/onlyonce/src/engine.rs", text);
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn a_type_that_repeats_its_module_is_found() {
        let error = found(
            faults,
            "crates/onlyonce-store/src/error.rs",
            "pub struct StoreError;\npub struct Error;\npub enum ErrorKind {}\n",
        );
        assert_eq!(error.len(), 1, "{error:?}");
        assert!(error[0].contains("store::Error"), "{error:?}");
        assert_eq!(
            found(faults, "crates/onlyonce-store/src/outbox.rs", "pub struct OutboxMessage;").len(),
            1
        );
        assert_eq!(
            found(faults, "crates/onlyonce-core/src/record.rs", "pub enum StateName {}\npub struct Record;")
                .len(),
            0
        );
    }

    #[test]
    fn a_module_for_everything_is_found() {
        assert_eq!(found(faults, "crates/onlyonce/src/util.rs", "").len(), 1);
        assert_eq!(found(faults, "crates/onlyonce/src/utils/mod.rs", "").len(), 1);
    }
}
