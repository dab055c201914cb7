//! The same handler behind what a good engineer writes in an afternoon: a middleware, a table, a pool.
//!
//! ```text
//! bench-hand-mysql mysql://…
//! ```
//!
//! A key is reserved by an insert, and the answer is stored by an update (`bench-hand`); each is a statement of its own, prepared
//! once, on one of 32 connections, and durable (`innodb_flush_log_at_trx_commit=1`). A repeated key is answered by a select.
//! Nothing expires.

use std::io;

use axum::http::StatusCode;
use bench_hand::{Answer, Name, Outcome, Row};
use mysql_async::prelude::Queryable;
use mysql_async::{Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts};

const CONNECTIONS: usize = 32;

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS idempotency (
        caller       VARBINARY(255) NOT NULL,
        `key`        VARBINARY(255) NOT NULL,
        digest       BINARY(32) NOT NULL,
        created_at   TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
        status       SMALLINT UNSIGNED,
        content_type VARBINARY(255),
        body         LONGBLOB,
        PRIMARY KEY (caller, `key`)
    ) ENGINE=InnoDB";

#[tokio::main]
async fn main() -> io::Result<()> {
    let Some(url) = std::env::args().nth(1) else {
        return Err(io::Error::other("name the store: mysql://…"));
    };
    bench_hand::serve(Table::open(&url).await.map_err(io::Error::other)?).await
}

/// Connections, which everybody takes in turn.
#[derive(Clone)]
struct Table(Pool);

impl Table {
    async fn open(url: &str) -> Outcome<Self> {
        let constraints = PoolConstraints::new(1, CONNECTIONS).expect("one is less than the most");
        // A connection is given back as it was: nothing here changes its session.
        let pool = PoolOpts::default().with_constraints(constraints).with_reset_connection(false);
        let pool = Pool::new(OptsBuilder::from_opts(Opts::from_url(url)?).pool_opts(pool));
        pool.get_conn().await?.query_drop(TABLE).await?;
        Ok(Self(pool))
    }
}

impl bench_hand::Table for Table {
    async fn reserve(&self, name: Name, digest: [u8; 32]) -> Outcome<Option<Row>> {
        // It updates nothing, and is no error: a repeated key has no affected row.
        const INSERT: &str = "INSERT INTO idempotency (caller, `key`, digest) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE caller = caller";
        const SELECT: &str =
            "SELECT digest, status, content_type, body FROM idempotency WHERE caller = ? AND `key` = ?";
        let mut connection = self.0.get_conn().await?;
        connection.exec_drop(INSERT, (&name.caller, &name.key, &digest[..])).await?;
        if connection.affected_rows() == 1 {
            return Ok(None);
        }
        type Found = (Vec<u8>, Option<u16>, Option<String>, Option<Vec<u8>>);
        let found: Option<Found> = connection.exec_first(SELECT, (&name.caller, &name.key)).await?;
        let Some((digest, status, content_type, body)) = found else { return Ok(None) };
        let answer = match status {
            Some(code) => Some(Answer {
                status: StatusCode::from_u16(code)?,
                content_type,
                body: body.unwrap_or_default().into(),
            }),
            None => None,
        };
        Ok(Some(Row { digest: digest.as_slice().try_into()?, answer }))
    }

    async fn complete(&self, name: Name, _: [u8; 32], answer: Answer) -> Outcome<()> {
        const UPDATE: &str =
            "UPDATE idempotency SET status = ?, content_type = ?, body = ? WHERE caller = ? AND `key` = ?";
        let Answer { status, content_type, body } = answer;
        let row = (status.as_u16(), content_type, &body[..], &name.caller, &name.key);
        Ok(self.0.get_conn().await?.exec_drop(UPDATE, row).await?)
    }

    async fn release(&self, name: Name) -> Outcome<()> {
        const DELETE: &str = "DELETE FROM idempotency WHERE caller = ? AND `key` = ?";
        Ok(self.0.get_conn().await?.exec_drop(DELETE, (name.caller, name.key)).await?)
    }
}
