//! The handler with key, payment and answer in one transaction, as Brandur Leach's "Implementing Stripe-like idempotency
//! keys in Postgres" has it, on the table of this program and without a lease: nothing is on record before the commit.
//!
//! A duplicate waits at its insert until the first has committed or rolled back. Statements are prepared once.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bench_hand::{Answer, Name, Outcome, text};
use bench_plain::{PAYMENT_INSERT, PAYMENT_TABLE, Paid};
use sha2::{Digest, Sha256};

use super::{INSERT, Table, UPDATE, find};

pub(super) async fn payments(table: Table) -> Outcome<Router> {
    table.0.get().await?.batch_execute(PAYMENT_TABLE).await?;
    Ok(Router::new().route("/payments", post(pay)).with_state(table))
}

async fn pay(State(table): State<Table>, headers: HeaderMap, body: Bytes) -> Response {
    let [caller, key] = ["authorization", "idempotency-key"].map(|name| text(&headers, name));
    let (Some(caller), Some(key)) = (caller, key) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    match transact(&table, &Name { caller, key }, &body).await {
        Ok(response) => response,
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

/// A handler that is dropped half-way rolls back.
async fn transact(table: &Table, name: &Name, body: &[u8]) -> Outcome<Response> {
    let digest: [u8; 32] = Sha256::digest(body).into();
    let mut client = table.0.get().await?;
    let tx = client.transaction().await?;
    let insert = tx.prepare_cached(INSERT).await?;
    if tx.execute(&insert, &[&name.caller, &name.key, &&digest[..]]).await? == 0 {
        tx.rollback().await?;
        let row = find(&client, name).await?;
        return Ok(row.map_or_else(|| StatusCode::CONFLICT.into_response(), |row| row.answer_to(digest)));
    }
    let Paid { amount, currency, customer, json } = bench_plain::pay(body)?;
    let insert = tx.prepare_cached(PAYMENT_INSERT).await?;
    tx.execute(&insert, &[&amount, &currency, &customer]).await?;
    let content_type = Some("application/json".to_owned());
    let answer = Answer { status: StatusCode::CREATED, content_type, body: json.into() };
    let update = tx.prepare_cached(UPDATE).await?;
    let status = i16::try_from(answer.status.as_u16())?;
    tx.execute(&update, &[&name.caller, &name.key, &status, &answer.content_type, &&answer.body[..]]).await?;
    tx.commit().await?;
    Ok(answer.into_response())
}
