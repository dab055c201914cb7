//! Who may depend on whom. An entry here is a decision: adding one to the core needs a note in ARCHITECTURE.md.

use serde_json::Value;

use super::Fault;
use crate::repository::File;

/// The rules are pure: nothing here reads a clock, draws a random number, serialises, awaits or does I/O.
const CORE: &[&str] = &["bytes", "hmac", "http", "sfv", "sha2"];

/// The seam knows engines and nothing of HTTP services. `rustix` is for tests that let the process die.
const STORE: &[&str] = &[
    "async-trait",
    "bytes",
    "http",
    "metrics",
    "onlyonce-core",
    "rusqlite",
    "rustix",
    "rustls",
    "rustls-native-certs",
    "sha2",
    "shuttle",
    "tokio",
    "tokio-postgres",
    "tokio-rustls",
];

/// The layer speaks tower; axum is one of its users, behind a feature.
const LAYER: &[&str] = &[
    "axum",
    "bytes",
    "futures-util",
    "http",
    "http-body",
    "jiff",
    "metrics",
    "onlyonce-core",
    "onlyonce-store",
    "pin-project-lite",
    "quick_cache",
    "rand",
    "tokio",
    "tower-layer",
    "tower-service",
    "tracing",
];

/// What each crate may depend on directly; a crate that is not listed may use anything but what lies above it.
const MAY: [(&str, &[&str]); 3] = [("onlyonce-core", CORE), ("onlyonce-store", STORE), ("onlyonce", LAYER)];
/// From the bottom up.
const ROOMS: [&str; 4] = ["onlyonce-core", "onlyonce-store", "onlyonce", "onlyonce-server"];

pub(super) fn faults(files: &[File], metadata: &Value) -> Vec<Fault> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter(|package| package["source"].is_null())
        .flat_map(|package| of_package(files, package))
        .collect()
}

fn of_package(files: &[File], package: &Value) -> Vec<Fault> {
    let name = package["name"].as_str().unwrap_or_default();
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let normal = dependencies.filter(|dependency| dependency["kind"].is_null());
    normal
        .filter_map(|dependency| dependency["name"].as_str())
        .filter_map(|dependency| Some((dependency, objection(name, dependency)?)))
        .map(|(dependency, message)| place(files, name, dependency, message))
        .collect()
}

fn objection(package: &str, dependency: &str) -> Option<String> {
    let room = |name: &str| ROOMS.iter().position(|room| *room == name);
    if room(package).zip(room(dependency)).is_some_and(|(own, other)| own <= other) {
        return Some(format!(
            "{package} must not depend on {dependency}, which lies above it; move the code down"
        ));
    }
    let (_, may) = MAY.iter().find(|(name, _)| *name == package)?;
    (!may.contains(&dependency)).then(|| {
        format!("{package} may not depend on {dependency}; do without it, or argue for it in xtask/src/tidy/layering.rs")
    })
}

/// Points at the line of the manifest, where it can be found.
fn place(files: &[File], package: &str, dependency: &str, message: String) -> Fault {
    let path = format!("crates/{package}/Cargo.toml");
    let line = files.iter().find(|file| file.path == path).and_then(|file| {
        let begins =
            |line: &str| line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with(['.', ' ', '=']));
        file.lines().find(|(_, line)| begins(line)).map(|(number, _)| number)
    });
    Fault { path, line, rule: "layering", message }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::file;
    use super::*;

    fn found(package: &str, dependency: &str, kind: Option<&str>) -> Vec<Fault> {
        let manifest =
            file(&format!("crates/{package}/Cargo.toml"), &format!("[dependencies]\n{dependency} = \"1\"\n"));
        let dependencies = json!([{ "name": dependency, "kind": kind }]);
        faults(
            &[manifest],
            &json!({ "packages": [{ "name": package, "source": null, "dependencies": dependencies }] }),
        )
    }

    #[test]
    fn the_core_stays_pure() {
        for dependency in ["tokio", "serde", "rand", "async-trait"] {
            let found = found("onlyonce-core", dependency, None);
            assert_eq!(found.len(), 1, "{dependency}");
            assert_eq!(found[0].line, Some(2));
        }
        assert!(found("onlyonce-core", "sha2", None).is_empty());
    }

    #[test]
    fn nothing_depends_on_what_lies_above_it() {
        assert_eq!(found("onlyonce-store", "onlyonce", None).len(), 1);
        assert_eq!(found("onlyonce", "onlyonce-server", None).len(), 1);
        assert!(found("onlyonce-server", "onlyonce", None).is_empty());
    }

    #[test]
    fn tests_may_use_anything() {
        assert!(found("onlyonce-core", "stateright", Some("dev")).is_empty());
    }
}
