//! The middleware that a good engineer writes in an afternoon, over a table of any kind.
//!
//! A key is reserved before the handler runs, and the answer is stored before the client has it. A repeated key is answered
//! from the table. There is no lease, so a crash leaves a key reserved for ever; nobody can wait; a request is compared by its
//! bytes. What it does not do it does not pay for.

use std::future::Future;
use std::io;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

const BODY_BYTES_MAX: usize = 1 << 20;

pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Where keys and answers are kept.
pub trait Table: Clone + Send + Sync + 'static {
    /// None where the key is now the caller's own; otherwise what is there. A repeated key writes nothing.
    fn reserve(&self, name: Name, digest: [u8; 32]) -> impl Future<Output = Outcome<Option<Row>>> + Send;

    /// Stores the answer. The digest is the one it was reserved with.
    fn complete(
        &self,
        name: Name,
        digest: [u8; 32],
        answer: Answer,
    ) -> impl Future<Output = Outcome<()>> + Send;

    /// Lets the key be used again.
    fn release(&self, name: Name) -> impl Future<Output = Outcome<()>> + Send;
}

#[derive(Clone)]
pub struct Name {
    pub caller: String,
    pub key: String,
}

#[derive(Clone)]
pub struct Answer {
    pub status: StatusCode,
    pub content_type: Option<String>,
    pub body: Bytes,
}

pub struct Row {
    pub digest: [u8; 32],
    /// None while the handler runs.
    pub answer: Option<Answer>,
}

/// Serves the handler behind the middleware.
pub async fn serve<T: Table>(table: T) -> io::Result<()> {
    bench_plain::serve(bench_plain::payments().layer(from_fn_with_state(table, once::<T>))).await
}

async fn once<T: Table>(State(table): State<T>, request: Request, next: Next) -> Response {
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

async fn keyed<T: Table>(table: T, name: Name, parts: Parts, bytes: Bytes, next: Next) -> Response {
    let digest = Sha256::digest(&bytes).into();
    match table.reserve(name.clone(), digest).await {
        Ok(None) => run(&table, name, digest, Request::from_parts(parts, Body::from(bytes)), next).await,
        Ok(Some(row)) => row.answer_to(digest),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

async fn run<T: Table>(table: &T, name: Name, digest: [u8; 32], request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let (status, content_type) = (response.status(), text(response.headers(), "content-type"));
    let Ok(body) = to_bytes(response.into_body(), BODY_BYTES_MAX).await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let answer = Answer { status, content_type, body };
    let written = if status.is_server_error() {
        table.release(name).await
    } else {
        table.complete(name, digest, answer.clone()).await
    };
    match written {
        Ok(()) => answer.into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

/// A header of a request, where it is text.
pub fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

impl Row {
    /// The answer to a request with this digest.
    pub fn answer_to(self, digest: [u8; 32]) -> Response {
        match self.answer {
            _ if self.digest != digest => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
            Some(answer) => answer.into_response(),
            None => StatusCode::CONFLICT.into_response(),
        }
    }
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
