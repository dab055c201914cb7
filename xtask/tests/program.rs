//! `cargo xtask bench` and `cargo xtask chaos` are programs of other packages. `cargo.sh` stands in for cargo here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::process::{Command, Output};

const CARGO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cargo.sh");

fn xtask(arguments: &[&str], exit_code: i32) -> Output {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask.args(arguments).env("CARGO", CARGO).env("EXIT_CODE", exit_code.to_string()).output().unwrap()
}

#[test]
fn arguments_reach_the_program_as_they_are() {
    let output = xtask(&["bench", "gateway", "--keys", "7", "--help"], 0);
    let words = "run\n--quiet\n--package\nonlyonce-bench\n--\ngateway\n--keys\n7\n--help\n";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), words);
}

#[test]
fn the_exit_code_of_the_program_is_that_of_the_command() {
    for exit_code in [0, 1, 2] {
        let output = xtask(&["chaos", "--minutes", "1"], exit_code);
        assert_eq!(output.status.code(), Some(exit_code));
    }
}

#[test]
fn a_command_that_does_not_exist_is_an_error() {
    let output = xtask(&["benhc"], 0);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("\"benhc\" is no command") && error.contains("  bench "), "{error}");
}
