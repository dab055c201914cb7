//! Schema migrations, safe if many nodes start at once.
//!
//! 1. Each step is one transaction that first inserts its own unique number. A second node waits there until the first has
//!    committed, and then finds the step done. No other lock is needed.
//! 2. Applied steps are stored with a checksum. A schema whose steps differ from this release's is refused.
//! 3. A step says which schema version a release must know to keep working: nodes of two releases can share a schema
//!    during a rolling upgrade. A release that is too old does not start; a running one refuses everything once it has
//!    read the epoch again.
//! 4. If everything is applied, nothing is written: a role that may only read and write rows is enough.
//! 5. A released step is never edited; a change is a new step.
//! 6. Functions are left out where the server cannot create them, and nodes serve as before (`examine.rs` says so).

use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Transaction};

use super::failure::Failure;
use super::url::Database;
use crate::{ErrorKind, Migration, Schema, failpoint};

struct Step {
    number: i32,
    name: &'static str,
    sql: &'static str,
    /// A release must know the schema up to this number to use it.
    needs: i32,
    makes: Makes,
}

/// What a step makes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Makes {
    /// What nodes cannot do without.
    Tables,
    /// What only applications call.
    Functions,
}

macro_rules! step {
    ($number:literal, $name:literal, needs $needs:literal, makes $makes:ident) => {
        Step {
            number: $number,
            name: $name,
            sql: include_str!(concat!("../migrations/postgres/", $name, ".sql")),
            needs: $needs,
            makes: Makes::$makes,
        }
    };
}

const ALL: [Step; 2] =
    [step!(1, "0001-first", needs 1, makes Tables), step!(2, "0002-write-first", needs 1, makes Functions)];
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "a handful of files")]
const LATEST: i32 = ALL.len() as i32;

/// How many conflicts with other nodes are retried, and the pause between two tries.
const ROUNDS_MAX: u32 = 200;
const PAUSE: Duration = Duration::from_millis(20);

