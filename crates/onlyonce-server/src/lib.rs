//! The program `onlyonce`, as a library: `main.rs` only calls it, so that tests can start parts of it in their process.
//!
//! Not meant for other programs; use the layer, `onlyonce`.

mod admin;
mod caller;
mod cli;
mod commands;
mod config;
mod demo;
mod gateway;
mod logs;
mod node;
mod probe;
mod problem;
mod published;
mod saying;
mod store;
#[doc(hidden)]
pub mod testing;
mod tls;
mod view;
mod webhook;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::cli::{Cli, Command};

/// Runs the command of this process' arguments.
pub async fn run() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Serve(arguments) => commands::serve::run(&arguments).await,
        Command::Demo(arguments) => demo::run(&arguments).await,
        Command::Check(arguments) => commands::check::run(&arguments),
        Command::Settings(arguments) => commands::settings::run(&arguments),
        Command::Migrate(arguments) => commands::migrate::run(&arguments).await,
        Command::Store(verb) => commands::store::run(verb).await,
    };
    exit_code(ended)
}

/// How a command ended, unless with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Done.
    Yes,
    /// The answer is no: not found, or a failed check. The reason has been printed.
    No,
}

/// The only place that knows exit codes: 0 done, 1 no, 2 error.
fn exit_code(ended: Result<Ended>) -> ExitCode {
    match ended {
        Ok(Ended::Yes) => ExitCode::SUCCESS,
        Ok(Ended::No) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
