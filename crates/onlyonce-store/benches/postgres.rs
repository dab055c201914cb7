//! What a request costs PostgreSQL: `cargo bench -p onlyonce-store --features postgres --bench postgres`.
//!
//! A request is a reservation and a completion. Counted by the server: WAL, commits, updates within a page (HOT) and dead
//! rows, for the layout as decided and for those that were not, beside an insert and an update as one writes them by hand.
//! Times depend on the machine; the counts hardly do. With a name as argument only what has it in its name is measured.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a bench has no readers of its documentation, and may panic"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::history::History;
use onlyonce_core::key::Key;
use onlyonce_core::record::{
    Draft, Effects, Id, Progress, Record, Response, Revision, Source, State, Terms, Token,
};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::When;
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Change, Store, Swapped};
use onlyonce_testkit::engines::postgres::{Owned, Server};
use tokio_postgres::{Client, NoTls, Statement};

const BY_HAND: &str = "by hand, 32 connections";
const SPAN: Duration = Duration::from_secs(4);
const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::main]
async fn main() {
    let layouts = [
        (BY_HAND, ""),
        ("as decided", ""),
        ("without the index of what is due", "DROP INDEX onlyonce_record_by_due"),
        ("pages half full", "ALTER TABLE onlyonce_record SET (fillfactor = 50)"),
        ("bodies not compressed", "ALTER TABLE onlyonce_record ALTER COLUMN body SET STORAGE EXTERNAL"),
    ];
    println!(
        "layout | body | callers | requests/s | p50 ms | WAL bytes | commits | HOT | dead rows | CPU µs ours, server's (each a request)"
    );
    let only = std::env::args().nth(1).filter(|name| !name.starts_with('-')).unwrap_or_default();
    for (name, change) in layouts.into_iter().filter(|(name, _)| name.contains(&only)) {
        for (callers, body) in [(1, 150), (64, 150), (64, 4_000)] {
            measure(name, change, callers, body).await;
        }
    }
}

async fn measure(name: &str, change: &str, callers: usize, body: usize) {
    // Nothing is carried over in between: a whole page would be written at the first touch after that.
    let server = Server::start(
        &[("autovacuum", "off"), ("max_wal_size", "8GB"), ("checkpoint_timeout", "1h")], // tidy: allow(words) PostgreSQL's own name
    )
    .unwrap();
    let subject =
        if name == BY_HAND { Subject::by_hand(&server).await } else { Subject::store(&server).await };
    let subject = Arc::new(subject);
    if !change.is_empty() {
        server.sql(change);
    }
    let before = figures(&server);
    let cpu_before = cpu(&server);
    let (served, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let tasks: Vec<_> = (0..callers)
        .map(|caller| tokio::spawn(call(subject.clone(), caller, body, served.clone())))
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    let (took, requests) = (began.elapsed().as_secs_f64(), as_float(served.load(Ordering::Relaxed)));
    times.sort_unstable();
    let median = times[times.len() / 2].as_secs_f64() * 1e3;
    // What a session has counted, the others learn when it ends.
    drop(subject);
    while server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onlyonce'") != "0" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let after = figures(&server);
    let each = |place: usize| (after[place] - before[place]) / requests;
    let cpu_after = cpu(&server);
    let cpu = |place: usize| (cpu_after[place] - cpu_before[place]) * 1e4 / requests;
    println!(
        "{name} | {body} | {callers} | {:.0} | {median:.2} | {:.0} | {:.3} | {:.0} % | {:.2} | {:.1}, {:.1}",
        requests / took,
        each(0),
        each(1),
        100.0 * each(2) / each(3),
        each(4),
        cpu(0),
        cpu(1)
    );
}

/// WAL, transactions that wrote, HOT updates, updates, dead rows.
fn figures(server: &Owned) -> Vec<f64> {
    let told = server.sql(
        "SELECT concat_ws(' ', pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0'),
                pg_current_xact_id(),
                n_tup_hot_upd, n_tup_upd, n_dead_tup)
         FROM pg_stat_user_tables WHERE relname = 'onlyonce_record'",
    );
    told.split(' ').map(|figure| figure.parse().unwrap()).collect()
}

/// What is measured.
enum Subject {
    Store(Postgres),
    Hand(Vec<(Client, [Statement; 2])>),
}

impl Subject {
    async fn store(server: &Owned) -> Self {
        let store = Postgres::open(&server.url("postgres"), Options::default()).await.unwrap();
        store.prepare().await.unwrap();
        Self::Store(store)
    }

