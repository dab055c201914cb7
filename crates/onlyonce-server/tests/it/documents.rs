//! Documentation that must agree with the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use onlyonce_core::refusal::Code;

pub(crate) fn page(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// O06: ADM-12
#[test]
fn every_code_has_a_section_and_every_section_a_code() {
    let errors = page("docs/errors.md");
    let sections: BTreeSet<_> = errors.lines().filter_map(|line| line.strip_prefix("## `")).collect();
    let sections: BTreeSet<_> = sections.into_iter().filter_map(|line| line.strip_suffix('`')).collect();
    let codes: BTreeSet<_> = Code::ALL.into_iter().map(Code::as_str).collect();
    assert_eq!(sections, codes);
}

/// O06
#[test]
fn every_section_names_its_status_and_whether_to_retry() {
    let errors = page("docs/errors.md");
    for code in Code::ALL {
        let (_, rest) = errors.split_once(&format!("## `{code}`\n")).expect("it has a section");
        let section = rest.split("\n## ").next().unwrap_or_default();
        let retry = if code.is_retryable() { "retry: yes" } else { "retry: no" };
        assert!(section.contains(&code.status().to_string()), "{code}: {section}");
        assert!(section.contains(retry), "{code}: {section}");
    }
}

#[test]
fn the_service_of_the_readme_is_one_that_compiles() {
    let example = page("crates/onlyonce/examples/readme.rs");
    let (_, program) = example.split_once("\n\n").expect("a line of documentation, then the program");
    assert!(page("README.md").contains(&format!("```rust\n{program}```\n")));
}

/// What the guide shows of the examples is in them, and they run.
#[test]
fn the_probes_of_the_guide_are_those_of_the_examples() {
    let guide = page("docs/guide.md");
    for (example, from, to) in [
        ("examples/probe/service.py", "def charge(", "\n\n\nclass Service"),
        (
            "crates/onlyonce/examples/probe.rs",
            "/// Whether the payment of an attempt happened.",
            "\n\n#[tokio::main]",
        ),
    ] {
        let program = page(example);
        let (_, rest) = program.split_once(from).expect("it begins there");
        let (part, _) = rest.split_once(to).expect("it ends there");
        assert!(guide.contains(&format!("\n{from}{part}\n```\n")), "{example}");
    }
}

/// Every field of the policy, by the name it has in settings.
#[test]
fn every_setting_is_on_its_page() {
    let settings = page("docs/settings.md");
    for name in [
        "dialect",
        "header",
        "key_from",
        "syntax",
        "methods",
        "required",
        "key_chars_min",
        "key_chars_max",
        "personal_data",
        "scope",
        "anonymous",
        "effects",
        "downstream_retention",
        "retention",
        "on_expired",
        "lease",
        "deadline",
        "horizon",
        "in_flight",
        "wait_max",
        "release",
        "unknown",
        "on_5xx",
        "store_down",
        "store_timeout",
        "request_bytes_max",
        "response_bytes_max",
        "not_replayed",
        "fingerprint.body",
        "fingerprint.ignore",
        "fingerprint.headers",
        "fingerprint.secrets",
    ] {
        assert!(settings.contains(&format!("| `{name}` |")), "{name}");
    }
}

/// D04: every preset has its line with its version, and where it follows somebody else's document a section of its own.
#[test]
fn every_preset_is_on_its_page() {
    let (presets, settings) = (page("docs/presets.md"), page("docs/settings.md"));
    for name in onlyonce::Dialect::names() {
        let version = onlyonce::Dialect::named(name).expect("it is one").version;
        let line = presets.lines().find(|line| line.starts_with("| ") && line.contains(&format!("`{name}`")));
        assert!(line.is_some_and(|line| line.contains(&*version)), "{name}: {line:?}");
        assert!(settings.contains(&format!("`{name}`")), "{name}");
    }
}

/// The features that the README asks for are there.
#[test]
fn the_dependencies_of_the_readme_can_be_had() {
    let readme = page("README.md");
    let manifest: toml::Table = page("crates/onlyonce/Cargo.toml").parse().expect("it is TOML");
    let features = manifest["features"].as_table().expect("there are features");
    let wanted = readme.split("```toml\n").skip(1).filter_map(|block| block.split_once("```"));
    let wanted: Vec<toml::Table> = wanted.filter_map(|(block, _)| block.parse().ok()).collect();
    let ours = wanted
        .iter()
        .filter_map(|block| block.get("dependencies")?.get("onlyonce"))
        .next()
        .expect("it is named");
    for feature in ours["features"].as_array().expect("features") {
        let name = feature.as_str().expect("text");
        assert!(features.contains_key(name), "{name}");
    }
}
