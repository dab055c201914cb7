//! Nothing of the machine it was written on: no paths of ours, no registry but the public one.

use super::{Fault, is_exempt};
use crate::files::File;

/// Folders that exist on somebody's machine only. The last is told in two parts, so that this very file names no such path.
const FOLDERS: [&str; 3] = ["/home/", "/Users/", concat!("/", "root/")];
/// What a registry other than the public one is configured with.
const REGISTRIES: [&str; 5] =
    ["replace-with", "[source.", "[registries", "CARGO_REGISTRIES_", "registry-index"];
const PUBLIC_REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
const PRIVATE_HOSTS: [&str; 4] = [".internal", ".corp", ".lan", ".intranet"];

pub(super) fn faults(files: &[File]) -> Vec<Fault> {
    files.iter().flat_map(of_file).collect()
}

fn of_file(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, line) in file.lines() {
        let message = if is_exempt(file) { lock_fault(file, line) } else { text_fault(file, line) };
        faults.extend(message.map(|message| Fault::at(file, number, "origins", message)));
    }
    faults
}

fn lock_fault(file: &File, line: &str) -> Option<String> {
    let source = line.strip_prefix("source = ").filter(|_| file.ends_with("Cargo.lock"))?;
    (!source.contains(PUBLIC_REGISTRY))
        .then(|| format!("{source} is not the public registry; depend on a published release"))
}

fn text_fault(file: &File, line: &str) -> Option<String> {
    if let Some(folder) = FOLDERS.iter().find(|folder| has_path(line, folder)) {
        return Some(format!(
            "\"{folder}\" is a folder of one machine; use a relative path or an environment variable"
        ));
    }
    // In Rust these are ordinary words.
    if let Some(word) = REGISTRIES.iter().find(|word| !file.ends_with(".rs") && line.contains(*word)) {
        return Some(format!(
            "\"{word}\" names another registry; leave that to the user's own configuration"
        ));
    }
    let host = hosts(line).find(|host| PRIVATE_HOSTS.iter().any(|private| host.ends_with(private)))?;
    Some(format!("\"{host}\" is a private host; use a name under example.org"))
}

/// Whether the folder begins a path, rather than standing in the middle of one (`crates/work/`).
fn has_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|char| !char.is_alphanumeric() && !matches!(char, '.' | '-' | '_' | '*' | '}'))
    })
}

fn hosts(line: &str) -> impl Iterator<Item = &str> {
    let ends = |char: char| !(char.is_alphanumeric() || matches!(char, '.' | '-'));
    line.split("://").skip(1).filter_map(move |rest| rest.split(ends).next())
}

#[cfg(test)]
mod tests {
    use super::super::tests::found;
    use super::*;

    #[test]
    fn folders_of_one_machine_are_found() {
        let superuser = format!("path = \"{}.cargo\"", FOLDERS[2]);
        for line in ["see /Users/me/a.md", &superuser, "`/home/me`: /home/me/x"] {
            assert_eq!(found(faults, "docs/a.md", line).len(), 1, "{line}");
        }
        for line in ["crates/work/a.rs", "https://example.org/home/", "workspace/root/"] {
            assert_eq!(found(faults, "docs/a.md", line).len(), 0, "{line}");
        }
    }

    #[test]
    fn other_registries_are_found() {
        assert_eq!(
            found(faults, ".cargo/config.toml", "[source.crates-io]\nreplace-with = \"mirror\"\n").len(),
            2
        );
        assert_eq!(found(faults, "Cargo.lock", "source = \"sparse+https://mirror.example.org/\"\n").len(), 1);
        assert_eq!(found(faults, "Cargo.lock", &format!("source = \"{PUBLIC_REGISTRY}\"\n")).len(), 0);
        assert_eq!(found(faults, "README.md", "from http://crates.build.internal/index").len(), 1);
    }
}
