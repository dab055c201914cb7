//! What the embedded engine costs. The figures are kept in docs/decisions/0013-sqlite-layout.md.
//!
//! ```text
//! cargo bench -p onlyonce-store --features sqlite --bench sqlite -- swaps CALLERS ROWS SECONDS [FOLDER]
//! cargo bench -p onlyonce-store --features sqlite --bench sqlite -- reap CALLERS ROWS SECONDS [FOLDER]
//! cargo bench -p onlyonce-store --features sqlite --bench sqlite -- open ROWS [FOLDER]
//! cargo bench -p onlyonce-store --features sqlite --bench sqlite -- fsync [FOLDER]
//! ```
//!
//! `PAGE_BYTES` and `CACHE_BYTES` set those options, `KEEP` keeps the file of `swaps` and `SEED` begins with such a file.
//!
//! A request is what a fresh key costs: a reservation, and its completion with a body of 150 bytes.

#![allow(clippy::unwrap_used, reason = "a measurement that fails ends")]

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
use onlyonce_store::sqlite::{Options, Sqlite};
use onlyonce_store::{Change, Store, Swapped};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match words[..] {
        ["swaps", callers, rows, seconds, ref rest @ ..] => {
            runtime.block_on(swaps(number(callers), number(rows), number(seconds), &folder(rest)));
        }
        ["reap", callers, rows, seconds, ref rest @ ..] => {
            runtime.block_on(reap(number(callers), number(rows), number(seconds), &folder(rest)));
        }
        ["open", rows, ref rest @ ..] => runtime.block_on(open(number(rows), &folder(rest))),
        ["fsync", ref rest @ ..] => fsync(&folder(rest)),
        _ => println!("nothing to measure: name one of swaps, reap, open, fsync"),
    }
}

fn options() -> Options {
    let default = Options::default();
    let variable = |name| std::env::var(name).ok().map(|text| number(&text));
    let page_bytes = variable("PAGE_BYTES").map_or(default.page_bytes, |bytes| u32::try_from(bytes).unwrap());
    let cache_bytes =
        variable("CACHE_BYTES").map_or(default.cache_bytes, |bytes| usize::try_from(bytes).unwrap());
    Options { page_bytes, cache_bytes, ..default }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap()
}

