//! A handler of several steps: a ride is stored, paid for at a bank, and completed with a receipt in the outbox.
//!
//! ```text
//!  phase "ride_created"    a row in our database                    one transaction with the recovery point
//!  foreign "charged"       the bank, over the network               "calling" is committed first, the result after it
//!  complete_in             row, message and the answer              one transaction; then answer
//! ```
//!
//! Kill it at any line and send the request again: it goes on behind the last step that committed. One ride, one receipt, and
//! as many charges as the bank's kind allows (`--effects`). `POST /tips` touches nothing but our database: one transaction.
//!
//! ```text
//! cargo run --package onlyonce --features sqlx,sqlite --example rides -- --listen 127.0.0.1:3000 \
//!   --store postgres://app@localhost/rides?schema=onlyonce --bank http://127.0.0.1:4000
//! curl -i http://127.0.0.1:3000/rides -H 'Authorization: Bearer ann' -H 'Idempotency-Key: 7f1c' \
//!   --json '{"customer":7,"origin":"Aachen","target":"Bonn","amount":1200}'
//! ```
//!
//! The bank is asked with `POST /charges`, the key in `Idempotency-Key`, and answers 201 with `{"charge":"…"}` or 402. In a
//! build with the feature `failpoints`, `ONLYONCE_FAILPOINT` names the step to die at.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use http::{Method, Response, StatusCode, header};
use onlyonce::phase::Called;
use onlyonce::store::Store;
use onlyonce::store::postgres::{self, Postgres};
use onlyonce::store::sqlite::{self, Sqlite};
use onlyonce::worker::{Background, Workers};
use onlyonce::{Attempt, Begun, Effects, InTransaction, Message, Onlyonce, Policy, Problem};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

type Answer = Response<String>;
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a client orders.
#[derive(Clone, Debug, Deserialize)]
struct Order {
    customer: i64,
    origin: String,
    target: String,
    amount: u32,
}

/// What the bank said. A declined card is a result like another: the bank has answered.
#[derive(Debug, Deserialize, Serialize)]
enum Charge {
    Made(String),
    Declined,
}

#[derive(Serialize)]
struct Receipt<'a> {
    ride: i64,
    charge: &'a str,
}

struct App<D> {
    db: D,
    bank: Bank,
    effects: Effects,
}

/// `POST /rides`, on PostgreSQL.
async fn ride(
    State(app): State<Arc<App<PgPool>>>,
    attempt: Attempt,
    Json(order): Json<Order>,
) -> Result<Answer, Problem> {
    let ride: i64 = attempt
        .phase(&app.db, "ride_created", async |tx| {
            sqlx::query_scalar("INSERT INTO ride (customer, origin, target) VALUES ($1, $2, $3) RETURNING id")
                .bind(order.customer)
                .bind(&order.origin)
                .bind(&order.target)
                .fetch_one(&mut **tx)
                .await
        })
        .await?;
    let charge = charge(&app.bank, app.effects, &attempt, &order).await?;
    let mut tx = app.db.begin().await?;
    let Charge::Made(charge) = charge else {
        let response = declined();
        attempt.complete_in(&mut tx, &response).await?;
        tx.commit().await?;
        return Ok(response);
    };
    sqlx::query("UPDATE ride SET charge = $1 WHERE id = $2")
        .bind(&charge)
        .bind(ride)
        .execute(&mut *tx)
        .await?;
    let receipt = Message::to("receipts").json(&Receipt { ride, charge: &charge })?.group(order.customer);
    attempt.send(&mut tx, receipt).await?;
    let response = created(ride, &charge);
    attempt.complete_in(&mut tx, &response).await?;
    tx.commit().await?;
    Ok(response)
}

/// The same on SQLite: each transaction is a closure on the writer's thread.
async fn ride_in_a_file(
    State(app): State<Arc<App<Arc<Sqlite>>>>,
    attempt: Attempt,
    Json(order): Json<Order>,
) -> Result<Answer, Problem> {
    let ordered = order.clone();
    let ride: i64 = attempt
        .phase_blocking(&app.db, "ride_created", move |tx| {
            let Order { customer, origin, target, .. } = ordered;
            tx.execute(
                "INSERT INTO ride (customer, origin, target) VALUES (?1, ?2, ?3)",
                (customer, origin, target),
            )?;
            Ok::<_, rusqlite::Error>(tx.last_insert_rowid())
        })
        .await?;
    let charge = charge(&app.bank, app.effects, &attempt, &order).await?;
    let response = app.db.write(move |tx| {
        let Charge::Made(charge) = charge else {
            let response = declined();
            attempt.complete_in(tx, &response)?;
            return Ok::<_, Failure>(response);
        };
        tx.execute("UPDATE ride SET charge = ?1 WHERE id = ?2", (&charge, ride))?;
        attempt.send(
            tx,
            Message::to("receipts").json(&Receipt { ride, charge: &charge })?.group(order.customer),
        )?;
        let response = created(ride, &charge);
        attempt.complete_in(tx, &response)?;
        Ok(response)
    });
    response.await.map_err(|error| failed(&error))
}

