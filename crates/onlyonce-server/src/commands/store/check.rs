//! `onlyonce store check`: checks a store's file for damage.

use std::io::{self, Write};

use anyhow::Result;
use onlyonce::store::ErrorKind;
use onlyonce::store::sqlite::Health;
use serde_json::json;

use crate::Ended;
use crate::cli::Check;

pub(crate) async fn run(arguments: &Check) -> Result<Ended> {
    let health = match arguments.place.open()? {
        Ok(guest) => guest.check().await?,
        // The file is damaged: that is a result, not an error.
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            Health { records: 0, faults: vec![error.to_string()] }
        }
        Err(error) => return Err(error.into()),
    };
    let is_whole = health.faults.is_empty();
    let mut out = io::stdout().lock();
    if arguments.place.json {
        let result = json!({ "whole": is_whole, "records": health.records, "faults": health.faults });
        writeln!(out, "{result:#}")?;
    } else if is_whole {
        writeln!(out, "intact: {} records, all readable", health.records)?;
    } else {
        writeln!(out, "damaged: restore the file from a backup")?;
        for fault in &health.faults {
            writeln!(out, "  {}", fault.replace('\n', " "))?;
        }
    }
    Ok(if is_whole { Ended::Yes } else { Ended::No })
}
