//! Findings about a server's settings, and refusal of servers that only resemble PostgreSQL.

use tokio_postgres::Client;

use super::failure::Failure;
use super::pool::Pool;
use super::row::column;
use super::url::Database;
use crate::seal::Keyring;
use crate::{Error, ErrorKind, Finding, KeyUse, Level, sql};

/// Settings that the promises depend on, as our session sees them.
pub(super) struct Settings<'a> {
    pub(super) fsync: &'a str,
    pub(super) full_page_writes: &'a str,
    pub(super) synchronous_commit: &'a str,
    /// Whether an application can complete a request by SQL.
    pub(super) has_functions: bool,
    /// What sessions of this role begin with, before ours change it.
    pub(super) role_synchronous_commit: &'a str,
}

pub(super) fn findings(settings: &Settings<'_>) -> Vec<Finding> {
    let off = |setting: &str| setting == "off";
    let mut findings = Vec::new();
    let mut add = |level, code, says: &str, remedy: &str| {
        findings.push(Finding { level, code, says: says.to_owned(), remedy: remedy.to_owned() });
    };
    if off(settings.fsync) {
        add(
            Level::Error,
            "postgres.fsync",
            "the server runs with fsync = off: a crash of its machine loses answers that were acknowledged, or the database",
            "set fsync = on in postgresql.conf, and restart the server",
        );
    }
    if off(settings.full_page_writes) {
        add(
            Level::Warning,
            "postgres.full_page_writes",
            "the server runs with full_page_writes = off: a power cut in the middle of a page may damage it",
            "set full_page_writes = on, unless the file system writes pages as a whole",
        );
    }
    if off(settings.synchronous_commit) {
        add(
            Level::Error,
            "postgres.synchronous_commit",
            "synchronous_commit is off in our sessions, although they switch it on: a crash of the server loses answers that \
             were acknowledged",
            "see what sets it between this node and the server, such as a pooler that resets sessions, and let it be",
        );
    }
    if off(settings.role_synchronous_commit) {
        add(
            Level::Note,
            "postgres.role_synchronous_commit",
            "sessions of this role begin with synchronous_commit = off; those of the gateway switch it on, and those of an application \
             that completes requests in its own transaction do not: a crash of the server loses what they committed",
            "set synchronous_commit = on for the role (ALTER ROLE), the database or the server",
        );
    }
    if !settings.has_functions {
        add(
            Level::Note,
            "postgres.functions",
            "the schema lacks the functions onlyonce_hold, onlyonce_complete and onlyonce_send, which this server could not create: \
             no application can complete a request in its own transaction; everything else works",
            "use PostgreSQL for that; once the server offers PL/pgSQL, delete row 2 of onlyonce_migration and run \"onlyonce \
             migrate\"",
        );
    }
    findings
}

/// How long the server may read all rows: nobody waits for it.
const ALL_ROWS_WITHIN: &str = "30min";

/// Which encryption keys something in the database needs. It reads every row: an index over keys would cost every write.
pub(super) async fn keys_in_use(
    pool: &Pool,
    database: &Database,
    keyring: Option<&Keyring>,
) -> Result<Vec<KeyUse>, Error> {
    let failed = |error: tokio_postgres::Error| Failure::of(database, &error);
    let mut connection = pool.connect().await?;
    let transaction = connection.client.transaction().await.map_err(failed)?;
    let patient = format!("SET LOCAL statement_timeout = '{ALL_ROWS_WITHIN}'");
    transaction.batch_execute(&patient).await.map_err(failed)?;
    let sql = sql::KEYS_IN_USE.replace("{schema}", &database.quoted_schema());
    let rows = transaction.query(&sql, &[]).await.map_err(failed)?;
    let mut found = Vec::new();
    for row in &rows {
        found.extend(sql::key_use(column(row, 0)?, column(row, 1)?, keyring));
    }
    Ok(found)
}

/// Refuses servers that speak PostgreSQL's protocol but are untested, unless the URL allows them.
pub(super) async fn refuse_untested(client: &Client, database: &Database) -> Result<(), Failure> {
    const SQL: &str = "SELECT version(), EXISTS (SELECT FROM pg_extension WHERE extname = 'citus')";
    if database.is_unproven_allowed {
        return Ok(());
    }
    let row = client.query_one(SQL, &[]).await.map_err(|error| Failure::of(database, &error))?;
    let read = row.try_get(0).and_then(|version| Ok((version, row.try_get(1)?)));
    let (version, has_citus): (&str, bool) = read.map_err(|error| Failure::of(database, &error))?;
    let Some(name) = relative(version, has_citus) else { return Ok(()) };
    let message = format!(
        "the server at {} is {name}, on which Onlyonce has not been tested; use PostgreSQL, or add unproven=true to the URL \
         to try it anyway",
        database.shown
    );
    Err(Failure::refused(ErrorKind::Misconfigured, message))
}

fn relative(version: &str, has_citus: bool) -> Option<&'static str> {
    match version {
        _ if version.contains("CockroachDB") => Some("CockroachDB"),
        _ if version.contains("-YB-") || version.contains("YugabyteDB") => Some("YugabyteDB"),
        _ if has_citus => Some("Citus"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEALTHY: Settings<'_> = Settings {
        fsync: "on",
        full_page_writes: "on",
        synchronous_commit: "on",
        has_functions: true,
        role_synchronous_commit: "on",
    };

    fn codes(settings: &Settings<'_>) -> Vec<(Level, &'static str)> {
        findings(settings).iter().map(|finding| (finding.level, finding.code)).collect()
    }

    /// X05: settings that break a promise are found; a healthy server has no findings.
    #[test]
    fn settings_that_lose_acknowledged_writes_are_found() {
        assert_eq!(codes(&HEALTHY), []);
        assert_eq!(codes(&Settings { synchronous_commit: "remote_apply", ..HEALTHY }), []);
        let all = Settings {
            fsync: "off",
            full_page_writes: "off",
            synchronous_commit: "off",
            has_functions: false,
            role_synchronous_commit: "off",
        };
        let found = [
            (Level::Error, "postgres.fsync"),
            (Level::Warning, "postgres.full_page_writes"),
            (Level::Error, "postgres.synchronous_commit"),
            (Level::Note, "postgres.role_synchronous_commit"),
            (Level::Note, "postgres.functions"),
        ];
        assert_eq!(codes(&all), found);
    }

    #[test]
    fn servers_that_resemble_postgresql_are_known_by_what_they_say() {
        for (version, has_citus, name) in [
            ("PostgreSQL 16.4 (Debian 16.4-1) on x86_64-pc-linux-gnu", false, None),
            ("PostgreSQL 16.4 (Debian 16.4-1) on x86_64-pc-linux-gnu", true, Some("Citus")),
            ("CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu)", false, Some("CockroachDB")),
            ("PostgreSQL 11.2-YB-2.18.3.0-b0 on x86_64-pc-linux-gnu", false, Some("YugabyteDB")),
        ] {
            assert_eq!(relative(version, has_citus), name, "{version}");
        }
    }
}
