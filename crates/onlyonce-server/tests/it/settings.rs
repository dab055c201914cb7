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
    assert!(told.starts_with("ok, with 1 warning\n  store: \"memory:\" forgets everything"), "{told}");
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
    assert!(told.contains("config: \"onlyonce.toml\" is in this folder and was not read"), "{told}");
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
