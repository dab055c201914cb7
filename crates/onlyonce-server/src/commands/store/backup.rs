//! `onlyonce store backup`: a consistent copy of a store in use.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use onlyonce::store::sqlite::Progress;
use serde_json::json;

use crate::Ended;
use crate::cli::Backup;

pub(crate) async fn run(arguments: &Backup) -> Result<Ended> {
    let guest = arguments.place.open()??;
    let (from, to) = (guest.path().display().to_string(), arguments.to.display().to_string());
    guest.may_backup(&arguments.to)?;
    if !arguments.dry_run {
        guest.backup(&arguments.to, progress()).await?;
    }
    let bytes = std::fs::metadata(if arguments.dry_run { guest.path() } else { &arguments.to })?.len();
    if arguments.place.json {
        let result = json!({ "done": !arguments.dry_run, "from": from, "to": to, "bytes": bytes });
        writeln!(io::stdout(), "{result:#}")?;
    } else if arguments.dry_run {
        writeln!(io::stdout(), "would copy \"{from}\", about {bytes} bytes, to \"{to}\"")?;
    } else {
        writeln!(io::stdout(), "copied \"{from}\" to \"{to}\": {bytes} bytes")?;
    }
    Ok(Ended::Yes)
}

/// Prints progress to a terminal, and nothing otherwise.
fn progress() -> impl FnMut(Progress) + Send + 'static {
    let is_watched = io::stderr().is_terminal();
    move |progress| {
        if !is_watched || progress.pages == 0 {
            return;
        }
        let percent = progress.pages_done * 100 / progress.pages;
        let end = if progress.pages_done == progress.pages { "\n" } else { "" };
        // The copy continues even if progress cannot be printed.
        let _ = write!(io::stderr(), "\rcopied {percent} % of {} pages{end}", progress.pages);
    }
}
