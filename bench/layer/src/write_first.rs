//! The handler with its record and its row in one transaction, on connections of its own.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Response, StatusCode, header};
use axum::routing::post;
use bench_plain::{PAYMENT_INSERT, PAYMENT_TABLE, Paid};
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use onlyonce::store::Store;
use onlyonce::store::postgres::{Options, Postgres};
use onlyonce::worker::{Background, Workers};
use onlyonce::{Effects, InTransaction, Onlyonce, Policy, Problem};
use tokio_postgres::{Config, NoTls};

/// As many as the hand-written one has.
const CONNECTIONS: usize = 32;

pub(super) async fn serve(url: &str) -> io::Result<()> {
    let store = Postgres::open(url, Options::default()).await.map_err(io::Error::other)?;
    store.prepare().await.map_err(io::Error::other)?;
    let policy = Policy { effects: Effects::Local, ..Policy::default() };
    let onlyonce = Onlyonce::new(Arc::new(store)).with_policy(policy).map_err(io::Error::other)?;
    let onlyonce = onlyonce.in_transaction().map_err(io::Error::other)?;
    let _workers = Workers::start(onlyonce.engine(), &Background::default());
    let payments = Router::new().route("/payments", post(pay)).with_state(pool(url).await?);
    bench_plain::serve(payments.layer(onlyonce.layer())).await
}

async fn pool(url: &str) -> io::Result<Pool> {
    let config: Config = url.parse().map_err(io::Error::other)?;
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(config, NoTls, recycling);
    let pool = Pool::builder(manager).max_size(CONNECTIONS).build().map_err(io::Error::other)?;
    let client = pool.get().await.map_err(io::Error::other)?;
    client.batch_execute(PAYMENT_TABLE).await.map_err(io::Error::other)?;
    Ok(pool)
}

async fn pay(State(pool): State<Pool>, key: InTransaction, body: Bytes) -> Result<Response<String>, Problem> {
    let Ok(Paid { amount, currency, customer, json }) = bench_plain::pay(&body) else {
        return Ok(answer(StatusCode::BAD_REQUEST, String::new()));
    };
    key.run(&pool, async |tx, _| {
        let insert = tx.prepare_cached(PAYMENT_INSERT).await?;
        tx.execute(&insert, &[&amount, &currency, &customer]).await?;
        Ok(answer(StatusCode::CREATED, json))
    })
    .await
}

fn answer(status: StatusCode, body: String) -> Response<String> {
    let answer = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    answer.body(body).expect("its parts are constants")
}
