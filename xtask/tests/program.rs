//! `cargo xtask bench` and `cargo xtask chaos` are other packages' programs. A shell script stands in for cargo here: it
//! prints what it was asked to run, and exits with the code that the program would have had.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

const CARGO: &str = "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit \"$EXIT_CODE\"\n";

fn xtask(test: &str, arguments: &[&str], exit_code: i32) -> Output {
    let folder = std::env::temp_dir().join(format!("onlyonce-xtask-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let cargo: PathBuf = folder.join("cargo");
    std::fs::write(&cargo, CARGO).unwrap();
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let xtask = xtask.args(arguments).env("CARGO", &cargo).env("EXIT_CODE", exit_code.to_string());
    let output = xtask.output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    output
}

#[test]
fn arguments_reach_the_program_as_they_are() {
    let output = xtask("arguments", &["bench", "gateway", "--keys", "7", "--help"], 0);
    let words = "run\n--quiet\n--package\nonlyonce-bench\n--\ngateway\n--keys\n7\n--help\n";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), words);
}

#[test]
fn the_exit_code_of_the_program_is_that_of_the_command() {
    for exit_code in [0, 1, 2] {
        let output = xtask("exit", &["chaos", "--minutes", "1"], exit_code);
        assert_eq!(output.status.code(), Some(exit_code));
    }
}

#[test]
fn a_command_that_does_not_exist_is_an_error() {
    let output = xtask("unknown", &["benhc"], 0);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("\"benhc\" is no command") && error.contains("  bench "), "{error}");
}
