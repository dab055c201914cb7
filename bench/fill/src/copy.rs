//! Makes a table of PostgreSQL large: by `COPY`, past the engine and its batches, in the engine's own shape.
//!
//! The engine makes the tables. The records' indexes are put aside meanwhile and built at the end, as full as random keys leave
//! them when they come one by one. It is one transaction on an empty table, so that rows are at rest at once, as a
//! vacuum would have left them.

use std::io;
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::SinkExt;
use onlyonce_core::record::Id;
use onlyonce_core::time::Timestamp;
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Store, codec};
use serde_json::{Value, json};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, CopyInSink, NoTls};

use crate::completed;

const CHUNK_BYTES: usize = 1 << 18;
/// Between two records, as though ten thousand had been written a second, until now.
const APART_MICROS: i64 = 100;
const TELL_EVERY: u64 = 1_000_000;
/// 2000-01-01, in microseconds since the Unix epoch: where the server's moments begin.
const EPOCH: i64 = 946_684_800_000_000;
/// As many as the engine lists in a row.
const LISTED_TOGETHER: usize = 48;
/// How full the pages of records are when all of them are completed: 1,140 bytes for one of these.
const PAGE_FULL: u32 = 57;
/// How full the pages of an index are whose keys came in no order.
const INDEX_FULL: u32 = 70;

pub(crate) async fn copy(url: &str, records: u64, retention: Duration) -> io::Result<Value> {
    let store = Postgres::open(url, Options::default()).await.map_err(io::Error::other)?;
    store.prepare().await.map_err(io::Error::other)?;
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(io::Error::other)?;
    let driver = tokio::spawn(connection);
    let began = Instant::now();
    fill(&client, records, retention).await.map_err(io::Error::other)?;
    let bytes = told(&client, "SELECT pg_total_relation_size('onlyonce_record')").await?;
    drop(client);
    driver.await?.map_err(io::Error::other)?;
    Ok(json!({ "records": records, "seconds": began.elapsed().as_secs_f64(), "bytes": bytes }))
}

async fn fill(client: &Client, records: u64, retention: Duration) -> Result<(), tokio_postgres::Error> {
    const INDEXES: &str = "
        SELECT indexrelid::regclass::text, indisprimary, pg_get_indexdef(indexrelid)
        FROM pg_index WHERE indrelid = 'onlyonce_record'::regclass";
    let indexes = client.query(INDEXES, &[]).await?;
    let half_full = format!("ALTER TABLE onlyonce_record SET (fillfactor = {PAGE_FULL})");
    client.batch_execute(&format!("BEGIN; TRUNCATE onlyonce_record, onlyonce_due; {half_full}")).await?;
    let mut again = Vec::new();
    for index in &indexes {
        let (name, is_primary, definition): (&str, bool, &str) = (index.get(0), index.get(1), index.get(2));
        let (drop, make) = if is_primary {
            let table = "ALTER TABLE onlyonce_record";
            let key =
                format!("{table} ADD CONSTRAINT {name} PRIMARY KEY (id) WITH (fillfactor = {INDEX_FULL})");
            (format!("{table} DROP CONSTRAINT {name}"), key)
        } else {
            (format!("DROP INDEX {name}"), definition.to_owned())
        };
        client.batch_execute(&drop).await?;
        again.push(make);
    }
    let lists = rows(client, records, retention).await?;
    due(client, &lists).await?;
    client.batch_execute("SET LOCAL maintenance_work_mem = '1GB'").await?;
    for make in again {
        client.batch_execute(&make).await?;
    }
    client.batch_execute("ALTER TABLE onlyonce_record SET (fillfactor = 45); COMMIT").await?;
    client.batch_execute("ANALYZE onlyonce_record; ANALYZE onlyonce_due; CHECKPOINT").await
}

/// What a row of the engine's list of what is due says.
struct List {
    due_at: i64,
    ids: Vec<Id>,
}

