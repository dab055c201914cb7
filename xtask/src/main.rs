//! The project's own commands. `cargo xtask test` is all a change needs to pass; `cargo xtask --help` lists the rest.

mod bench;
mod chaos;
mod ci;
mod crash;
mod examples;
mod gateway;
mod http;
mod install;
mod mutants;
mod process;
mod repository;
mod requirements;
mod servers;
mod steps;
mod test;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Tidy, format, lints, every test, documentation and examples; with a filter, only the tests it names
    Test(test::Arguments),
    /// What `test` does, and the dependency audit
    Ci,
    /// The rules no compiler knows: layering, words, licences, links, generated pages
    Tidy,
    /// Write docs/requirements.md anew: every promise with the tests that prove it
    Requirements,
    /// Measure the layer, or the gateway, beside its baseline, and write docs/performance.md
    Bench(bench::Arguments),
    /// The servers that tests run on: install them, or start one to look at
    Engines(servers::Arguments),
    /// Kill a real process at every durable step and judge what the next one makes of it; with --all, at every pair
    Crash(crash::Arguments),
    /// Three gateways on one PostgreSQL while everything around them breaks; then every promise is judged
    Chaos(chaos::Arguments),
    /// Plant faults into a copy of the sources, one at a time, and demand that a test catches each
    Mutants(mutants::Arguments),
    /// Start the gateway before the services of examples/ and play a story on each
    Examples(examples::Arguments),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Test(arguments) => test::run(&arguments),
        Command::Ci => ci::run(),
        Command::Tidy => tidy::run(),
        Command::Requirements => requirements::run(),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Engines(arguments) => servers::run(&arguments),
        Command::Crash(arguments) => crash::run(&arguments),
        Command::Chaos(arguments) => chaos::run(&arguments),
        Command::Mutants(arguments) => mutants::run(&arguments),
        Command::Examples(arguments) => examples::run(&arguments),
    };
    match done {
        Ok(Verdict::Yes) => ExitCode::SUCCESS,
        Ok(Verdict::No) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// What a command found: a `No` has been explained where it was found, an error is something it could not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Yes,
    No,
}
