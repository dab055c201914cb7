//! The index by scope, which counting records relies on.
//!
//! Every write pays for an index, so this one is no part of the schema: it is made once somebody sets a limit that counts.
//!
//! 1. It is built while others write (`CONCURRENTLY`), on a connection of its own without a time-out.
//! 2. Of many nodes that start at once, one builds it. The others count without it until it is there, more slowly.
//! 3. A build that was broken off leaves an index that is written and not used: it is dropped and built anew.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::failure::Failure;
use super::pool::Pool;
use super::url::Database;
use crate::{Error, ErrorKind};

/// Makes the index, unless it is there or another node is making it.
pub(super) async fn by_scope(pool: &Pool, database: &Database) -> Result<(), Error> {
    let connection = pool.connect().await?;
    let made = make(&connection.client, database).await;
    made.map_err(|error| refused(database, &error).into())
}

async fn make(client: &Client, database: &Database) -> Result<(), tokio_postgres::Error> {
    const LOCK: &str = "SELECT pg_try_advisory_lock(hashtext('onlyonce_record_by_scope'), hashtext($1))";
    const DROP: &str = "DROP INDEX CONCURRENTLY IF EXISTS {schema}.onlyonce_record_by_scope";
    const CREATE: &str = "
        CREATE INDEX CONCURRENTLY IF NOT EXISTS onlyonce_record_by_scope
        ON {schema}.onlyonce_record (scope, expires_at)";
    let filled = |sql: &str| sql.replace("{schema}", &database.quoted_schema());
    if is_valid(client, database).await? == Some(true) {
        return Ok(());
    }
    // Held until the connection is closed. Nobody waits for it: the build waits for whoever waits.
    if !client.query_one(LOCK, &[&database.schema]).await?.try_get::<_, bool>(0)? {
        return Ok(());
    }
    client.batch_execute("SET statement_timeout = 0").await?;
    client.batch_execute("SET lock_timeout = 0").await?;
    if is_valid(client, database).await? == Some(false) {
        client.batch_execute(&filled(DROP)).await?;
    }
    client.batch_execute(&filled(CREATE)).await
}

/// Whether the index is of use; none where there is none.
async fn is_valid(client: &Client, database: &Database) -> Result<Option<bool>, tokio_postgres::Error> {
    const SQL: &str = "
        SELECT built.indisvalid
        FROM pg_index AS built
            JOIN pg_class AS named ON named.oid = built.indexrelid
            JOIN pg_namespace AS schemas ON schemas.oid = named.relnamespace
        WHERE schemas.nspname = $1 AND named.relname = 'onlyonce_record_by_scope'";
    client.query_opt(SQL, &[&database.schema]).await?.map(|row| row.try_get(0)).transpose()
}

fn refused(database: &Database, error: &tokio_postgres::Error) -> Failure {
    if error.code() != Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        return Failure::of(database, error);
    }
    let (shown, schema, user) = (&database.shown, &database.schema, database.user());
    let message = format!(
        "schema \"{schema}\" at {shown} has no index by scope, and role \"{user}\" may not make it; as the owner of the schema, \
         run CREATE INDEX onlyonce_record_by_scope ON {schema}.onlyonce_record (scope, expires_at)"
    );
    Failure::refused(ErrorKind::Misconfigured, message)
}
