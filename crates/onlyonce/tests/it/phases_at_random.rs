//! Handlers of random phases and calls, on the embedded store, whose process dies at random places. A failure shrinks to the
//! shortest handler and the fewest deaths.
//!
//! A process is a runtime with a store of its own on one file. It dies as a whole: what it had not committed is gone, and the
//! next one settles what it left. What was done outside is in the [`Ledger`], which outlives them all.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use onlyonce::phase::Called;
use onlyonce::store::sqlite::{Options, Sqlite};
use onlyonce::{Attempt, Effects, Onlyonce, Policy, Problem};
use proptest::prelude::*;
use tokio::sync::Notify;
use tower::ServiceExt;

use crate::world::{Answer, order};

const NAMES: [&str; 4] = ["one", "two", "three", "four"];
/// The step of the row that is written with the completion.
const COMPLETED: &str = "completed";
/// How long a file may stay held by a store that was dropped.
const FREE_WITHIN: Duration = Duration::from_secs(20);

/// A step of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A phase: one row.
    Rows,
    Call(Effects),
}

/// How an attempt ends: at this step, or at the completion, which stands behind the last one.
#[derive(Clone, Copy, Debug)]
struct End {
    at: usize,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// The process dies before the step.
    DiesBefore,
    /// It dies when the call was made, or the completion committed, and it has not heard of it.
    DiesInside,
    /// It dies after the step.
    DiesAfter,
    /// The work fails and is rolled back; a call is not made.
    Fails,
    /// The answer to a call is lost; work fails.
    IsLost,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Rows),
        3 => Just(Step::Call(Effects::Keyed)),
        1 => Just(Step::Call(Effects::Queryable)),
        1 => Just(Step::Call(Effects::Opaque)),
    ]
}

fn end() -> impl Strategy<Value = End> {
    let how = prop_oneof![
        Just(How::DiesBefore),
        Just(How::DiesInside),
        Just(How::DiesAfter),
        Just(How::Fails),
        Just(How::IsLost),
    ];
    (0..=NAMES.len(), how).prop_map(|(at, how)| End { at, how })
}

/// What was done outside the store, by all attempts.
#[derive(Debug, Default)]
struct Ledger {
    /// The keys that each call was made with.
    calls: BTreeMap<usize, Vec<String>>,
    /// The results that handlers were given.
    results: BTreeMap<usize, u64>,
    /// What must not have been.
    wrong: Vec<String>,
}

impl Ledger {
    /// Makes a call. Downstream does it once for each key, and gives its result again.
    fn call(&mut self, at: usize, effects: Effects, key: &str) -> u64 {
        if self.results.contains_key(&at) {
            self.wrong.push(format!("{} is called again behind its result", NAMES[at]));
        }
        let keys = self.calls.entry(at).or_default();
        if effects != Effects::Keyed && !keys.is_empty() {
            self.wrong.push(format!("{} is called twice", NAMES[at]));
        }
        keys.push(key.to_owned());
        let distinct: BTreeSet<_> = keys.iter().collect();
        if distinct.len() > 1 {
            self.wrong.push(format!("{} is called with two keys", NAMES[at]));
        }
        (at * 100 + distinct.len()) as u64
    }

    /// A handler has this result.
    fn result(&mut self, at: usize, result: u64) {
        let first = *self.results.entry(at).or_insert(result);
        if first != result {
            self.wrong.push(format!("the result of {} was {first}, then {result}", NAMES[at]));
        }
    }

    /// Whether somebody was called and nobody knows what came of it.
    fn is_in_doubt(&self, steps: &[Step]) -> bool {
        self.calls.keys().any(|at| steps[*at] != Step::Call(Effects::Keyed) && !self.results.contains_key(at))
    }
}

/// One attempt's process, as its handler knows it.
#[derive(Clone)]
struct Process {
    steps: Arc<[Step]>,
    end: Option<End>,
    store: Arc<Sqlite>,
    ledger: Arc<Mutex<Ledger>>,
    died: Arc<Notify>,
}

impl Process {
    fn ends(&self, at: usize, how: How) -> bool {
        self.end.is_some_and(|end| end.at.min(self.steps.len()) == at && end.how == how)
    }

    async fn dies(&self) -> ! {
        self.died.notify_one();
        std::future::pending().await
    }

    async fn handle(self, attempt: Attempt) -> Result<Response, Problem> {
        let mut results = Vec::new();
        for (at, step) in self.steps.iter().enumerate() {
            if self.ends(at, How::DiesBefore) {
                self.dies().await;
            }
            let result = match step {
                Step::Rows => self.rows(&attempt, at).await?,
                Step::Call(effects) => self.call(&attempt, at, *effects).await?,
            };
            self.ledger.lock().unwrap().result(at, result);
            results.push(result.to_string());
            if self.ends(at, How::DiesAfter) {
                self.dies().await;
            }
        }
        self.complete(&attempt, results.join(" ")).await
    }

    async fn rows(&self, attempt: &Attempt, at: usize) -> Result<u64, Problem> {
        let fails = self.ends(at, How::Fails) || self.ends(at, How::IsLost);
        let row = attempt.phase_blocking(&self.store, NAMES[at], move |tx| {
            tx.execute("INSERT INTO row VALUES (?1)", [NAMES[at]])?;
            if fails { Err(rusqlite::Error::InvalidQuery) } else { Ok(at as u64) }
        });
        Ok(row.await?)
    }

