//! The program `onlyonce`, as a library: `main.rs` only calls it, so that tests can start parts of it in their process.
//!
//! Not meant for other programs; use the layer, `onlyonce`.

mod admin;
mod caller;
mod cli;
mod commands;
mod config;
mod dashboard;
mod demo;
mod gateway;
mod logs;
mod metric;
mod node;
mod outgoing;
mod probe;
mod problem;
mod published;
mod relay;
mod saying;
mod store;
mod telemetry;
#[doc(hidden)]
pub mod testing;
mod tls;
mod view;
mod webhook;
mod whole;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::cli::{Cli, Command};
use crate::commands::failure;

/// Runs the command of this process' arguments.
pub async fn run() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return refused(&error),
    };
    let as_json = command.has_json_errors();
    let told = |ended| Ok(failure::told(ended, as_json));
    let ended = match command {
        Command::Serve(arguments) => commands::serve::run(&arguments).await,
        Command::Demo(arguments) => demo::run(&arguments).await,
        Command::Check(arguments) => commands::check::run(&arguments),
        Command::Settings(arguments) => commands::settings::run(&arguments),
        Command::Migrate(arguments) => commands::migrate::run(&arguments).await,
        Command::Keys(verb) => told(commands::keys::run(verb).await),
        Command::Outbox(verb) => told(commands::outbox::run(verb).await),
        Command::Log(arguments) => told(commands::log::run(&arguments).await),
        Command::Sweep(arguments) => told(commands::sweep::run(&arguments).await),
        Command::Reap(arguments) => told(commands::reap::run(&arguments).await),
        Command::Relay(arguments) => told(commands::relay::run(&arguments).await),
        Command::Epoch(verb) => told(commands::epoch::run(&verb).await),
        Command::Ledger(arguments) => told(commands::ledger::run(&arguments).await),
        Command::Audit(arguments) => told(commands::audit::run(&arguments).await),
        Command::Conform(arguments) => told(commands::conform::run(&arguments).await),
        Command::Doctor(arguments) => told(commands::doctor::run(&arguments).await),
        Command::Store(verb) => commands::store::run(verb).await,
        Command::Completions(arguments) => commands::completions::run(&arguments),
        Command::Man(arguments) => commands::man::run(&arguments),
    };
    logs::flush();
    exit_code(ended)
}

/// How a command ended, unless with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Done.
    Yes,
    /// The answer is no: not found, or a failed check. The reason has been printed.
    No,
    /// It could not be done. The reason has been printed.
    Failed,
}

/// Arguments that cannot be read, or a question about them. Whoever wants JSON is told in JSON.
fn refused(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
        return exit_code(Ok(failure::tell_arguments(error)));
    }
    // Where not even this can be written, the exit code still tells.
    let _ = error.print();
    if error.use_stderr() { exit_code(Ok(Ended::Failed)) } else { exit_code(Ok(Ended::Yes)) }
}

/// The only place that knows exit codes: 0 done, 1 no, 2 error.
fn exit_code(ended: Result<Ended>) -> ExitCode {
    match ended {
        Ok(Ended::Yes) => ExitCode::SUCCESS,
        Ok(Ended::No) => ExitCode::from(1),
        Ok(Ended::Failed) => ExitCode::from(2),
        Err(error) => {
            logs::tell_error(&error);
            ExitCode::from(2)
        }
    }
}
