//! `onlyonce man`: the manual pages.

use std::io::{self, Write};

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::Ended;
use crate::cli::{Cli, Man};

pub(crate) fn run(arguments: &Man) -> Result<Ended> {
    match &arguments.dir {
        Some(folder) => clap_mangen::generate_to(Cli::command(), folder).with_context(|| {
            format!(
                "the pages cannot be written to \"{}\"; use an existing folder that this user may write to",
                folder.display()
            )
        })?,
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            io::stdout().lock().write_all(&page)?;
        }
    }
    Ok(Ended::Yes)
}
