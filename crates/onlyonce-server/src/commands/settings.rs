//! `onlyonce settings`: prints every setting with its default, as a settings file, as tables, or as a schema for editors.

use std::io::{self, Write};

use anyhow::Result;

use crate::Ended;
use crate::cli::PrintSettings;
use crate::config::{page, schema};

pub(crate) fn run(arguments: &PrintSettings) -> Result<Ended> {
    let page = match arguments {
        PrintSettings { markdown: true, .. } => page::markdown(),
        PrintSettings { schema: true, .. } => schema::text(),
        PrintSettings { .. } => page::example(),
    };
    io::stdout().lock().write_all(page.as_bytes())?;
    Ok(Ended::Yes)
}
