//! `onlyonce check`, `onlyonce settings`, and the pages that are made from the table of settings.

use std::fs;
use std::path::{Path, PathBuf};

use crate::program::{Folder, onlyonce, run, text};

/// The part of `docs/settings.md` that is made stands between these.
const BEGINS: &str = "config/setting/table.rs. -->\n\n";
const ENDS: &str = "\n<!-- End of what is made. -->";
/// With this variable set, the pages are written instead of compared.
const WRITE: &str = "WRITE_PAGES";

fn page(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn agrees(path: &str, made: &str) {
    if std::env::var_os(WRITE).is_some() {
        fs::write(page(path), made).expect("the page can be written");
    }
    let page = fs::read_to_string(page(path)).expect("the page is there");
    assert!(
        page == made,
        "{path} is not what the program prints; run this test with {WRITE}=1 and look at the change"
    );
}

#[test]
fn the_example_is_what_the_program_prints() {
    agrees("onlyonce.example.toml", &text(&run(&["settings"]).stdout));
}

#[test]
fn the_reference_is_what_the_program_prints() {
    let made = text(&run(&["settings", "--markdown"]).stdout);
    let page = fs::read_to_string(page("docs/settings.md")).expect("the page is there");
    let (before, rest) = page.split_once(BEGINS).expect("the part has a beginning");
    let after = rest.split_once(ENDS).map_or_else(|| rest.trim_start_matches(&ENDS[1..]), |(_, after)| after);
    agrees("docs/settings.md", &format!("{before}{BEGINS}{made}{ENDS}{after}"));
}

#[test]
fn the_schema_is_what_the_program_prints() {
    agrees("onlyonce.schema.json", &text(&run(&["settings", "--schema"]).stdout));
}

#[test]
fn the_help_lists_every_setting() {
    let help = text(&run(&["check", "--help"]).stdout);
    for line in [
        "policy.lease [default: \"30s\"]",
        "webhooks.NAME.secrets",
        "route.match",
        "listen [default: \"127.0.0.1:8080\"]",
    ] {
        assert!(help.contains(line), "{line}");
    }
    assert!(text(&run(&["check", "-h"]).stdout).lines().count() < 20);
}

#[test]
fn check_says_ok_and_what_may_be_regretted() {
    let folder = Folder::new();
    let output = folder.run(&["check", "--upstream", "http://127.0.0.1:3000", "--store", "memory:"]);
    assert_eq!(output.status.code(), Some(0));
    let told = text(&output.stdout);
    assert!(told.starts_with("ok, with 1 warning\n  store: \"memory:\" loses all records"), "{told}");
    assert_eq!(folder.contents().len(), 0, "nothing is started");
}

#[test]
fn check_tells_all_faults_and_answers_no() {
    let folder = Folder::new();
    fs::write(folder.path().join("a.toml"), "[policy]\nlease = 5\nlaese = 3\n").unwrap();
    let output = folder.run(&["check", "--config", "a.toml"]);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stdout);
    assert!(told.starts_with("3 faults in the settings\n"), "{told}");
    assert!(
        told.contains("policy.lease: \"5\" has no unit; write 5s if seconds are meant (a.toml line 2)\n"),
        "{told}"
    );

    let output = folder.run(&["check", "--config", "a.toml", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["ok"], false);
    assert_eq!(told["faults"].as_array().map(Vec::len), Some(3));
    assert_eq!(told["faults"][0]["path"], "policy.laese");
    assert_eq!(told["faults"][0]["place"], "a.toml line 3");
}

#[test]
fn a_file_that_nobody_named_is_not_read_and_told() {
    let folder = Folder::new();
    fs::write(folder.path().join("onlyonce.toml"), "service = \"mine\"\n").unwrap();
    let arguments = ["check", "--upstream", "http://h:1"];
    let told = text(&folder.run(&arguments).stdout);
    assert!(told.contains("config: \"onlyonce.toml\" is in this folder but was not read"), "{told}");
    let printed = text(&folder.run(&[&arguments[..], &["--print"]].concat()).stdout);
    assert!(printed.lines().any(|line| line.starts_with("service = \"\" ")), "{printed}");
}

#[test]
fn the_environment_is_read_and_secrets_are_not_shown() {
    let folder = Folder::new();
    let mut command = onlyonce();
    command
        .current_dir(folder.path())
        .env("ONLYONCE_POLICY__LEASE", "9s")
        .env("HIDDEN", "hunter2-hunter2-hunter2");
    command.args([
        "check",
        "--print",
        "--upstream",
        "http://h:1",
        "--set",
        "policy.fingerprint.secrets=[\"env:HIDDEN\"]",
    ]);
    let output = command.output().unwrap();
    let told = text(&output.stdout);
    assert!(told.contains("lease = \"9s\" "), "{told}");
    assert!(told.contains("# environment ONLYONCE_POLICY__LEASE\n"), "{told}");
    assert!(told.contains("secrets = [\"env:HIDDEN\"]"), "{told}");
    assert!(!told.contains("hunter2"), "{told}");
}

/// What `check` prints of these settings, and how it ends.
fn checked(arguments: &[&str]) -> (Option<i32>, String) {
    let folder = Folder::new();
    let output = folder.run(&[&["check", "--upstream", "http://127.0.0.1:3000"], arguments].concat());
    (output.status.code(), text(&output.stdout))
}

/// A default never warns; only `check` asks what nobody but the user knows, and only until it is said.
#[test]
fn check_asks_what_a_5xx_means_where_a_second_run_does_harm() {
    let (code, told) = checked(&[]);
    assert_eq!(code, Some(0));
    let question = "question: policy.on_5xx: does an answer of 500 or 503 mean that nothing was done?";
    assert!(told.starts_with(&format!("ok\n{question}")), "{told}");
    for said in ["retry", "unknown"] {
        assert_eq!(checked(&["--set", &format!("policy.on_5xx={said}")]), (Some(0), "ok\n".to_owned()));
    }
    for (name, value) in [("effects", "keyed"), ("dialect", "stripe"), ("mode", "observe")] {
        let (_, told) = checked(&["--set", &format!("policy.{name}={value}")]);
        assert!(!told.contains("question"), "{name}: {told}");
    }
    let route =
        ["--set", "policy.effects=keyed", "--set", "route=[{match=\"POST /pay\",effects=\"opaque\"}]"];
    let (_, told) = checked(&route);
    assert!(told.contains("question: route[0].on_5xx of \"POST /pay\": does"), "{told}");
    let (_, told) = checked(&["--json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["questions"][0]["path"], "policy.on_5xx");
    assert_eq!(told["warnings"], serde_json::json!([]));
}

/// A setting that is changed alone conflicts with no default, and a conflict names what was set.
#[test]
fn a_setting_alone_conflicts_with_no_default() {
    for alone in [
        "policy.lease=2s",
        "policy.lease=1h",
        "policy.deadline=1s",
        "policy.deadline=24h",
        "policy.store_timeout=20s",
    ] {
        let (code, told) = checked(&["--set", alone]);
        assert_eq!(code, Some(0), "{alone}: {told}");
    }
    let (code, told) = checked(&["--set", "policy.lease=1h", "--set", "policy.effects=keyed"]);
    assert_eq!(code, Some(0), "{told}");
    let (code, told) = checked(&["--set", "policy.deadline=24h", "--set", "policy.effects=keyed"]);
    assert_eq!(code, Some(1), "{told}");
    assert!(
        told.contains("policy.deadline: \"24h\" leaves no time for a rerun") && told.contains("(--set)"),
        "{told}"
    );
    assert!(!told.contains("policy.downstream_retention:"), "{told}");
}

#[test]
fn check_finds_what_start_would_trip_over() {
    let (code, told) = checked(&["--store", "sqlite:/nowhere/at/all/a.db"]);
    assert_eq!(code, Some(1), "{told}");
    assert!(
        told.contains("is in the folder \"/nowhere/at/all\", which does not exist")
            && told.contains("(--store)"),
        "{told}"
    );
    let (_, told) = checked(&["--set", "policy.effects=keyd"]);
    assert!(
        told.contains("\"keyd\" is not one of local, keyed, queryable, opaque; did you mean keyed?"),
        "{told}"
    );
    let (_, told) = checked(&["--set", "policy.mode=Enforce"]);
    assert!(told.contains("did you mean enforce?"), "{told}");
    let (_, told) = checked(&["--set", "route=[{required=true}]"]);
    assert!(told.contains("route[0].match: is missing"), "{told}");
}

/// A warning names the place where the setting was written, not where its table begins.
#[test]
fn a_warning_names_the_true_source() {
    let folder = Folder::new();
    fs::write(
        folder.path().join("a.toml"),
        "upstream = \"http://h:1\"\n[policy]\nretention = \"2m\"\n\n[[route]]\nmatch = \"POST /a\"\nretention = \"1m\"\n\n[[route]]\nmatch = \"POST /b\"\nmode = \"observe\"\n",
    )
    .unwrap();
    let output = folder.run(&["check", "--config", "a.toml", "--set", "policy.anonymous=shared"]);
    let told = text(&output.stdout);
    for line in [
        "policy.retention: \"2m\" is shorter than clients may keep retrying, and a later retry runs again; use 24h (a.toml line 3)",
        "route[0].retention of \"POST /a\": \"1m\" is shorter than clients may keep retrying, and a later retry runs again; use 24h (a.toml line 7)",
        "(a.toml line 11)",
    ] {
        assert!(told.contains(line), "{line}\n{told}");
    }
    let anonymous = told.lines().find(|line| line.contains("policy.anonymous")).unwrap();
    assert!(anonymous.ends_with("(--set)"), "{anonymous}");
}

/// What the pages say of stores is what the program takes.
#[test]
fn the_pages_and_the_help_name_every_store_and_nothing_that_is_gone() {
    for verb in ["serve", "check", "doctor", "migrate"] {
        let help = text(&run(&[verb, "--help"]).stdout);
        for store in ["sqlite:PATH", "postgres://"] {
            assert!(help.contains(store), "{verb} --help has no {store}");
        }
    }
    let reference = fs::read_to_string(page("docs/settings.md")).expect("the page is there");
    assert!(reference.contains("postgres://") && reference.contains("sqlite:"), "docs/settings.md");
    for path in [
        "README.md",
        "docs/errors.md",
        "docs/guide.md",
        "docs/settings.md",
        "docs/deploy.md",
        "docs/commands.md",
    ] {
        let told = fs::read_to_string(page(path)).expect("the page is there").to_lowercase();
        for stale in
            ["is to come", "no effect yet", "has no effect", "keyed writes to one process", "not implemented"]
        {
            assert!(!told.contains(stale), "{path} says \"{stale}\"");
        }
    }
    let table = text(&run(&["settings", "--markdown"]).stdout);
    assert!(!table.contains("no effect yet"));
}