fn folder(rest: &[&str]) -> PathBuf {
    let parent = rest.first().map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = parent.join(format!("onlyonce-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

async fn swaps(callers: u64, rows: u64, seconds: u64, folder: &Path) {
    let path = folder.join("onlyonce.db");
    let store = filled(&path, rows).await;
    if let Ok(keep) = std::env::var("KEEP") {
        store.backup(keep, |_| {}).await.unwrap();
    }
    let load = Load::run(&store, callers, rows, Duration::from_secs(seconds)).await;
    println!("{callers} callers, {rows} rows before: {load}");
    drop(store);
    let bytes = fs::metadata(&path).unwrap().len();
    println!("file {} MB, {} bytes a record", bytes >> 20, bytes / (rows + load.requests));
    fs::remove_dir_all(folder).unwrap();
}

/// A store of so many rows: a copy of the file `SEED`, kept by an earlier run with `KEEP`, or a new one.
async fn filled(path: &Path, rows: u64) -> Arc<Sqlite> {
    let seed = std::env::var("SEED").ok();
    if let Some(seed) = &seed {
        fs::copy(seed, path).unwrap();
        fs::File::open(path).unwrap().sync_all().unwrap();
    }
    let store = Arc::new(Sqlite::open(path, options()).await.unwrap());
    if seed.is_none() {
        fill(&store, rows, Duration::from_secs(86_400)).await;
    }
    store
}

/// The same load without and with a reaper that has all `rows` to delete.
async fn reap(callers: u64, rows: u64, seconds: u64, folder: &Path) {
    let store = Arc::new(Sqlite::open(folder.join("onlyonce.db"), options()).await.unwrap());
    fill(&store, rows, Duration::ZERO).await;
    let without = Load::run(&store, callers, rows, Duration::from_secs(seconds)).await;
    println!("{callers} callers without reaping: {without}");
    let (is_over, reaped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let reaper = tokio::spawn({
        let (store, is_over, reaped) = (store.clone(), is_over.clone(), reaped.clone());
        async move {
            while !is_over.load(Ordering::Relaxed) {
                let count = store.reap(64).await.unwrap();
                reaped.fetch_add(count as u64, Ordering::Relaxed);
                if count == 0 {
                    break;
                }
            }
        }
    });
    let first = rows + without.requests;
    let with = Load::run(&store, callers, first, Duration::from_secs(seconds)).await;
    is_over.store(true, Ordering::Relaxed);
    reaper.await.unwrap();
    println!("{callers} callers with reaping: {with}; {} reaped", reaped.load(Ordering::Relaxed));
    drop(store);
    fs::remove_dir_all(folder).unwrap();
}

/// A process that is killed with a WAL as it is under load, and the next one.
async fn open(rows: u64, folder: &Path) {
    let path = folder.join("onlyonce.db");
    let store = filled(&path, rows).await;
    let load = Load::run(&store, 64, rows, Duration::from_secs(1)).await;
    for number in 0..64 {
        let (id, next) = draft(rows + load.requests + number, running());
        let change = Change::new(None, Revision(number), next);
        store.swap(id, change).await.unwrap();
    }
    // What a killed process leaves: the files as they are. (Its lock went with it.)
    let killed = folder.join("killed.db");
    for ending in ["", "-wal"] {
        let from = folder.join(format!("onlyonce.db{ending}"));
        let bytes = fs::copy(from, folder.join(format!("killed.db{ending}"))).unwrap();
        println!("killed.db{ending}: {} KB", bytes >> 10);
    }
    let started = Instant::now();
    let opened = Sqlite::open(&killed, options()).await.unwrap();
    println!("{rows} rows: ready after {:?}; {:?}", started.elapsed(), opened.figures());
    drop((opened, store));
    fs::remove_dir_all(folder).unwrap();
}

/// The bare disk, to see the rest beside it.
fn fsync(folder: &Path) {
    const COUNT: u32 = 2_000;
    let mut file = OpenOptions::new().create(true).append(true).open(folder.join("bare")).unwrap();
    let started = Instant::now();
    for _ in 0..COUNT {
        file.write_all(&[7; 4096]).unwrap();
        file.sync_all().unwrap();
    }
    println!("append 4 KiB and fsync: {:?}", started.elapsed() / COUNT);
    fs::remove_dir_all(folder).unwrap();
}

/// What a load has come to.
struct Load {
    requests: u64,
    elapsed: Duration,
    commits: u64,
    checkpoints: u64,
    written_bytes: u64,
    cpu: Duration,
    /// Of single swaps, sorted.
    spans: Vec<Duration>,
}

impl Load {
    async fn run(store: &Arc<Sqlite>, callers: u64, first: u64, span: Duration) -> Self {
        let next = Arc::new(AtomicU64::new(first));
        let (before, written, started) = (store.figures(), written_bytes(), Instant::now());
        let cpu_before = cpu();
        let tasks: Vec<_> = (0..callers)
            .map(|_| {
                let (store, next) = (store.clone(), next.clone());
                tokio::spawn(async move {
                    let mut spans = Vec::new();
                    while started.elapsed() < span {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        request(&store, number, Duration::from_secs(86_400), &mut spans).await;
                    }
                    spans
                })
            })
            .collect();
        let mut spans = Vec::new();
        for task in tasks {
            spans.extend(task.await.unwrap());
        }
        let elapsed = started.elapsed();
        spans.sort_unstable();
        let after = store.figures();
        Self {
            requests: next.load(Ordering::Relaxed) - first,
            elapsed,
            commits: after.commits - before.commits,
            checkpoints: after.checkpoints - before.checkpoints,
            written_bytes: written_bytes() - written,
            cpu: cpu() - cpu_before,
            spans,
        }
    }

    fn percentile(&self, part: usize, of: usize) -> Duration {
        self.spans[(self.spans.len() * part / of).min(self.spans.len() - 1)]
    }
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let requests = self.requests as f64;
        write!(
            f,
            "{:.0} requests/s, {:.1} µs CPU each; a swap p50 {:?} p99 {:?} p99.9 {:?} max {:?}; {:.3} commits, {:.0} bytes written a \
             request; {} checkpoints",
            requests / self.elapsed.as_secs_f64(),
            self.cpu.as_secs_f64() * 1e6 / requests,
            self.percentile(50, 100),
            self.percentile(99, 100),
            self.percentile(999, 1000),
            self.percentile(1, 1),
            self.commits as f64 / requests,
            self.written_bytes as f64 / requests,
            self.checkpoints
        )
    }
}

/// What this process has caused to be written to disks, by the kernel's count.
fn written_bytes() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// What this process has used of the processors, in ticks of 10 ms.
fn cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = after_name.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
    Duration::from_millis(10 * ticks.sum::<u64>())
}

async fn fill(store: &Arc<Sqlite>, rows: u64, retention: Duration) {
    const CALLERS: u64 = 256;
    let started = Instant::now();
    let tasks: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut number = caller;
                while number < rows {
                    request(&store, number, retention, &mut Vec::new()).await;
                    number += CALLERS;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    println!("{rows} rows in {:?}", started.elapsed());
}

async fn request(store: &Sqlite, number: u64, retention: Duration, spans: &mut Vec<Duration>) {
    let (id, next) = draft(number, running());
    let revision = Revision(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let started = Instant::now();
    let change = Change::new(None, revision, next);
    applied(&store.swap(id, change).await.unwrap());
    spans.push(started.elapsed());
    let response = Response { status: 201, headers: Vec::new(), body: Bytes::from_static(&[b'x'; 150]) };
    let expires_at = When::AfterWrite(retention);
    let done = State::Completed { response: Some(Arc::new(response)), by: Source::Attempt, expires_at };
    let (_, next) = draft(number, done);
    let change = Change::new(Some(revision), Revision(!revision.0), next);
    let started = Instant::now();
    applied(&store.swap(id, change).await.unwrap());
    spans.push(started.elapsed());
}

fn applied(swapped: &Swapped) {
    assert!(matches!(swapped, Swapped::Applied(_)), "{swapped:?}");
}

fn running() -> State<When> {
    State::Running { lapses_at: When::AfterWrite(Duration::from_secs(30)) }
}

fn draft(number: u64, state: State<When>) -> (Id, Box<Draft>) {
    const HOUR: Duration = Duration::from_secs(3_600);
    let scope = Scope::stored([7; 32], Some("acme".into()));
    let key = Key::stored(&format!("3f0c1a52-7b1e-4d7e-9a57-{number:012}"));
    let id = Id::of(&scope, &key);
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
        state,
    });
    (id, draft)
}