/// Applies the missing migrations.
pub(super) async fn run(client: &mut Client, database: &Database) -> Result<(), Failure> {
    for _ in 0..ROUNDS_MAX {
        let applied = applied(client, database).await?;
        refuse_old_layout(client, database, &applied).await?;
        let Some(next) = pending(database, &applied)?.next() else { return Ok(()) };
        if let Err(error) = apply(client, database, next).await
            && !is_concurrent(&error)
        {
            return Err(not_applied(database, next, &error));
        }
        if applied.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Err(Failure::doubt(database, "other processes keep changing the schema; find out what else migrates it"))
}

/// The current schema, and what is missing.
pub(super) async fn schema(client: &Client, database: &Database) -> Result<Schema, Failure> {
    let applied = applied(client, database).await?;
    refuse_old_layout(client, database, &applied).await?;
    let told = |step: &Step| Migration {
        number: step.number.unsigned_abs(),
        name: step.name,
        sql: filled(step.sql, database),
        needs: step.needs.unsigned_abs(),
    };
    Ok(Schema {
        version: applied.iter().map(|row| row.number.unsigned_abs()).max().unwrap_or(0),
        latest: LATEST.unsigned_abs(),
        pending: pending(database, &applied)?.map(told).collect(),
    })
}

/// Refuses a schema that needs a newer release.
pub(super) fn check_release(database: &Database, needs: i32) -> Result<(), Failure> {
    if needs <= LATEST {
        return Ok(());
    }
    let (shown, schema) = (&database.shown, &database.schema);
    let message = format!(
        "schema \"{schema}\" at {shown} was migrated by a newer release, which this release cannot use; upgrade this \
         node"
    );
    Err(Failure::refused(ErrorKind::Misconfigured, message))
}

/// A row of the migrations table.
struct Applied {
    number: i32,
    name: String,
    checksum: Vec<u8>,
    needs: i32,
}

/// The applied migrations; none if the table is missing. A missing schema is an error.
async fn applied(client: &Client, database: &Database) -> Result<Vec<Applied>, Failure> {
    const SQL: &str = "SELECT number, name, checksum, needs FROM {schema}.onlyonce_migration ORDER BY number";
    let rows = match client.query(&filled(SQL, database), &[]).await {
        Ok(rows) => rows,
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => {
            schema_exists(client, database).await?;
            return Ok(Vec::new());
        }
        Err(error) => return Err(Failure::of(database, &error)),
    };
    let read = |row: &tokio_postgres::Row| -> Result<Applied, tokio_postgres::Error> {
        Ok(Applied {
            number: row.try_get(0)?,
            name: row.try_get(1)?,
            checksum: row.try_get(2)?,
            needs: row.try_get(3)?,
        })
    };
    let applied = rows.iter().map(read).collect::<Result<_, _>>();
    applied.map_err(|error| {
        let message = format!(
            "table \"onlyonce_migration\" in schema \"{}\" at {} was not made by Onlyonce: {error}; use another schema",
            database.schema, database.shown
        );
        Failure::refused(ErrorKind::Misconfigured, message)
    })
}

async fn schema_exists(client: &Client, database: &Database) -> Result<(), Failure> {
    const SQL: &str = "SELECT 1 FROM pg_namespace WHERE nspname = $1";
    let rows = client.query(SQL, &[&database.schema]).await.map_err(|error| Failure::of(database, &error))?;
    if !rows.is_empty() {
        return Ok(());
    }
    // It is not created: a name mistyped on one node would make a second set of records.
    let (shown, schema) = (&database.shown, &database.schema);
    let message = format!(
        "PostgreSQL at {shown} has no schema \"{schema}\"; create it with CREATE SCHEMA {} AUTHORIZATION {}, or name \
         one that is there",
        database.quoted_schema(),
        super::url::quoted(database.user())
    );
    Err(Failure::refused(ErrorKind::Misconfigured, message))
}

/// Refuses a schema from before the first release, whose records cannot be read. Checked only if the first step is not
/// ours.
async fn refuse_old_layout(client: &Client, database: &Database, applied: &[Applied]) -> Result<(), Failure> {
    const SQL: &str = "
        SELECT 1 FROM pg_class AS known
            JOIN pg_namespace AS schemas ON schemas.oid = known.relnamespace
            LEFT JOIN pg_attribute AS attribute
                ON attribute.attrelid = known.oid AND attribute.attname = 'record' AND NOT attribute.attisdropped
        WHERE schemas.nspname = $1
          AND (known.relname = 'onlyonce_due' OR known.relname = 'onlyonce_record' AND attribute.attname IS NOT NULL)";
    let is_first_ours =
        ALL.first().is_some_and(|first| applied.iter().any(|row| row.checksum == checksum(first)));
    if is_first_ours {
        return Ok(());
    }
    let rows = client.query(SQL, &[&database.schema]).await.map_err(|error| Failure::of(database, &error))?;
    if rows.is_empty() {
        return Ok(());
    }
    let (shown, schema) = (&database.shown, &database.schema);
    let message = format!(
        "schema \"{schema}\" at {shown} has the tables of a release from before records were columns, which this one \
         does not read; nothing was changed: name a new schema, and keep the old release running on the old one until \
         its keys have expired"
    );
    Err(Failure::refused(ErrorKind::Misconfigured, message))
}

/// The steps to apply; an error if this release does not know the schema.
fn pending<'a>(
    database: &Database,
    applied: &'a [Applied],
) -> Result<impl Iterator<Item = &'static Step> + 'a, Failure> {
    for row in applied {
        match ALL.iter().find(|step| step.number == row.number) {
            None if row.needs <= LATEST => {}
            None => return Err(newer(database, row)),
            Some(step) if checksum(step) == row.checksum[..] => {}
            Some(step) => {
                let (shown, schema, name) = (&database.shown, &database.schema, step.name);
                let message = format!(
                    "schema \"{schema}\" at {shown} was not made by migration \"{name}\" of this release; restore it \
                     from a backup, or use the release that made it"
                );
                return Err(Failure::refused(ErrorKind::Misconfigured, message));
            }
        }
    }
    Ok(ALL.iter().filter(|step| applied.iter().all(|row| row.number != step.number)))
}