/// What a passenger adds for the driver.
#[derive(Debug, Deserialize)]
struct Tip {
    customer: i64,
    amount: i64,
}

/// `POST /tips`, on PostgreSQL: no foreign effect, so the key is reserved and completed in the transaction itself.
async fn tip(
    State(app): State<Arc<App<PgPool>>>,
    key: InTransaction,
    Json(tip): Json<Tip>,
) -> Result<Answer, Problem> {
    key.run(&app.db, async |tx, attempt| {
        let insert = sqlx::query("INSERT INTO tip (customer, amount) VALUES ($1, $2)");
        insert.bind(tip.customer).bind(tip.amount).execute(&mut **tx).await?;
        attempt.send(&mut *tx, Message::to("tips").json(&tip.amount)?.group(tip.customer)).await?;
        Ok(answer(StatusCode::CREATED, r#"{"thanks":true}"#.to_owned()))
    })
    .await
}

/// The same on SQLite.
async fn tip_in_a_file(
    State(app): State<Arc<App<Arc<Sqlite>>>>,
    key: InTransaction,
    Json(tip): Json<Tip>,
) -> Result<Answer, Problem> {
    let written = app.db.write(move |tx| {
        let attempt = match key.begin(tx)? {
            Begun::Run(attempt) => attempt,
            Begun::Answered(response) => return Ok::<_, Failure>(response),
        };
        tx.execute("INSERT INTO tip (customer, amount) VALUES (?1, ?2)", (tip.customer, tip.amount))?;
        attempt.send(tx, Message::to("tips").json(&tip.amount)?.group(tip.customer))?;
        let response = answer(StatusCode::CREATED, r#"{"thanks":true}"#.to_owned());
        attempt.complete_in(tx, &response)?;
        Ok(response)
    });
    written.await.map_err(|error| failed(&error))
}

/// The charge, outside any transaction.
async fn charge(
    bank: &Bank,
    effects: Effects,
    attempt: &Attempt,
    order: &Order,
) -> Result<Charge, onlyonce::phase::Error<BankError>> {
    attempt
        .foreign("charged", effects, async |call| {
            bank.charge(order.amount, call.key()).await.map_err(|error| match error {
                BankError::NotConnected(_) => Called::DidNotRun(error),
                BankError::Lost(_) => Called::Unknown(error),
            })
        })
        .await
}

fn created(ride: i64, charge: &str) -> Answer {
    answer(StatusCode::CREATED, format!(r#"{{"ride":{ride},"charge":"{charge}"}}"#))
}

fn declined() -> Answer {
    answer(StatusCode::PAYMENT_REQUIRED, r#"{"declined":true}"#.to_owned())
}

fn answer(status: StatusCode, body: String) -> Answer {
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    response.body(body).expect("the parts are fine")
}

fn failed(error: &Failure) -> Problem {
    eprintln!("a ride failed: {error}");
    Problem::new(answer(StatusCode::INTERNAL_SERVER_ERROR, r#"{"failed":true}"#.to_owned()).map(Bytes::from))
}

/// The bank, over HTTP, by hand: whether anything was sent must be certain.
struct Bank {
    address: String,
}

#[derive(Debug)]
enum BankError {
    NotConnected(std::io::Error),
    Lost(std::io::Error),
}

impl std::fmt::Display for BankError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotConnected(error) => write!(f, "the bank cannot be reached: {error}"),
            Self::Lost(error) => write!(f, "the bank's answer was lost: {error}"),
        }
    }
}

impl std::error::Error for BankError {}

impl Bank {
    async fn charge(&self, amount: u32, key: &str) -> Result<Charge, BankError> {
        let mut stream = TcpStream::connect(&self.address).await.map_err(BankError::NotConnected)?;
        let body = format!(r#"{{"amount":{amount}}}"#);
        let request = format!(
            "POST /charges HTTP/1.1\r\nHost: bank\r\nIdempotency-Key: {key}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.map_err(BankError::Lost)?;
        let mut answered = String::new();
        stream.read_to_string(&mut answered).await.map_err(BankError::Lost)?;
        understood(&answered).ok_or_else(|| BankError::Lost(std::io::Error::other("its answer is not whole")))
    }
}

fn understood(answered: &str) -> Option<Charge> {
    #[derive(Deserialize)]
    struct Made {
        charge: String,
    }
    let (head, body) = answered.split_once("\r\n\r\n")?;
    match head.split(' ').nth(1)? {
        "201" => serde_json::from_str::<Made>(body).ok().map(|made| Charge::Made(made.charge)),
        "402" => Some(Charge::Declined),
        _ => None,
    }
}

/// What the command line says.
struct Options {
    listen: SocketAddr,
    store: String,
    bank: String,
    effects: Effects,
    lease: Duration,
}

impl Options {
    fn read(arguments: impl IntoIterator<Item = String>) -> Result<Self, Failure> {
        let mut given: HashMap<String, String> = HashMap::new();
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("\"{name}\" needs a value"))?;
            given.insert(name, value);
        }
        let mut take = |name: &str, default: Option<&str>| {
            given.remove(name).or(default.map(str::to_owned)).ok_or_else(|| format!("\"{name}\" is missing"))
        };
        let listen = take("--listen", Some("127.0.0.1:3000"))?.parse()?;
        let store = take("--store", Some("sqlite:rides.db"))?;
        let bank = take("--bank", None)?;
        let effects = take("--effects", Some("keyed"))?;
        let effects =
            Effects::named(&effects).ok_or_else(|| format!("\"{effects}\" is no kind of effects"))?;
        let lease = Duration::from_secs(take("--lease-seconds", Some("30"))?.parse()?);
        match given.keys().next() {
            Some(unknown) => Err(format!("\"{unknown}\" is no option of this example").into()),
            None => Ok(Self { listen, store, bank, effects, lease }),
        }
    }
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), Failure> {
    serve(Options::read(std::env::args().skip(1))?).await
}

async fn serve(options: Options) -> Result<(), Failure> {
    let address =
        options.bank.strip_prefix("http://").unwrap_or(&options.bank).trim_end_matches('/').to_owned();
    let (bank, effects) = (Bank { address }, options.effects);
    let (onlyonce, app) = match options.store.strip_prefix("sqlite:") {
        Some(path) => {
            let store = Arc::new(Sqlite::open(path, sqlite::Options::default()).await?);
            store.write(|tx| tx.execute_batch(TABLE_IN_A_FILE).map_err(Failure::from)).await?;
            let onlyonce = protected(store.clone(), &options)?;
            let at_once = onlyonce.clone().in_transaction()?;
            let app = Router::new()
                .merge(Router::new().route("/rides", post(ride_in_a_file)).layer(onlyonce.layer()))
                .merge(Router::new().route("/tips", post(tip_in_a_file)).layer(at_once.layer()));
            (onlyonce, app.with_state(Arc::new(App { db: store, bank, effects })))
        }
        None => {
            let store = Postgres::open(&options.store, postgres::Options::default()).await?;
            store.prepare().await?;
            let db = pool(&options.store).await?;
            sqlx::raw_sql(TABLE).execute(&db).await?;
            let onlyonce = protected(Arc::new(store), &options)?;
            let at_once = onlyonce.clone().in_transaction()?;
            let app = Router::new()
                .merge(Router::new().route("/rides", post(ride)).layer(onlyonce.layer()))
                .merge(Router::new().route("/tips", post(tip)).layer(at_once.layer()));
            (onlyonce, app.with_state(Arc::new(App { db, bank, effects })))
        }
    };
    let listener = TcpListener::bind(options.listen).await?;
    let workers = Workers::start(onlyonce.engine(), &Background::default());
    println!("ready: rides http://{}", listener.local_addr()?);
    let mut terminate = signal(SignalKind::terminate())?; // by Docker, Kubernetes, systemd
    let stop = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = tokio::signal::ctrl_c() => {} }
    };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    drop(workers);
    onlyonce.engine().idle().await;
    Ok(())
}

/// The route's own effects are local; its one foreign call says for itself what it touches.
fn protected(store: Arc<dyn Store>, options: &Options) -> Result<Onlyonce, onlyonce::Faults> {
    let policy = Policy {
        effects: Effects::Local,
        required: vec![Method::POST],
        lease: options.lease,
        store_timeout: Duration::from_secs(1),
        ..Policy::default()
    };
    Onlyonce::new(store).for_service("rides").with_policy(policy)
}

/// A pool of our own on the store's database: rows and records are in one transaction.
async fn pool(url: &str) -> Result<PgPool, sqlx::Error> {
    let (url, query) = url.split_once('?').unwrap_or((url, ""));
    let schema = query.split('&').find_map(|setting| setting.strip_prefix("schema=")).unwrap_or("public");
    let options = PgConnectOptions::from_str(url)?.options([("search_path", schema)]);
    PgPool::connect_with(options).await
}

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS ride (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        customer bigint NOT NULL, origin text NOT NULL, target text NOT NULL, charge text
    );
    CREATE TABLE IF NOT EXISTS tip (customer bigint NOT NULL, amount bigint NOT NULL)";

const TABLE_IN_A_FILE: &str = "
    CREATE TABLE IF NOT EXISTS ride (
        id INTEGER PRIMARY KEY, customer INTEGER NOT NULL, origin TEXT NOT NULL, target TEXT NOT NULL, charge TEXT
    ) STRICT;
    CREATE TABLE IF NOT EXISTS tip (customer INTEGER NOT NULL, amount INTEGER NOT NULL) STRICT";
