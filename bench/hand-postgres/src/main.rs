//! The same handler behind what a good engineer writes in an afternoon: a middleware, a table, a pool.
//!
//! ```text
//! bench-hand-postgres postgres://…
//! ```
//!
//! A key is reserved by an insert before the handler runs, and the answer is stored by an update before the client
//! has it; each is a statement of its own, prepared once, on one of 32 connections, and durable
//! (`synchronous_commit=on`). A repeated key is answered by a select. It has no lease, so a crash leaves a key reserved
//! for ever; nothing expires; nobody can wait; a request is compared by its bytes. What it does not do it does not pay for.

use std::io;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod};
use sha2::{Digest, Sha256};
use tokio_postgres::{Config, NoTls};

const BODY_BYTES_MAX: usize = 1 << 20;
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

#[tokio::main]
async fn main() -> io::Result<()> {
    let Some(url) = std::env::args().nth(1).filter(|url| url.starts_with("postgres:")) else {
        return Err(io::Error::other("name the store: postgres://…"));
    };
    let table = Table::open(&url).await.map_err(io::Error::other)?;
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

/// Connections, which everybody takes in turn.
#[derive(Clone)]
struct Table(Pool);

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

impl Table {
    async fn open(url: &str) -> Outcome<Self> {
        let config: Config = url.parse()?;
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(config, NoTls, recycling);
        let pool = Pool::builder(manager).max_size(CONNECTIONS).build()?;
        pool.get().await?.batch_execute(TABLE).await?;
        Ok(Self(pool))
    }

    /// None where the key is now the caller's own; otherwise what is there. A repeated key writes nothing.
    async fn reserve(&self, name: Name, digest: [u8; 32]) -> Outcome<Option<Row>> {
        const INSERT: &str =
            "INSERT INTO idempotency (caller, key, digest) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        let client = self.0.get().await?;
        let insert = client.prepare_cached(INSERT).await?;
        let inserted = client.execute(&insert, &[&name.caller, &name.key, &&digest[..]]).await?;
        if inserted == 1 { Ok(None) } else { find(&client, &name).await }
    }

    async fn complete(&self, name: Name, answer: Answer) -> Outcome<()> {
        const UPDATE: &str = "
            UPDATE idempotency SET status = $3, content_type = $4, body = $5 WHERE caller = $1 AND key = $2";
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
