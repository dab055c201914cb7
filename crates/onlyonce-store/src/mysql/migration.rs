//! Schema migrations, safe if many nodes start at once.
//!
//! 1. The server commits each statement that changes a schema by itself, so a step cannot be one transaction. Instead every
//!    statement of a step may be run twice, also at once: it creates what is missing and leaves what is there. A step is noted
//!    once all of it has been run; one that was broken off is run again. No lock is needed.
//!    A Galera cluster is the exception: schema changes of two of its servers at once can block each other for good, and it has
//!    no lock that both would see. There a node first writes that it has begun the step, and the others wait for it.
//! 2. Applied steps are stored with a checksum. A schema whose steps differ from this release's is refused.
//! 3. A step says which schema version a release must know to keep working: nodes of two releases can share a schema
//!    during a rolling upgrade. A release that is too old does not start; a running one refuses everything once it has
//!    read the epoch again.
//! 4. If everything is applied, nothing is written: a user that may only read and write rows is enough.
//! 5. A released step is never edited; a change is a new step.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row, Value};
use sha2::{Digest, Sha256};

use super::failure::{self, Failure};
use super::pool::{Answer, ask};
use super::row::column;
use super::url::Database;
use crate::{Error, ErrorKind, Migration, Schema, failpoint};

struct Step {
    number: u32,
    name: &'static str,
    sql: &'static str,
    /// A release must know the schema up to this number to use it.
    needs: u32,
}

impl Step {
    /// Its row of the migrations table.
    fn values(&self) -> Vec<Value> {
        vec![self.number.into(), self.name.into(), checksum(self).into(), self.needs.into()]
    }
}

macro_rules! step {
    ($number:literal, $name:literal, needs $needs:literal) => {
        Step {
            number: $number,
            name: $name,
            sql: include_str!(concat!("../migrations/mysql/", $name, ".sql")),
            needs: $needs,
        }
    };
}

const ALL: [Step; 2] = [step!(1, "0001-first", needs 1), step!(2, "0002-write-first", needs 1)];
const LATEST: u32 = 2;

/// No such table.
const NO_TABLE: u16 = 1146;
/// There is a procedure of this name already. Not every server can be told to leave it.
const PROCEDURE_EXISTS: u16 = 1304;
/// The user may not create tables, views or procedures, or drop what a view replaces.
const NOT_ALLOWED: [u16; 4] = [1142, 1044, 1227, 1370];

/// How often a node looks whether another has applied the step that it waits for.
const LOOKED_EVERY: Duration = Duration::from_millis(200);

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS onlyonce_migration (
        number     INT NOT NULL PRIMARY KEY,
        name       VARBINARY(255) NOT NULL,
        checksum   BINARY(32) NOT NULL,
        needs      INT NOT NULL,
        begun_at   DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
        applied_at DATETIME(6) NULL DEFAULT (UTC_TIMESTAMP(6))
    ) ENGINE = InnoDB";

/// Applies the missing migrations.
pub(super) async fn run(connection: &mut Conn, database: &Database) -> Result<(), Error> {
    let applied = applied(connection, database).await?;
    for step in pending(database, &applied)? {
        let failed = |error: mysql_async::Error| not_applied(database, step, &error);
        failpoint!("mysql.migrate.before");
        connection.query_drop(TABLE).await.map_err(failed)?;
        if !database.is_galera.load(Ordering::Relaxed) || begin(connection, database, step).await? {
            apply(connection, step).await.map_err(failed)?;
        }
    }
    Ok(())
}

/// Whether this node is to apply the step. If another has begun it, waits until that one is done: then no. One that has not
/// finished within a minute has died.
async fn begin(connection: &mut Conn, database: &Database, step: &Step) -> Result<bool, Error> {
    const BEGIN: &str = "
        INSERT INTO onlyonce_migration (number, name, checksum, needs, applied_at) VALUES (?, ?, ?, ?, NULL)
        ON DUPLICATE KEY UPDATE begun_at =
            IF(applied_at IS NULL AND begun_at < UTC_TIMESTAMP(6) - INTERVAL 60 SECOND, UTC_TIMESTAMP(6), begun_at)";
    loop {
        match ask(connection, BEGIN, step.values()).await {
            Ok(answer) if answer.changed > 0 => return Ok(true),
            Ok(_) => {}
            // Another has begun at the same moment.
            Err(error) if failure::code(&error) == Some(failure::DEADLOCK) => {}
            Err(error) => return Err(not_applied(database, step, &error).into()),
        }
        tokio::time::sleep(LOOKED_EVERY).await;
        if applied(connection, database).await?.iter().any(|row| row.number == step.number) {
            return Ok(false);
        }
    }
}

