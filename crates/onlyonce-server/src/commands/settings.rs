//! `onlyonce settings`: prints every setting with its default, as a settings file.

use std::io::{self, Write};

use anyhow::Result;

use crate::Ended;
use crate::cli::PrintSettings;
use crate::config::page;

pub(crate) fn run(arguments: &PrintSettings) -> Result<Ended> {
    let page = if arguments.markdown { page::markdown() } else { page::example() };
    io::stdout().lock().write_all(page.as_bytes())?;
    Ok(Ended::Yes)
}
