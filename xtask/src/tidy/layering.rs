//! Who may depend on whom. An entry here is a decision: adding one to the core needs a note in ARCHITECTURE.md.

use serde_json::Value;

use super::Fault;
use crate::files::File;

/// The rules are pure: nothing here reads a clock, draws a random number, serialises, awaits or does I/O.
const CORE: &[&str] = &["bytes", "hmac", "http", "sfv", "sha2"];

/// The seam knows engines and nothing of HTTP services; DynamoDB is called over HTTP. `rustix` is for tests that let the process die.
const STORE: &[&str] = &[
    "async-trait",
    "base64",
    "bytes",
    "chacha20poly1305",
    "hmac",
    "http",
    "http-body-util",
    "hyper",
    "hyper-util",
    "jiff",
    "metrics",
    "mysql_async",
    "onlyonce-core",
    "redis",
    "rusqlite",
    "rustix",
    "rustls",
    "rustls-native-certs",
    "serde_json",
    "sha2",
    "shuttle",
    "tokio",
    "tokio-postgres",
    "tokio-rustls",
    "tracing",
];

/// The layer speaks tower; axum is one of its users, behind a feature. Drivers of databases are the user's own, a feature each:
/// requests are completed in their transactions. Results of phases are JSON.
const LAYER: &[&str] = &[
    "async-trait",
    "axum",
    "bytes",
    "deadpool-postgres",
    "futures-util",
    "hashlink",
    "http",
    "http-body",
    "jiff",
    "metrics",
    "onlyonce-core",
    "onlyonce-store",
    "pin-project-lite",
    "quick_cache",
    "rand",
    "serde",
    "serde_json",
    "sqlx",
    "tokio",
    "tokio-postgres",
    "tower-layer",
    "tower-service",
    "tracing",
];

/// What users put around their HTTP client: nothing of the server's side.
const CLIENT: &[&str] = &[
    "bytes",
    "http",
    "http-body",
    "http-body-util",
    "httpdate",
    "rand",
    "serde_json",
    "thiserror",
    "tokio",
    "tower-layer",
    "tower-service",
];

/// Every test builds the test kit, and it judges the product: nothing large, and nothing of the product.
const TESTKIT: &[&str] = &["anyhow", "serde_json"];

/// A newcomer's first command builds this: no argument parser.
const XTASK: &[&str] = &["anyhow", "onlyonce-testkit", "serde_json"];

/// Programs that drive the product from outside, as a process.
const TOOL: &[&str] = &["anyhow", "clap", "onlyonce-testkit", "serde_json"];

/// The same, and what verifies the signatures of deliveries.
const CHAOS: &[&str] = &["anyhow", "base64", "clap", "hmac", "onlyonce-testkit", "serde_json", "sha2"];

/// What each crate may depend on directly; a crate that is not listed may use anything but what lies above it.
const MAY: [(&str, &[&str]); 8] = [
    ("onlyonce-core", CORE),
    ("onlyonce-store", STORE),
    ("onlyonce", LAYER),
    ("onlyonce-client", CLIENT),
    ("onlyonce-testkit", TESTKIT),
    ("onlyonce-bench", TOOL),
    ("onlyonce-chaos", CHAOS),
    ("xtask", XTASK),
];
/// The product's crates, from the bottom up.
const PRODUCT: [&str; 4] = ["onlyonce-core", "onlyonce-store", "onlyonce", "onlyonce-server"];
/// What is not published: the product may use it in tests only.
const UNPUBLISHED: [&str; 4] = ["onlyonce-testkit", "onlyonce-bench", "onlyonce-chaos", "xtask"];

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
    let layer = |name: &str| PRODUCT.iter().position(|layer| *layer == name);
    if layer(package).is_some() && UNPUBLISHED.contains(&dependency) {
        return Some(format!("{package} may use {dependency} in tests only; make it a dev-dependency"));
    }
    if layer(package).zip(layer(dependency)).is_some_and(|(own, other)| own <= other) {
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
    let head = format!("[package]\nname = \"{package}\"\n");
    let is_its_own = |file: &&File| file.ends_with("Cargo.toml") && file.text.starts_with(&head);
    let Some(manifest) = files.iter().find(is_its_own) else {
        return Fault::of("Cargo.toml", "layering", message);
    };
    let begins =
        |line: &str| line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with(['.', ' ', '=']));
    let line = manifest.lines().find(|(_, line)| begins(line)).map(|(number, _)| number);
    Fault { path: manifest.path.clone(), line, rule: "layering", message }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::file;
    use super::*;

    fn found(package: &str, dependency: &str, kind: Option<&str>) -> Vec<Fault> {
        let text = format!("[package]\nname = \"{package}\"\n[dependencies]\n{dependency} = \"1\"\n");
        let manifest = file(&format!("some/{package}/Cargo.toml"), &text);
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
            assert_eq!((found[0].path.as_str(), found[0].line), ("some/onlyonce-core/Cargo.toml", Some(4)));
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
    fn the_product_uses_the_test_kit_in_tests_only() {
        for package in PRODUCT {
            assert_eq!(found(package, "onlyonce-testkit", None).len(), 1, "{package}");
            assert!(found(package, "onlyonce-testkit", Some("dev")).is_empty(), "{package}");
        }
    }

    #[test]
    fn the_test_kit_and_the_tools_know_nothing_of_the_product_and_stay_small() {
        for package in UNPUBLISHED {
            for dependency in ["onlyonce-core", "onlyonce", "tokio"] {
                assert_eq!(found(package, dependency, None).len(), 1, "{package} {dependency}");
            }
            assert!(found(package, "anyhow", None).is_empty(), "{package}");
        }
        assert_eq!(found("xtask", "clap", None).len(), 1);
        assert!(found("onlyonce-chaos", "clap", None).is_empty());
    }

    #[test]
    fn tests_may_use_anything() {
        assert!(found("onlyonce-core", "stateright", Some("dev")).is_empty());
    }
}
