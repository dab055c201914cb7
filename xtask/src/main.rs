//! The project's own commands. `cargo xtask test` is all a change needs to pass; `cargo xtask --help` lists the rest.
//!
//! A newcomer's first command builds this crate, so it is small: bench and chaos are packages of their own, which are built
//! when they are asked for (`program.rs`).

mod arguments;
mod ci;
mod crash;
mod engines;
mod examples;
mod field;
mod files;
mod memory;
mod mutants;
mod package;
mod program;
mod proxies;
mod requirements;
mod steps;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;
use onlyonce_testkit::verdict::{Verdict, exit_code};

use self::arguments::Arguments;

/// A command, as `cargo xtask --help` lists it.
struct Command {
    name: &'static str,
    /// What may follow its name.
    usage: &'static str,
    about: &'static str,
    run: Run,
}

#[derive(Clone, Copy)]
enum Run {
    /// A function of this crate.
    Here(fn(Arguments) -> Result<Verdict>),
    /// A package of its own, which reads its arguments itself.
    Program(&'static str),
}

const COMMANDS: [Command; 15] = [
    Command {
        name: "test",
        usage: "[WORD]...",
        about: "Everything a change must pass; with words, only the tests whose names contain one of them",
        run: Run::Here(test::run),
    },
    Command {
        name: "ci",
        usage: "",
        about: "What `test` does, then builds each crate from what was packed, and looks for advisories",
        run: Run::Here(ci::run),
    },
    Command {
        name: "crates",
        usage: "",
        about: "Pack every crate that is published, and build each from what was packed; `test` only packs them",
        run: Run::Here(ci::run_crates),
    },
    Command {
        name: "deny",
        usage: "",
        about: "The dependency audit: bans, licences, sources, advisories; `test` does it without advisories",
        run: Run::Here(ci::run_deny),
    },
    Command {
        name: "package",
        usage: "[--program=FILE]",
        about: "Build the static binary and every package around it, and install and start each; FILE is a program that is built already",
        run: Run::Here(package::run),
    },
    Command {
        name: "tidy",
        usage: "",
        about: "The rules no compiler knows: layering, words, licences, links, generated pages",
        run: Run::Here(tidy::run),
    },
    Command {
        name: "requirements",
        usage: "",
        about: "Write docs/requirements.md anew: every promise with the tests that prove it",
        run: Run::Here(requirements::run),
    },
    Command {
        name: "engines",
        usage: "install|start [postgres|mysql|redis|dynamodb]",
        about: "The servers that tests run on: install them, or start one, print the URL of a store on it, and stop it when standard input ends",
        run: Run::Here(engines::run),
    },
    Command {
        name: "crash",
        usage: "[--all] [WORD]",
        about: "Kill a real process at every durable step and judge the next one; --all: at every pair of steps",
        run: Run::Here(crash::run),
    },
    Command {
        name: "mutants",
        usage: "[TEXT]...",
        about: "Plant the faults of xtask/mutants.txt one at a time: a test must catch each; with TEXT, only those whose name or file contains it",
        run: Run::Here(mutants::run),
    },
    Command {
        name: "examples",
        usage: "[NAME]",
        about: "Start the gateway in front of the services of examples/ and test each",
        run: Run::Here(examples::run),
    },
    Command {
        name: "proxies",
        usage: "[--program=FILE] [NAME]",
        about: "Start each proxy of examples/proxies/ in front of the gateway and test it; FILE is a program that is built already",
        run: Run::Here(proxies::run),
    },
    Command {
        name: "field",
        usage: "[--program=FILE] [FOLDER]...",
        about: "Test published idempotency libraries with `onlyonce conform`, and write docs/field.md and README's table",
        run: Run::Here(field::run),
    },
    Command {
        name: "bench",
        usage: "[ARGUMENT]...",
        about: "Measure the layer, or the gateway, beside its baseline; see `bench --help`",
        run: Run::Program(program::BENCH),
    },
    Command {
        name: "chaos",
        usage: "[ARGUMENT]...",
        about: "Three gateways on one store while everything around them fails; see `chaos --help`",
        run: Run::Program(program::CHAOS),
    },
];

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let Some(name) = words.next() else {
        eprint!("{}", help());
        return ExitCode::from(2);
    };
    let words: Vec<String> = words.collect();
    if matches!(name.as_str(), "--help" | "-h" | "help") {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        eprint!("error: \"{name}\" is no command\n\n{}", help());
        return ExitCode::from(2);
    };
    match command.run {
        Run::Here(_) if words.iter().any(|word| matches!(word.as_str(), "--help" | "-h")) => {
            print!("{}", command.help());
            ExitCode::SUCCESS
        }
        Run::Here(run) => exit_code(&run(Arguments::new(words))),
        Run::Program(package) => exit_code(&program::become_program(package, &words)),
    }
}

fn help() -> String {
    let commands: String =
        COMMANDS.iter().map(|command| format!("  {:<13} {}\n", command.name, command.about)).collect();
    format!("The project's own commands\n\nUsage: cargo xtask COMMAND\n\n{commands}")
}

impl Command {
    fn help(&self) -> String {
        format!("{}\n\nUsage: cargo xtask {} {}\n", self.about, self.name, self.usage)
    }
}
