//! Makes a table of PostgreSQL large: by `COPY`, without the engine and its batches, in the engine's own layout.
//!
//! The engine creates the tables and writes one record. Its row is the template: every other row has the same values, except
//! for the columns in [`MADE`]. Nothing here knows what the other columns are or how they are encoded.
//!
//! The table's indexes are dropped meanwhile and built at the end; pages are as full as requests leave them. All of it is one
//! transaction on an empty table, so rows can be written frozen, as a vacuum would have left them.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::SinkExt;
use onlyonce_core::record::Id;
use onlyonce_store::Store;
use onlyonce_store::postgres::{Options, Postgres};
use serde_json::{Value, json};
use tokio_postgres::types::{FromSql, Type};
use tokio_postgres::{Client, CopyInSink, NoTls, Row};

use crate::{completed, revision, write};

const CHUNK_BYTES: usize = 1 << 18;
/// Between two records, as though ten thousand had been written a second, until now.
const APART_MICROS: i64 = 100;
/// So many records have the same moments: those of one batch. Measured under 64 callers: 18.
const TOGETHER: u64 = 16;
const TELL_EVERY: u64 = 1_000_000;
/// How full in percent the pages of the table and of its primary key's index are, vacuumed after half a million requests of 64
/// callers. Keys come in no order, and a completion is a second row with a second entry until vacuum removes the first.
const PAGE_FULL: u32 = 80;
const INDEX_FULL: u32 = 55;

/// The columns in which rows differ.
const MADE: [(&str, Made); 9] = [
    ("id", Made::Id),
    ("revision", Made::Revision),
    ("key", Made::Key),
    ("token", Made::Token),
    ("created_at", Made::WrittenAt),
    ("began_at", Made::WrittenAt),
    ("written_at", Made::WrittenAt),
    ("due_at", Made::ExpiresAt),
    ("expires_at", Made::ExpiresAt),
];

#[derive(Clone, Copy)]
enum Made {
    Id,
    Revision,
    Key,
    Token,
    WrittenAt,
    ExpiresAt,
}

pub(crate) async fn copy(url: &str, records: u64, retention: Duration) -> io::Result<Value> {
    let store = Postgres::open(url, Options::default()).await.map_err(io::Error::other)?;
    store.prepare().await.map_err(io::Error::other)?;
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(io::Error::other)?;
    let driver = tokio::spawn(connection);
    let began = Instant::now();
    write(&store, 0, retention).await?;
    let template = Template::read(&client, completed(0, retention).0).await?;
    fill(&client, &template, records, retention).await.map_err(io::Error::other)?;
    check(&store, records, retention).await?;
    let bytes = told(&client, "SELECT pg_total_relation_size('onlyonce_record')").await?;
    drop(client);
    driver.await?.map_err(io::Error::other)?;
    Ok(json!({ "records": records, "seconds": began.elapsed().as_secs_f64(), "bytes": bytes }))
}

async fn fill(
    client: &Client,
    template: &Template,
    records: u64,
    retention: Duration,
) -> Result<(), tokio_postgres::Error> {
    const INDEXES: &str = "
        SELECT indexrelid::regclass::text, indisprimary, pg_get_indexdef(indexrelid)
        FROM pg_index WHERE indrelid = 'onlyonce_record'::regclass";
    let indexes = client.query(INDEXES, &[]).await?;
    let less_full = format!("ALTER TABLE onlyonce_record SET (fillfactor = {PAGE_FULL})");
    client.batch_execute(&format!("BEGIN; TRUNCATE onlyonce_record; {less_full}")).await?;
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
    rows(client, template, records, retention).await?;
    client.batch_execute("SET LOCAL maintenance_work_mem = '1GB'").await?;
    for make in again {
        client.batch_execute(&make).await?;
    }
    client.batch_execute("ALTER TABLE onlyonce_record RESET (fillfactor); COMMIT").await?;
    client.batch_execute("ANALYZE onlyonce_record; CHECKPOINT").await
}

