//! `onlyonce completions`: completions for a shell.

use std::io::{self, Write};

use anyhow::Result;
use clap::CommandFactory;

use crate::Ended;
use crate::cli::{Cli, Completions};

pub(crate) fn run(arguments: &Completions) -> Result<Ended> {
    // Into memory first: writing to a closed pipe is not a reason to panic.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "onlyonce", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(Ended::Yes)
}
