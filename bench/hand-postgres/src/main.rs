//! The same handler behind what a good engineer writes in an afternoon: a middleware, a table, a pool.
//!
//! ```text
//! bench-hand-postgres postgres://… [--one-transaction]
//! ```
//!
//! A key is reserved by an insert, and the answer is stored by an update (`bench-hand`); each is a statement of its own, prepared
//! once, on one of 32 connections, and durable (`synchronous_commit=on`). A repeated key is answered by a select. Nothing expires.
//!
//! With `--one-transaction` there is no middleware: the handler does all of it itself, in one transaction with a row of its
//! own (`one_transaction.rs`).

mod one_transaction;

use std::io;

use axum::http::StatusCode;
use bench_hand::{Answer, Name, Outcome, Row};
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod};
use tokio_postgres::{Config, NoTls};

const CONNECTIONS: usize = 32;

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS idempotency (
        caller       text NOT NULL,
        key          text NOT NULL,
        digest       bytea NOT NULL,
        created_at   timestamptz NOT NULL DEFAULT now(),
        status       smallint,
        content_type text,
        body         bytea,
        PRIMARY KEY (caller, key)
    )";

const INSERT: &str =
    "INSERT INTO idempotency (caller, key, digest) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
const UPDATE: &str = "
    UPDATE idempotency SET status = $3, content_type = $4, body = $5 WHERE caller = $1 AND key = $2";

#[tokio::main]
async fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (url, is_one_transaction) = match arguments[..] {
        [url] => (url, false),
        [url, "--one-transaction"] => (url, true),
        _ => return Err(io::Error::other("name the store: postgres://… [--one-transaction]")),
    };
    let table = Table::open(url).await.map_err(io::Error::other)?;
    if is_one_transaction {
        return bench_plain::serve(one_transaction::payments(table).await.map_err(io::Error::other)?).await;
    }
    bench_hand::serve(table).await
}

/// Connections, which everybody takes in turn.
#[derive(Clone)]
struct Table(Pool);

impl Table {
    async fn open(url: &str) -> Outcome<Self> {
        let config: Config = url.parse()?;
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(config, NoTls, recycling);
        let pool = Pool::builder(manager).max_size(CONNECTIONS).build()?;
        pool.get().await?.batch_execute(TABLE).await?;
        Ok(Self(pool))
    }
}

impl bench_hand::Table for Table {
    async fn reserve(&self, name: Name, digest: [u8; 32]) -> Outcome<Option<Row>> {
        let client = self.0.get().await?;
        let insert = client.prepare_cached(INSERT).await?;
        let inserted = client.execute(&insert, &[&name.caller, &name.key, &&digest[..]]).await?;
        if inserted == 1 { Ok(None) } else { find(&client, &name).await }
    }

    async fn complete(&self, name: Name, _: [u8; 32], answer: Answer) -> Outcome<()> {
        let client = self.0.get().await?;
        let update = client.prepare_cached(UPDATE).await?;
        let Answer { status, content_type, body } = &answer;
        let status = i16::try_from(status.as_u16())?;
        client.execute(&update, &[&name.caller, &name.key, &status, content_type, &&body[..]]).await?;
        Ok(())
    }

    async fn release(&self, name: Name) -> Outcome<()> {
        const DELETE: &str = "DELETE FROM idempotency WHERE caller = $1 AND key = $2";
        let client = self.0.get().await?;
        let delete = client.prepare_cached(DELETE).await?;
        client.execute(&delete, &[&name.caller, &name.key]).await?;
        Ok(())
    }
}

async fn find(client: &Object, name: &Name) -> Outcome<Option<Row>> {
    const SELECT: &str =
        "SELECT digest, status, content_type, body FROM idempotency WHERE caller = $1 AND key = $2";
    let select = client.prepare_cached(SELECT).await?;
    let Some(row) = client.query_opt(&select, &[&name.caller, &name.key]).await? else { return Ok(None) };
    let status: Option<i16> = row.try_get(1)?;
    let answer = match status.map(|code| u16::try_from(code).map(StatusCode::from_u16)) {
        Some(status) => {
            let body: Vec<u8> = row.try_get(3)?;
            Some(Answer { status: status??, content_type: row.try_get(2)?, body: body.into() })
        }
        None => None,
    };
    Ok(Some(Row { digest: row.try_get::<_, &[u8]>(0)?.try_into()?, answer }))
}