async fn rows(
    client: &Client,
    template: &Template,
    records: u64,
    retention: Duration,
) -> Result<(), tokio_postgres::Error> {
    /// As the server sends moments: in microseconds since 2000.
    const NOW: &str = "
        SELECT (extract(epoch FROM clock_timestamp() - timestamptz '2000-01-01 00:00:00Z') * 1000000)::bigint";
    let now: i64 = client.query_one(NOW, &[]).await?.get(0);
    let mut sink = Sink::begin(client, &template.copy()).await?;
    for number in 0..records {
        let batch_began = number - number % TOGETHER;
        let age = i64::try_from(records - batch_began).unwrap_or(i64::MAX).saturating_mul(APART_MICROS);
        template.put(&mut sink.chunk, number, retention, now - age);
        sink.send().await?;
        if number > 0 && number.is_multiple_of(TELL_EVERY) {
            eprintln!("filled {number} of {records}");
        }
    }
    sink.finish().await
}

/// Checks that the engine reads a copied row as it would read its own.
async fn check(store: &Postgres, records: u64, retention: Duration) -> io::Result<()> {
    let Some(last) = records.checked_sub(1) else { return Ok(()) };
    let (id, draft) = completed(last, retention);
    let seen = store.load(id).await.map_err(io::Error::other)?;
    let is_same = seen.is_some_and(|seen| {
        let record = &seen.record;
        (&record.key, &record.token, &record.fingerprint) == (&draft.key, &draft.token, &draft.fingerprint)
            && seen.revision == revision(last)
    });
    if is_same { Ok(()) } else { Err(io::Error::other("the engine does not find what was copied")) }
}

/// A row as the engine wrote it.
struct Template {
    /// In the order of the table.
    columns: Vec<(String, Column)>,
}

enum Column {
    Made(Made),
    /// As the server sent it, which is also how `COPY` takes it. `None` is a null.
    Same(Option<Vec<u8>>),
}

impl Template {
    async fn read(client: &Client, id: Id) -> io::Result<Self> {
        let row = client.query_one("SELECT * FROM onlyonce_record WHERE id = $1", &[&&id.0[..]]).await;
        let row = row.map_err(io::Error::other)?;
        let template = Self { columns: (0..row.len()).map(|place| column(&row, place)).collect() };
        let is_missing = |name: &str| !template.columns.iter().any(|(own, _)| own == name);
        match MADE.iter().find(|(name, _)| is_missing(name)) {
            Some((name, _)) => Err(io::Error::other(format!("onlyonce_record has no column \"{name}\""))),
            None => Ok(template),
        }
    }

    fn copy(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        format!("COPY onlyonce_record ({}) FROM STDIN (FORMAT binary, FREEZE)", names.join(", "))
    }

    /// A row in the binary form of `COPY`.
    fn put(&self, out: &mut BytesMut, number: u64, retention: Duration, written_at: i64) {
        let (id, draft) = completed(number, retention);
        let expires_at = written_at + i64::try_from(retention.as_micros()).unwrap_or(i64::MAX / 2);
        out.put_i16(i16::try_from(self.columns.len()).expect("a table has few columns"));
        for (_, column) in &self.columns {
            match column {
                Column::Same(value) => field(out, value.as_deref()),
                Column::Made(Made::Id) => field(out, Some(&id.0)),
                Column::Made(Made::Revision) => field(out, Some(&revision(number).0.to_be_bytes())),
                Column::Made(Made::Key) => field(out, Some(draft.key.as_str().as_bytes())),
                Column::Made(Made::Token) => field(out, Some(&draft.token.0)),
                Column::Made(Made::WrittenAt) => field(out, Some(&written_at.to_be_bytes())),
                Column::Made(Made::ExpiresAt) => field(out, Some(&expires_at.to_be_bytes())),
            }
        }
    }
}

fn column(row: &Row, place: usize) -> (String, Column) {
    let name = row.columns()[place].name();
    let made = MADE.iter().find(|(own, _)| *own == name);
    let column = match made {
        Some((_, made)) => Column::Made(*made),
        None => Column::Same(row.get::<_, Option<Raw>>(place).map(|raw| raw.0)),
    };
    (name.to_owned(), column)
}

/// A value of any type, as the server sent it.
struct Raw(Vec<u8>);

impl FromSql<'_> for Raw {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw.to_vec()))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
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
