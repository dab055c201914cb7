//! Delivers messages that wait in a database to code that answers at once.
//!
//! ```text
//! bench-relay onlyonce postgres://… MESSAGES SECONDS
//! bench-relay hand     postgres://… MESSAGES SECONDS
//! bench-relay claim    postgres://… MESSAGES
//! ```
//!
//! Each begins with so many messages in an empty database. `onlyonce` is our relay, `hand` what one writes by hand
//! (`hand.rs`), each with 64 deliveries in flight; they tell how many messages they delivered a second. `claim` tells how many
//! milliseconds one claim of our relay takes. Each prints one line of JSON.

mod hand;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onlyonce::Engine;
use onlyonce::record::Token;
use onlyonce::relay::{Deliver, Delivered, Delivery, Relay, Terms};
use onlyonce::store::Store;
use onlyonce::store::outbox::{OnDead, Wanted};
use onlyonce::store::postgres::{Options, Postgres};
use serde_json::{Value, json};
use tokio_postgres::NoTls;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const IN_FLIGHT: usize = 64;
const WARM_UP: Duration = Duration::from_secs(1);
const DESTINATION: &str = "receipts";
/// Claims that are timed, and how many messages each of them takes: few enough that a thousand messages suffice.
const CLAIMS: usize = 100;
const CLAIMED_AT_ONCE: usize = 8;
/// Claims before those that are timed.
const WARM_CLAIMS: usize = 10;

static DELIVERED: AtomicU64 = AtomicU64::new(0);

#[tokio::main]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let report = match words[..] {
        ["onlyonce", url, messages, seconds] => relay(url, messages.parse()?, seconds.parse()?).await?,
        ["hand", url, messages, seconds] => hand::relay(url, messages.parse()?, seconds.parse()?).await?,
        ["claim", url, messages] => claim(url, messages.parse()?).await?,
        _ => return Err("cannot understand that; see the head of bench/relay/src/main.rs".into()),
    };
    println!("{report}");
    Ok(())
}

struct Counter;

#[async_trait::async_trait]
impl Deliver for Counter {
    async fn deliver(&self, _delivery: &Delivery) -> Delivered {
        DELIVERED.fetch_add(1, Ordering::Relaxed);
        Delivered::Done { provider_id: None }
    }
}

async fn relay(url: &str, messages: u64, seconds: u64) -> Outcome<Value> {
    let engine = Engine::new(Arc::new(filled(url, messages).await?));
    let terms = Terms { at_once: IN_FLIGHT, ..Terms::default() };
    let running = Relay::new(&engine).to_with(DESTINATION, Counter, terms).start();
    let report = rate(messages, seconds).await?;
    running.stop(Duration::from_secs(10)).await;
    Ok(report)
}

/// Deliveries a second, once they have begun. They must not run out of messages meanwhile.
async fn rate(messages: u64, seconds: u64) -> Outcome<Value> {
    tokio::time::sleep(WARM_UP).await;
    let (before, began) = (DELIVERED.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let (after, took) = (DELIVERED.load(Ordering::Relaxed), began.elapsed());
    if after >= messages {
        return Err(format!("{messages} messages were too few: all were delivered").into());
    }
    Ok(json!({ "per_second": (after - before) as f64 / took.as_secs_f64() }))
}

/// The middle of many claims. What is claimed stays so: nothing is claimed twice.
async fn claim(url: &str, messages: u64) -> Outcome<Value> {
    let store = filled(url, messages).await?;
    let outbox = store.outbox().ok_or("this store keeps no messages")?;
    let (limit, lease) = (CLAIMED_AT_ONCE, Duration::from_secs(3600));
    let wanted = [Wanted { destination: DESTINATION.into(), limit, lease, on_dead: OnDead::Block }];
    let mut spans = Vec::new();
    for number in 0..WARM_CLAIMS + CLAIMS {
        let began = Instant::now();
        let claims = outbox.claim(Token([u8::try_from(number)?; 16]), &wanted).await?;
        spans.push(began.elapsed());
        if claims.claimed.len() != CLAIMED_AT_ONCE {
            return Err(format!("a claim got {} messages", claims.claimed.len()).into());
        }
    }
    let spans = &mut spans[WARM_CLAIMS..];
    spans.sort_unstable();
    Ok(json!({ "claim_ms": spans[spans.len() / 2].as_secs_f64() * 1e3 }))
}

/// A store in which so many messages wait.
async fn filled(url: &str, messages: u64) -> Outcome<Postgres> {
    let store = Postgres::open(url, Options::default()).await?;
    store.prepare().await?;
    fill(
        url,
        &format!("INSERT INTO onlyonce_outbox (destination, payload) SELECT '{DESTINATION}', {PAYLOAD}"),
        messages,
    )
    .await?;
    execute(url, "VACUUM ANALYZE onlyonce_outbox").await?;
    Ok(store)
}

/// About as long as a receipt.
const PAYLOAD: &str = "decode(repeat('7b', 200), 'hex')";

async fn fill(url: &str, insert: &str, messages: u64) -> Outcome<()> {
    execute(url, &format!("{insert} FROM generate_series(1, {messages})")).await
}

async fn execute(url: &str, sql: &str) -> Outcome<()> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let driver = tokio::spawn(connection);
    client.batch_execute(sql).await?;
    drop(client);
    Ok(driver.await??)
}