fn newer(database: &Database, row: &Applied) -> Failure {
    let (shown, schema) = (&database.shown, &database.schema);
    let message = format!(
        "schema \"{schema}\" at {shown} has migration \"{}\" of a newer release, which this release cannot use; \
         upgrade this node",
        row.name
    );
    Failure::refused(ErrorKind::Misconfigured, message)
}

async fn apply(client: &mut Client, database: &Database, step: &Step) -> Result<(), tokio_postgres::Error> {
    const TABLE: &str = "
        CREATE TABLE IF NOT EXISTS {schema}.onlyonce_migration (
            number     integer PRIMARY KEY,
            name       text NOT NULL,
            checksum   bytea NOT NULL,
            needs      integer NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
        )";
    const NOTE: &str = "
        INSERT INTO {schema}.onlyonce_migration (number, name, checksum, needs) VALUES ($1, $2, $3, $4)
        ON CONFLICT (number) DO NOTHING";
    if step.number == 1 {
        client.batch_execute(&filled(TABLE, database)).await?;
    }
    let mut transaction = client.transaction().await?;
    let checksum = checksum(step);
    let noted = transaction
        .execute(&filled(NOTE, database), &[&step.number, &step.name, &&checksum[..], &step.needs])
        .await?;
    if noted == 0 {
        return transaction.rollback().await;
    }
    let sql = filled(step.sql, database);
    match step.makes {
        Makes::Tables => transaction.batch_execute(&sql).await?,
        Makes::Functions => create_functions(&mut transaction, &sql).await?,
    }
    failpoint!("postgres.migrate.before");
    let committed = transaction.commit().await;
    failpoint!("postgres.migrate.after");
    committed
}

/// Creates the functions, all of them or, where the server cannot, none.
async fn create_functions(transaction: &mut Transaction<'_>, sql: &str) -> Result<(), tokio_postgres::Error> {
    let savepoint = transaction.savepoint("functions").await?;
    match savepoint.batch_execute(sql).await {
        Ok(()) => savepoint.commit().await,
        Err(error) if is_not_offered(&error) => {
            tracing::warn!(%error, "the server cannot create the functions by which an application completes a request");
            savepoint.rollback().await
        }
        Err(error) => Err(error),
    }
}

/// Whether the server does not know the language, the syntax, or a function or type that is used.
fn is_not_offered(error: &tokio_postgres::Error) -> bool {
    const CODES: [&SqlState; 4] = [
        &SqlState::FEATURE_NOT_SUPPORTED,
        &SqlState::SYNTAX_ERROR,
        &SqlState::UNDEFINED_OBJECT,
        &SqlState::UNDEFINED_FUNCTION,
    ];
    error.code().is_some_and(|code| CODES.contains(&code))
}

/// Whether another node ran the same step at the same time: the catalogue itself has unique keys.
fn is_concurrent(error: &tokio_postgres::Error) -> bool {
    const CODES: [&SqlState; 6] = [
        &SqlState::UNIQUE_VIOLATION,
        &SqlState::DUPLICATE_TABLE,
        &SqlState::DUPLICATE_OBJECT,
        &SqlState::T_R_SERIALIZATION_FAILURE,
        &SqlState::T_R_DEADLOCK_DETECTED,
        &SqlState::LOCK_NOT_AVAILABLE,
    ];
    error.code().is_some_and(|code| CODES.contains(&code))
}

fn not_applied(database: &Database, step: &Step, error: &tokio_postgres::Error) -> Failure {
    if error.code() != Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        return Failure::of(database, error);
    }
    let (shown, schema, user, name) = (&database.shown, &database.schema, database.user(), step.name);
    let message = format!(
        "schema \"{schema}\" at {shown} lacks migration \"{name}\", and role \"{user}\" may not apply it; run \
         \"onlyonce migrate\" as the owner of the schema"
    );
    Failure::refused(ErrorKind::Misconfigured, message)
}

fn filled(sql: &str, database: &Database) -> String {
    sql.replace("{schema}", &database.quoted_schema())
}

fn checksum(step: &Step) -> [u8; 32] {
    Sha256::digest(step.sql).into()
}
