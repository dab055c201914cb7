//! The same handler behind what a good engineer writes in an afternoon: a middleware, a table, one connection.
//!
//! ```text
//! bench-hand-sqlite sqlite:PATH
//! ```
//!
//! A key is reserved by an insert before the handler runs, and the answer is stored by an update before the client
//! has it; each is a transaction of its own, and durable (WAL, `synchronous=FULL`). A repeated key is answered from
//! the table. It has no lease, so a crash leaves a key reserved for ever; nothing expires; nobody can wait; a request
//! is compared by its bytes. What it does not do it does not pay for.

use std::io;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use rusqlite::{Connection, OptionalExtension, params};
use sha2::{Digest, Sha256};

const BODY_BYTES_MAX: usize = 1 << 20;

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
    bench_plain::serve(bench_plain::payments().layer(from_fn_with_state(table, once))).await
}

async fn once(State(table): State<Table>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let Some(key) = text(&parts.headers, "idempotency-key") else {
        return next.run(Request::from_parts(parts, body)).await;
    };
    let Some(caller) = text(&parts.headers, "authorization") else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let Ok(bytes) = to_bytes(body, BODY_BYTES_MAX).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    // A task of its own: a client that hangs up must not leave its key reserved.
    let task = tokio::spawn(keyed(table, Name { caller, key }, parts, bytes, next));
    task.await.unwrap_or_else(|_| StatusCode::BAD_GATEWAY.into_response())
}

async fn keyed(table: Table, name: Name, parts: Parts, bytes: Bytes, next: Next) -> Response {
    let digest = Sha256::digest(&bytes).into();
    match table.reserve(name.clone(), digest).await {
        Ok(None) => run(&table, name, Request::from_parts(parts, Body::from(bytes)), next).await,
        Ok(Some(row)) if row.digest != digest => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
        Ok(Some(Row { answer: Some(answer), .. })) => answer.into_response(),
        Ok(Some(Row { answer: None, .. })) => StatusCode::CONFLICT.into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

async fn run(table: &Table, name: Name, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let (status, content_type) = (response.status(), text(response.headers(), "content-type"));
    let Ok(body) = to_bytes(response.into_body(), BODY_BYTES_MAX).await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let answer = Answer { status, content_type, body };
    let written = if status.is_server_error() {
        table.release(name).await
    } else {
        table.complete(name, answer.clone()).await
    };
    match written {
        Ok(()) => answer.into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

#[derive(Clone)]
struct Name {
    caller: String,
    key: String,
}

#[derive(Clone)]
struct Answer {
    status: StatusCode,
    content_type: Option<String>,
    body: Bytes,
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.body).into_response();
        let content_type = self.content_type.and_then(|value| value.try_into().ok());
        match content_type {
            Some(value) => response.headers_mut().insert(header::CONTENT_TYPE, value),
            None => response.headers_mut().remove(header::CONTENT_TYPE),
        };
        response
    }
}

struct Row {
    digest: [u8; 32],
    /// None while the handler runs.
    answer: Option<Answer>,
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

    /// None where the key is now the caller's own; otherwise what is there. The connection is held over both
    /// statements, and a repeated key writes nothing.
    async fn reserve(&self, name: Name, digest: [u8; 32]) -> rusqlite::Result<Option<Row>> {
        const INSERT: &str =
            "INSERT INTO idempotency (caller, key, digest) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
        self.with(move |connection| {
            let inserted =
                connection.prepare_cached(INSERT)?.execute(params![name.caller, name.key, digest])?;
            if inserted == 1 { Ok(None) } else { find(connection, &name) }
        })
        .await
    }

    async fn complete(&self, name: Name, answer: Answer) -> rusqlite::Result<()> {
        const UPDATE: &str = "
            UPDATE idempotency SET status = ?3, content_type = ?4, body = ?5 WHERE caller = ?1 AND key = ?2";
        self.with(move |connection| {
            let Answer { status, content_type, body } = &answer;
            let row = params![name.caller, name.key, status.as_u16(), content_type, body.as_ref()];
            connection.prepare_cached(UPDATE)?.execute(row).map(drop)
        })
        .await
    }

    async fn release(&self, name: Name) -> rusqlite::Result<()> {
        const DELETE: &str = "DELETE FROM idempotency WHERE caller = ?1 AND key = ?2";
        self.with(move |connection| {
            connection.prepare_cached(DELETE)?.execute([name.caller, name.key]).map(drop)
        })
        .await
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> rusqlite::Result<T> {
        let connection = self.0.clone();
        let work = move || work(&connection.lock().expect("nobody panics while holding the connection"));
        tokio::task::spawn_blocking(work).await.expect("the work does not panic and is not stopped")
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