    async fn call(&self, attempt: &Attempt, at: usize, effects: Effects) -> Result<u64, Problem> {
        let called = attempt.foreign(NAMES[at], effects, async |call| {
            if self.ends(at, How::Fails) {
                return Err(Called::DidNotRun(io::Error::other("refused")));
            }
            let result = self.ledger.lock().unwrap().call(at, effects, call.key());
            if self.ends(at, How::DiesInside) {
                self.dies().await;
            }
            if self.ends(at, How::IsLost) {
                return Err(Called::Unknown(io::Error::other("lost")));
            }
            Ok(result)
        });
        Ok(called.await?)
    }

    async fn complete(&self, attempt: &Attempt, body: String) -> Result<Response, Problem> {
        let at = self.steps.len();
        if self.ends(at, How::DiesBefore) {
            self.dies().await;
        }
        if self.ends(at, How::Fails) || self.ends(at, How::IsLost) {
            return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
        }
        let completing = attempt.clone();
        let written = self.store.write(move |tx| {
            tx.execute("INSERT INTO row VALUES (?1)", [COMPLETED])?;
            let response = http::Response::builder().status(StatusCode::CREATED).body(body)?;
            completing.complete_in(tx, &response)?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        });
        if let Err(error) = written.await {
            return Ok((StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response());
        }
        if self.ends(at, How::DiesInside) || self.ends(at, How::DiesAfter) {
            self.dies().await;
        }
        Ok("something else".into_response())
    }
}

/// A file that goes with the case.
struct File(PathBuf);

impl File {
    fn new() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("onlyonce-phases-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.join("onlyonce.db")
    }

    /// How often each row is there, by its step.
    fn rows(&self) -> BTreeMap<String, u32> {
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        let mut statement = connection.prepare("SELECT step, count(*) FROM row GROUP BY step").unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(Result::unwrap).collect()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn open(path: &Path) -> Arc<Sqlite> {
    let began = Instant::now();
    loop {
        match Sqlite::open(path.to_owned(), Options::default()).await {
            Ok(store) => return Arc::new(store),
            Err(error) => assert!(began.elapsed() < FREE_WITHIN, "{error}"),
        }
        tokio::task::yield_now().await;
    }
}

/// One request to a process of its own; none where that dies.
fn request(
    file: &File,
    steps: &Arc<[Step]>,
    ledger: &Arc<Mutex<Ledger>>,
    end: Option<End>,
) -> Option<Answer> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(async {
        let store = open(&file.path()).await;
        let table = "CREATE TABLE IF NOT EXISTS row (step TEXT NOT NULL)";
        store.write(move |tx| tx.execute_batch(table).map_err(onlyonce_failure)).await.unwrap();
        let died = Arc::new(Notify::new());
        let process = Process {
            steps: steps.clone(),
            end,
            store: store.clone(),
            ledger: ledger.clone(),
            died: died.clone(),
        };
        let policy = Policy { effects: Effects::Local, ..Policy::default() };
        let onlyonce = Onlyonce::new(store).with_policy(policy).unwrap();
        let route = post(move |attempt: Attempt| process.handle(attempt));
        let app = Router::new().route("/orders", route).layer(onlyonce.layer());
        tokio::select! {
            answer = app.oneshot(order("k")) => Some(Answer::of(answer.unwrap()).await),
            () = died.notified() => None,
        }
    });
    // All that it had is gone with it.
    drop(runtime);
    answer
}

fn onlyonce_failure(error: rusqlite::Error) -> Box<dyn std::error::Error + Send + Sync> {
    error.into()
}

fn judge(steps: &[Step], ends: &[End]) -> Result<(), TestCaseError> {
    let (file, steps, ledger) = (File::new(), Arc::<[Step]>::from(steps), Arc::default());
    let mut ends = ends.iter().copied();
    // Those that die or fail, and as many as it takes: one that fails no more completes it.
    let last = loop {
        let end = ends.next();
        let answer = request(&file, &steps, &ledger, end);
        let ledger = ledger.lock().unwrap();
        prop_assert!(ledger.wrong.is_empty(), "{:?}", ledger.wrong);
        let rows = file.rows();
        prop_assert!(rows.values().all(|count| *count == 1), "rows are there once: {rows:?}");
        if let (None, Some(answer)) = (end, answer) {
            break answer;
        }
    };
    let ledger = ledger.lock().unwrap();
    if ledger.is_in_doubt(&steps) {
        prop_assert_eq!(last.summary(), "409 idempotency_outcome_unknown");
        return Ok(());
    }
    let results: Vec<_> = ledger.results.values().map(u64::to_string).collect();
    prop_assert_eq!(last.summary(), format!("201 {}", results.join(" ")));
    prop_assert_eq!(results.len(), steps.len());
    let rows: BTreeSet<_> = file.rows().into_keys().collect();
    let named = steps.iter().zip(NAMES).filter(|(step, _)| **step == Step::Rows).map(|(_, name)| name);
    let expected: BTreeSet<_> = named.chain([COMPLETED]).map(str::to_owned).collect();
    prop_assert_eq!(rows, expected, "every row is there");
    let called = ledger.calls.len();
    prop_assert_eq!(called, steps.iter().filter(|step| **step != Step::Rows).count(), "every call was made");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// W03, W04, U04: whatever the handler and wherever its processes die, rows are there once, results stay as they were, and
    /// nothing is called again behind its result; a call whose fate nobody knows is not made again unless it is keyed.
    #[test]
    fn a_handler_of_phases_is_done_once_wherever_it_dies(
        steps in prop::collection::vec(step(), 1..=NAMES.len()),
        ends in prop::collection::vec(end(), 0..6),
    ) {
        judge(&steps, &ends)?;
    }
}
