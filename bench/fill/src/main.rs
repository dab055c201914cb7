//! Makes a store file large, through the engine itself, and looks into one that was closed.
//!
//! ```text
//! bench-fill fill  PATH RECORDS RETENTION_SECONDS
//! bench-fill unknown PATH RECORDS
//! bench-fill count PATH
//! bench-fill list  PATH
//! bench-fill copy  postgres://… RECORDS RETENTION_SECONDS
//! ```
//!
//! `fill` writes completed records, as a load of `unique` leaves them, many at a time, and tells how far it is on
//! stderr. A retention of 0 makes records that are expired at once. `unknown` writes records that probes are to be asked
//! about (`unknown.rs`). `count` tells how many records there are, and how
//! many of them have expired. `list` tells how long pages of listings take (`list.rs`). `copy` does what `fill` does to a database that nobody uses yet (`copy.rs`). Each prints
//! one line of JSON.

mod copy;
mod list;
mod unknown;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::history::History;
use onlyonce_core::key::Key;
use onlyonce_core::record::{
    Draft, Effects, Id, Progress, Record, Response, Revision, Source, State, Terms, Token,
};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::When;
use onlyonce_store::sqlite::{Options, Sqlite};
use onlyonce_store::{Change, Store, Swapped};
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// How many writes are under way at once: they share commits.
const AT_ONCE: u64 = 1024;
const TELL_EVERY: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let report = match words[..] {
        ["fill", path, records, retention_seconds] => {
            fill(path, number(records)?, Duration::from_secs(number(retention_seconds)?)).await?
        }
        ["copy", url, records, retention_seconds] => {
            copy::copy(url, number(records)?, Duration::from_secs(number(retention_seconds)?)).await?
        }
        ["unknown", path, records] => unknown::fill(path, number(records)?).await?,
        ["list", path] => list::list(path).await?,
        ["count", path] => count(path).map_err(io::Error::other)?,
        _ => return Err(io::Error::other("cannot understand that; see the head of bench/fill/src/main.rs")),
    };
    println!("{report}");
    Ok(())
}

fn number(text: &str) -> io::Result<u64> {
    text.parse().map_err(|_| io::Error::other(format!("\"{text}\" is not a number")))
}

async fn fill(path: &str, records: u64, retention: Duration) -> io::Result<Value> {
    let store = Arc::new(Sqlite::open(path, Options::default()).await.map_err(io::Error::other)?);
    let done = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for first in 0..AT_ONCE {
        let (store, done) = (store.clone(), done.clone());
        tasks.spawn(async move {
            let mut number = first;
            while number < records {
                write(&*store, number, retention).await?;
                done.fetch_add(1, Ordering::Relaxed);
                number += AT_ONCE;
            }
            Ok(())
        });
    }
    let telling = tokio::spawn(tell(done, records));
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(io::Error::other).and_then(|written: io::Result<()>| written)?;
    }
    telling.abort();
    // Closing it checkpoints the WAL: the next to open the file finds it at rest.
    drop(store);
    let bytes = std::fs::metadata(path)?.len();
    Ok(json!({ "records": records, "seconds": started.elapsed().as_secs_f64(), "bytes": bytes }))
}

async fn tell(done: Arc<AtomicU64>, records: u64) {
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        eprintln!("filled {} of {records}", done.load(Ordering::Relaxed));
    }
}

async fn write(store: &impl Store, number: u64, retention: Duration) -> io::Result<()> {
    let (id, next) = completed(number, retention);
    match store.swap(id, Change::new(None, revision(number), next)).await.map_err(io::Error::other)? {
        Swapped::Applied(_) => Ok(()),
        Swapped::Lost(_) => Err(io::Error::other("the store has been filled before")),
    }
}

/// One that looks random, the same each time.
fn revision(number: u64) -> Revision {
    Revision(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// What the layer leaves of one payment.
fn completed(number: u64, retention: Duration) -> (Id, Box<Draft>) {
    const HOUR: Duration = Duration::from_secs(3_600);
    let scope = Scope::stored([7; 32], None);
    let key = Key::stored(&format!("fill-{number:012}"));
    let id = Id::of(&scope, &key);
    let response = Response {
        status: 201,
        headers: vec![(CONTENT_TYPE, HeaderValue::from_static("application/json"))],
        body: Bytes::from_static(&[b'x'; 150]),
    };
    let expires_at = When::AfterWrite(retention);
    let draft = Box::new(Record {
        scope,
        key,
        route: Some("POST /payments".into()),
        fingerprint: Fingerprint { version: 1, raw: [9; 32], canonical: None },
        terms: Terms {
            effects: Effects::Opaque,
            lease: Duration::from_secs(30),
            deadline: HOUR,
            horizon: HOUR,
            retention: 24 * HOUR,
            downstream_retention: 24 * HOUR,
            reconcile_first: None,
        },
        attempt: 1,
        token: Token(u128::from(number).to_be_bytes()),
        relies_on_memory: false,
        created_at: When::WRITE,
        began_at: When::WRITE,
        written_at: When::WRITE,
        progress: Progress::default(),
        evidence: None,
        accepted: None,
        history: History::default(),
        trace: None,
        state: State::Completed { response: Some(Arc::new(response)), by: Source::Attempt, expires_at },
    });
    (id, draft)
}

/// Read beside the engine, by the columns it has for people.
fn count(path: &str) -> rusqlite::Result<Value> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let records: i64 = connection.query_row("SELECT count(*) FROM onlyonce_record", [], |row| row.get(0))?;
    let expired: i64 = connection.query_row(
        "SELECT count(*) FROM onlyonce_record WHERE state = 'completed' AND due_at <= ?1",
        [now],
        |row| row.get(0),
    )?;
    Ok(json!({ "records": records, "expired": expired }))
}