/// The current schema, and what is missing.
pub(super) async fn schema(connection: &mut Conn, database: &Database) -> Result<Schema, Error> {
    let applied = applied(connection, database).await?;
    let told = |step: &Step| Migration {
        number: step.number,
        name: step.name,
        sql: step.sql.to_owned(),
        needs: step.needs,
    };
    Ok(Schema {
        version: applied.iter().map(|row| row.number).max().unwrap_or(0),
        latest: LATEST,
        pending: pending(database, &applied)?.map(told).collect(),
    })
}

/// Refuses a schema that needs a newer release.
pub(super) fn check_release(database: &Database, needs: u32) -> Result<(), Failure> {
    if needs <= LATEST {
        return Ok(());
    }
    let (shown, name) = (&database.shown, &database.name);
    let message = format!(
        "database \"{name}\" at {shown} was migrated by a newer release, which this release cannot use; upgrade this \
         node"
    );
    Err(Failure::refused(ErrorKind::Misconfigured, message))
}

/// A row of the migrations table.
struct Applied {
    number: u32,
    name: String,
    checksum: Vec<u8>,
    needs: u32,
}

/// The applied migrations; none if the table is missing.
async fn applied(connection: &mut Conn, database: &Database) -> Result<Vec<Applied>, Error> {
    const SQL: &str = "
        SELECT number, name, checksum, needs FROM onlyonce_migration WHERE applied_at IS NOT NULL ORDER BY number";
    let rows = match ask(connection, SQL, Vec::new()).await {
        Ok(Answer { rows, .. }) => rows,
        Err(error) if failure::code(&error) == Some(NO_TABLE) => return Ok(Vec::new()),
        Err(error) => return Err(failure::of(database, &error).into()),
    };
    let read = |row: &Row| {
        Ok(Applied {
            number: column(row, 0)?,
            name: column::<&str>(row, 1)?.to_owned(),
            checksum: column::<&[u8]>(row, 2)?.to_vec(),
            needs: column(row, 3)?,
        })
    };
    rows.iter().map(read).collect()
}

/// The steps to apply; an error if this release does not know the schema.
fn pending<'a>(
    database: &Database,
    applied: &'a [Applied],
) -> Result<impl Iterator<Item = &'static Step> + 'a, Failure> {
    let (shown, name) = (&database.shown, &database.name);
    let refused = |message| Err(Failure::refused(ErrorKind::Misconfigured, message));
    for row in applied {
        match ALL.iter().find(|step| step.number == row.number) {
            None if row.needs <= LATEST => {}
            None => {
                return refused(format!(
                    "database \"{name}\" at {shown} has migration \"{}\" of a newer release, which this release cannot \
                     use; upgrade this node",
                    row.name
                ));
            }
            Some(step) if checksum(step) == row.checksum[..] => {}
            Some(step) => {
                return refused(format!(
                    "database \"{name}\" at {shown} was not made by migration \"{}\" of this release; restore it from a \
                     backup, or use the release that made it",
                    step.name
                ));
            }
        }
    }
    Ok(ALL.iter().filter(|step| applied.iter().all(|row| row.number != step.number)))
}

async fn apply(connection: &mut Conn, step: &Step) -> Result<(), mysql_async::Error> {
    const NOTE: &str = "
        INSERT INTO onlyonce_migration (number, name, checksum, needs) VALUES (?, ?, ?, ?)
        ON DUPLICATE KEY UPDATE applied_at = COALESCE(applied_at, UTC_TIMESTAMP(6))";
    for statement in statements(step.sql) {
        match connection.query_drop(statement).await {
            Err(error) if failure::code(&error) == Some(PROCEDURE_EXISTS) => {}
            done => done?,
        }
        failpoint!("mysql.migrate.between");
    }
    ask(connection, NOTE, step.values()).await?;
    failpoint!("mysql.migrate.after");
    Ok(())
}

/// The statements of a step. Each ends at a semicolon before an empty line: a procedure has others.
fn statements(sql: &str) -> impl Iterator<Item = &str> {
    sql.trim_end().trim_end_matches(';').split(";\n\n")
}

fn not_applied(database: &Database, step: &Step, error: &mysql_async::Error) -> Failure {
    if !failure::code(error).is_some_and(|code| NOT_ALLOWED.contains(&code)) {
        return failure::of(database, error);
    }
    let (shown, database_name, user, name) = (&database.shown, &database.name, &database.user, step.name);
    let message = format!(
        "database \"{database_name}\" at {shown} lacks migration \"{name}\", and user \"{user}\" may not apply it; run \
         \"onlyonce migrate\" as a user that may create tables, views and procedures"
    );
    Failure::refused(ErrorKind::Misconfigured, message)
}

fn checksum(step: &Step) -> [u8; 32] {
    Sha256::digest(step.sql).into()
}