    async fn by_hand(server: &Owned) -> Self {
        const CONNECTIONS: usize = 32;
        server.sql(
            "CREATE TABLE onlyonce_record (caller text, key text, digest bytea NOT NULL,
                 created_at timestamptz NOT NULL DEFAULT now(), status smallint, body bytea, PRIMARY KEY (caller, key))",
        );
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let url = format!("{}?application_name=onlyonce", server.url("postgres"));
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            tokio::spawn(connection);
            const INSERT: &str = "INSERT INTO onlyonce_record (caller, key, digest) VALUES ('acme', $1, $2) ON CONFLICT DO NOTHING";
            const UPDATE: &str =
                "UPDATE onlyonce_record SET status = 201, body = $2 WHERE caller = 'acme' AND key = $1";
            let statements = [client.prepare(INSERT).await.unwrap(), client.prepare(UPDATE).await.unwrap()];
            clients.push((client, statements));
        }
        Self::Hand(clients)
    }

    async fn request(&self, caller: usize, key: &str, body: Vec<u8>) {
        match self {
            Self::Store(store) => {
                let (id, reserved) = record(key, State::Running { lapses_at: When::AfterWrite(HOUR) });
                swap(store, id, None, 1, reserved).await;
                let response = Response { status: 201, headers: Vec::new(), body: Bytes::from(body) };
                let done = State::Completed {
                    response: Some(Arc::new(response)),
                    by: Source::Attempt,
                    expires_at: When::AfterWrite(HOUR),
                };
                let (id, done) = record(key, done);
                swap(store, id, Some(Revision(1)), 2, done).await;
            }
            Self::Hand(clients) => {
                let (client, [insert, update]) = &clients[caller % clients.len()];
                client.execute(insert, &[&key, &&[9_u8; 32][..]]).await.unwrap();
                client.execute(update, &[&key, &body]).await.unwrap();
            }
        }
    }
}

/// CPU time of this process and of the server's, in hundredths of a second.
fn cpu(server: &Owned) -> [f64; 2] {
    let pid = std::fs::read_to_string(server.folder().join("data/postmaster.pid")).unwrap();
    let pid = pid.lines().next().unwrap().to_owned();
    // Of a process, and of its children that have ended.
    let spent = |pid: &str| -> Option<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<f64> = stat
            .rsplit(')')
            .next()?
            .split(' ')
            .skip(12)
            .take(4)
            .map(|field| field.parse().unwrap())
            .collect();
        Some(fields.iter().sum())
    };
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let server: f64 = children.split_whitespace().chain([&*pid]).filter_map(spent).sum();
    [spent("self").unwrap_or(0.0), server]
}

async fn call(subject: Arc<Subject>, caller: usize, body: usize, served: Arc<AtomicU64>) -> Vec<Duration> {
    let (began, mut times) = (Instant::now(), Vec::new());
    let mut number = 0;
    while began.elapsed() < SPAN {
        number += 1;
        let body = (0..body).map(|at| b"{\"amount\": 120, "[(at * 7 + number) % 16]).collect::<Vec<u8>>();
        let begun = Instant::now();
        subject.request(caller, &format!("{caller} {number}"), body).await;
        times.push(begun.elapsed());
        served.fetch_add(1, Ordering::Relaxed);
    }
    times
}

async fn swap(store: &Postgres, id: Id, expected: Option<Revision>, revision: u64, next: Box<Draft>) {
    let change = Change::new(expected, Revision(revision), next);
    assert!(matches!(store.swap(id, change).await.unwrap(), Swapped::Applied(_)));
}

fn record(key: &str, state: State<When>) -> (Id, Box<Draft>) {
    let (scope, key) = (Scope::stored([1; 32], Some("acme".into())), Key::stored(key));
    let id = Id::of(&scope, &key);
    let draft = Record {
        scope,
        key,
        route: Some("POST /payments".into()),
        fingerprint: Fingerprint { version: 1, raw: [9; 32], canonical: None },
        terms: Terms {
            effects: Effects::Opaque,
            lease: HOUR,
            deadline: 2 * HOUR,
            horizon: HOUR,
            retention: HOUR,
            downstream_retention: 24 * HOUR,
            reconcile_first: None,
        },
        attempt: 1,
        token: Token([5; 16]),
        relies_on_memory: false,
        created_at: When::WRITE,
        began_at: When::WRITE,
        written_at: When::WRITE,
        progress: Progress::default(),
        evidence: None,
        accepted: None,
        history: History::default(),
        trace: None,
        state,
    };
    (id, Box::new(draft))
}

#[allow(clippy::cast_precision_loss, reason = "a count of seconds' work")]
fn as_float(count: u64) -> f64 {
    count as f64
}