/// Copies the records, and tells how they are to be listed.
async fn rows(
    client: &Client,
    records: u64,
    retention: Duration,
) -> Result<Vec<List>, tokio_postgres::Error> {
    const COPY: &str = "
        COPY onlyonce_record (id, revision, written_at, due_at, state, scope, label, key, route, record)
        FROM STDIN (FORMAT binary, FREEZE)";
    const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let now = Timestamp::from_micros(client.query_one(NOW, &[]).await?.get(0));
    let mut lists: Vec<List> = Vec::new();
    let mut sink = Sink::begin(client, COPY).await?;
    for number in 0..records {
        let age = i64::try_from(records - number).unwrap_or(i64::MAX).saturating_mul(APART_MICROS);
        let written_at = Timestamp::from_micros(now.as_micros() - age);
        let (id, due_at) = row(&mut sink.chunk, number, retention, written_at);
        match lists.last_mut() {
            Some(list) if list.ids.len() < LISTED_TOGETHER => list.ids.push(id),
            _ => lists.push(List { due_at, ids: vec![id] }),
        }
        sink.send().await?;
        if number > 0 && number.is_multiple_of(TELL_EVERY) {
            eprintln!("filled {number} of {records}");
        }
    }
    sink.finish().await?;
    Ok(lists)
}

async fn due(client: &Client, lists: &[List]) -> Result<(), tokio_postgres::Error> {
    const COPY: &str = "COPY onlyonce_due (state, due_at, ids) FROM STDIN (FORMAT binary, FREEZE)";
    let mut sink = Sink::begin(client, COPY).await?;
    for List { due_at, ids } in lists {
        let mut array = BytesMut::new();
        // One dimension, no nulls, of bytea, from 1 on.
        let count = i32::try_from(ids.len()).expect("a row lists few");
        let bytea = i32::try_from(Type::BYTEA.oid()).expect("a small number");
        for word in [1, 0, bytea, count, 1] {
            array.put_i32(word);
        }
        ids.iter().for_each(|id| field(&mut array, Some(&id.0)));
        sink.chunk.put_i16(3);
        field(&mut sink.chunk, Some(b"completed"));
        field(&mut sink.chunk, Some(&due_at.to_be_bytes()));
        field(&mut sink.chunk, Some(&array));
        sink.send().await?;
    }
    sink.finish().await
}

/// Where rows in the binary form of `COPY` go, a chunk at a time.
struct Sink {
    sink: Pin<Box<CopyInSink<Bytes>>>,
    chunk: BytesMut,
}

impl Sink {
    async fn begin(client: &Client, copy: &str) -> Result<Self, tokio_postgres::Error> {
        let mut chunk = BytesMut::with_capacity(2 * CHUNK_BYTES);
        chunk.put_slice(b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0");
        Ok(Self { sink: Box::pin(client.copy_in(copy).await?), chunk })
    }

    async fn send(&mut self) -> Result<(), tokio_postgres::Error> {
        if self.chunk.len() < CHUNK_BYTES {
            return Ok(());
        }
        self.sink.send(self.chunk.split().freeze()).await
    }

    async fn finish(mut self) -> Result<(), tokio_postgres::Error> {
        self.chunk.put_i16(-1);
        self.sink.send(self.chunk.freeze()).await?;
        self.sink.as_mut().finish().await.map(drop)
    }
}

/// As the engine writes it, in the binary form of `COPY`.
fn row(out: &mut BytesMut, number: u64, retention: Duration, written_at: Timestamp) -> (Id, i64) {
    let (id, draft) = completed(number, retention);
    let written_at = written_at.as_micros() - EPOCH;
    let due_at = written_at + i64::try_from(retention.as_micros()).unwrap_or(i64::MAX / 2);
    let revision = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let (written, due, record) = (written_at.to_be_bytes(), due_at.to_be_bytes(), codec::encode(&draft));
    let fields: [Option<&[u8]>; 10] = [
        Some(&id.0),
        Some(&revision),
        Some(&written),
        Some(&due),
        Some(draft.state.name().as_str().as_bytes()),
        Some(draft.scope.digest()),
        draft.scope.label().map(str::as_bytes),
        Some(draft.key.as_str().as_bytes()),
        draft.route.as_deref().map(str::as_bytes),
        Some(&record),
    ];
    out.put_i16(10);
    for value in fields {
        field(out, value);
    }
    (id, due_at)
}

fn field(out: &mut BytesMut, value: Option<&[u8]>) {
    match value {
        Some(bytes) => {
            out.put_i32(i32::try_from(bytes.len()).expect("a field is small"));
            out.put_slice(bytes);
        }
        None => out.put_i32(-1),
    }
}

async fn told(client: &Client, sql: &str) -> io::Result<i64> {
    Ok(client.query_one(sql, &[]).await.map_err(io::Error::other)?.get(0))
}
