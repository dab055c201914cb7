//! The same handler behind what a good engineer writes in an afternoon: a middleware, a table, one connection.
//!
//! ```text
//! bench-hand-sqlite sqlite:PATH
//! ```
//!
//! A key is reserved by an insert, and the answer is stored by an update (`bench-hand`); each is a transaction of its own, and
//! durable (WAL, `synchronous=FULL`). Nothing expires.

use std::io;
use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use bench_hand::{Answer, Name, Outcome, Row};
use rusqlite::{Connection, OptionalExtension, params};

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS idempotency (
        caller       TEXT NOT NULL,
        key          TEXT NOT NULL,
        digest       BLOB NOT NULL,
        created_at   INTEGER NOT NULL DEFAULT (unixepoch()),
        status       INTEGER,
        content_type TEXT,
        body         BLOB,
        PRIMARY KEY (caller, key)
    ) STRICT";

#[tokio::main]
async fn main() -> io::Result<()> {
    let argument = std::env::args().nth(1).unwrap_or_default();
    let Some(path) = argument.strip_prefix("sqlite:") else {
        return Err(io::Error::other("name the store: sqlite:PATH"));
    };
    let table = Table::open(path).map_err(io::Error::other)?;
    bench_hand::serve(table).await
}

/// One connection, which everybody takes in turn.
#[derive(Clone)]
struct Table(Arc<Mutex<Connection>>);

impl Table {
    fn open(path: &str) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute(TABLE, [])?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Outcome<T> {
        let connection = self.0.clone();
        let work = move || work(&connection.lock().expect("nobody panics while holding the connection"));
        let done = tokio::task::spawn_blocking(work).await;
        Ok(done.expect("the work does not panic and is not stopped")?)
    }
}

impl bench_hand::Table for Table {
    /// The connection is held over both statements.
    async fn reserve(&self, name: Name, digest: [u8; 32]) -> Outcome<Option<Row>> {
        const INSERT: &str =
            "INSERT INTO idempotency (caller, key, digest) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
        self.with(move |connection| {
            let inserted =
                connection.prepare_cached(INSERT)?.execute(params![name.caller, name.key, digest])?;
            if inserted == 1 { Ok(None) } else { find(connection, &name) }
        })
        .await
    }

    async fn complete(&self, name: Name, _: [u8; 32], answer: Answer) -> Outcome<()> {
        const UPDATE: &str = "
            UPDATE idempotency SET status = ?3, content_type = ?4, body = ?5 WHERE caller = ?1 AND key = ?2";
        self.with(move |connection| {
            let Answer { status, content_type, body } = &answer;
            let row = params![name.caller, name.key, status.as_u16(), content_type, body.as_ref()];
            connection.prepare_cached(UPDATE)?.execute(row).map(drop)
        })
        .await
    }

    async fn release(&self, name: Name) -> Outcome<()> {
        const DELETE: &str = "DELETE FROM idempotency WHERE caller = ?1 AND key = ?2";
        self.with(move |connection| {
            connection.prepare_cached(DELETE)?.execute([name.caller, name.key]).map(drop)
        })
        .await
    }
}

fn find(connection: &Connection, name: &Name) -> rusqlite::Result<Option<Row>> {
    const SELECT: &str =
        "SELECT digest, status, content_type, body FROM idempotency WHERE caller = ?1 AND key = ?2";
    let row = |row: &rusqlite::Row<'_>| {
        let status: Option<u16> = row.get(1)?;
        let answer = match status.and_then(|code| StatusCode::from_u16(code).ok()) {
            Some(status) => {
                Some(Answer { status, content_type: row.get(2)?, body: row.get::<_, Vec<u8>>(3)?.into() })
            }
            None => None,
        };
        Ok(Row { digest: row.get(0)?, answer })
    };
    connection.prepare_cached(SELECT)?.query_row([&name.caller, &name.key], row).optional()
}
