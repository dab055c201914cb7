//! `onlyonce migrate`: migrates the schema of a store to this release's, or prints what its roles are granted.

use std::io::{self, Write};

use anyhow::Result;
use onlyonce::store::{Migration, Schema};
use serde_json::{Value, json};

use crate::cli::Migrate;
use crate::store::Url;
use crate::{Ended, config};

pub(crate) async fn run(arguments: &Migrate) -> Result<Ended> {
    let url = config::store(&arguments.sources())?;
    if let Some(grants) = &arguments.grants {
        io::stdout().lock().write_all(url.grants(grants)?.as_bytes())?;
        return Ok(Ended::Yes);
    }
    let Some(before) = url.schema().await? else {
        return tell(arguments, &url, None);
    };
    if !arguments.json {
        announce(&url, &before)?;
    }
    if !before.pending.is_empty() && !arguments.dry_run {
        url.migrate().await?;
    }
    tell(arguments, &url, Some(&before))
}

/// Prints what will be applied.
fn announce(url: &Url, schema: &Schema) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let Schema { version, latest, pending } = schema;
    writeln!(out, "store {url}: schema version {version}; this release needs {latest}")?;
    for migration in pending {
        writeln!(
            out,
            "\nmigration {} \"{}\"{}",
            migration.number,
            migration.name,
            caution(schema, migration)
        )?;
        writeln!(out, "{}", migration.sql.trim_end())?;
    }
    Ok(())
}

/// What a step means for running nodes. Nothing, if there was no schema yet.
fn caution(schema: &Schema, migration: &Migration) -> &'static str {
    if schema.version == 0 {
        ""
    } else if migration.needs > schema.version {
        "; nodes of older releases cannot work with it: stop them first"
    } else {
        "; nodes of the previous release may keep running"
    }
}

fn tell(arguments: &Migrate, url: &Url, schema: Option<&Schema>) -> Result<Ended> {
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{:#}", as_json(arguments, url, schema))?;
        return Ok(Ended::Yes);
    }
    let Some(schema) = schema else {
        writeln!(out, "store {url} has no schema; nothing to do")?;
        return Ok(Ended::Yes);
    };
    let count = match schema.pending.len() {
        1 => "1 migration".to_owned(),
        count => format!("{count} migrations"),
    };
    match (schema.pending.is_empty(), arguments.dry_run) {
        (true, _) if schema.version > schema.latest => {
            writeln!(out, "it was made by a newer release, and this release can use it; nothing to do")?;
        }
        (true, _) => writeln!(out, "nothing to do")?,
        (false, true) => writeln!(out, "\nwould apply {count}; nothing was changed")?,
        (false, false) => writeln!(out, "\napplied {count}: schema version {}", schema.latest)?,
    }
    Ok(Ended::Yes)
}

/// `done`: nothing is missing any more.
fn as_json(arguments: &Migrate, url: &Url, schema: Option<&Schema>) -> Value {
    let pending: &[Migration] = schema.map_or(&[], |schema| &schema.pending);
    let done = pending.is_empty() || !arguments.dry_run;
    let steps = pending.iter().map(
        |step| json!({ "number": step.number, "name": step.name, "needs": step.needs, "sql": step.sql }),
    );
    json!({
        "store": url.to_string(),
        "done": done,
        "version_before": schema.map(|schema| schema.version),
        "version": schema.map(|schema| if done { schema.version.max(schema.latest) } else { schema.version }),
        "latest": schema.map(|schema| schema.latest),
        "migrations": steps.collect::<Vec<_>>(),
    })
}
