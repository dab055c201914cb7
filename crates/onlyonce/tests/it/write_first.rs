//! Completion, messages and phases in transactions of the user's own, by every driver; and one transaction for all of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use http::Response;
use onlyonce::operate::{Judged, Saying};
use onlyonce::phase::Called;
use onlyonce::record::Verdict;
use onlyonce::store::Store as _;
use onlyonce::store::postgres::{self, Postgres};
use onlyonce::store::sqlite::{self, Sqlite};
use onlyonce::transaction::{ErrorKind, Shared};
use onlyonce::{Attempt, Begun, Effects, Force, InTransaction, Limits, Message, Onlyonce, Policy, Problem};
use onlyonce_testkit::engines::postgres::Server;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Executor, PgPool};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use crate::world::{Answer, id, order, order_with, ordered};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A store in a schema of its own, with a table of payments, and the user's pools.
pub(crate) struct World {
    pub(crate) store: Arc<Postgres>,
    pub(crate) schema: String,
    url: String,
}

impl World {
    pub(crate) async fn new() -> Self {
        let url = Server::shared().fresh_schema();
        let schema = url.split_once("schema=").unwrap().1.to_owned();
        let store = Postgres::open(&url, postgres::Options::default()).await.unwrap();
        store.prepare().await.unwrap();
        Server::shared().sql(&format!("CREATE TABLE {schema}.payment (amount bigint NOT NULL)"));
        let url = Server::shared().url("postgres");
        Self { store: Arc::new(store), schema, url }
    }

    async fn sqlx(&self) -> PgPool {
        PgPool::connect_with(self.options()).await.unwrap()
    }

    pub(crate) fn options(&self) -> PgConnectOptions {
        let options: PgConnectOptions = self.url.parse().unwrap();
        options.options([("search_path", &self.schema)])
    }

    fn config(&self) -> tokio_postgres::Config {
        let mut config: tokio_postgres::Config = self.url.parse().unwrap();
        config.options(format!("-c search_path={}", self.schema));
        config
    }

    pub(crate) async fn client(&self) -> tokio_postgres::Client {
        let (client, connection) = self.config().connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    fn deadpool(&self) -> deadpool_postgres::Pool {
        let manager = deadpool_postgres::Manager::new(self.config(), tokio_postgres::NoTls);
        deadpool_postgres::Pool::builder(manager).max_size(4).build().unwrap()
    }

    pub(crate) fn count(&self, table: &str) -> String {
        Server::shared().sql(&format!("SELECT count(*) FROM {}.{table}", self.schema))
    }

    pub(crate) fn onlyonce(&self) -> Onlyonce {
        Onlyonce::new(self.store.clone()).with_policy(local()).unwrap()
    }
}

pub(crate) fn local() -> Policy {
    Policy { effects: Effects::Local, ..Policy::default() }
}

pub(crate) fn paid() -> Response<String> {
    let response =
        Response::builder().status(StatusCode::CREATED).header("x-mine", "1").header("set-cookie", "a=b");
    response.body("paid".to_owned()).unwrap()
}

pub(crate) fn receipt() -> Message {
    Message::to("receipts").bytes("{}").group(7)
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> Answer {
    Answer::of(app.clone().oneshot(request).await.unwrap()).await
}

/// Three requests with one key: the first rolls back and fails, the second commits and says something else, the third is
/// replayed.
pub(crate) async fn judge(count: impl Fn(&str) -> String, app: &Router) {
    let first = send(app, order("k")).await;
    assert_eq!((first.status, first.is_stored()), (500, false), "{first:?}");
    assert_eq!((count("payment"), count("onlyonce_outbox")), ("0".to_owned(), "0".to_owned()));
    let second = send(app, order("k")).await;
    assert_eq!(second.summary(), "201 paid", "what was committed goes out, whatever the handler says");
    assert_eq!((second.is_replay(), second.is_stored(), second.header("x-mine")), (false, true, Some("1")));
    let third = send(app, order("k")).await;
    assert_eq!((third.summary().as_str(), third.is_replay()), ("201 paid", true));
    assert_eq!(third.header("set-cookie"), None, "what is not replayed is not stored");
    assert_eq!((count("payment"), count("onlyonce_outbox")), ("1".to_owned(), "1".to_owned()));
}

/// What every handler does in a transaction: by which driver differs.
macro_rules! works {
    ($attempt:ident, $tx:ident, $insert:expr) => {{
        $attempt.hold(&mut $tx).await.unwrap();
        $insert;
        $attempt.send(&mut $tx, receipt()).await.unwrap();
        $attempt.complete_in(&mut $tx, &paid()).await.unwrap();
        let again = $attempt.number() == 1;
        if again {
            $tx.rollback().await.unwrap();
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
        $tx.commit().await.unwrap();
        "something else".into_response()
    }};
}

#[cfg(feature = "sqlx-mysql")]
pub(crate) use works;

pub(crate) const INSERT: &str = "INSERT INTO payment VALUES (5)";

/// W01
#[tokio::test(flavor = "multi_thread")]
async fn rows_messages_and_completion_are_one_with_sqlx() {
    let world = World::new().await;
    let pool = world.sqlx().await;
    let route = post(move |attempt: Attempt| async move {
        let mut tx = pool.begin().await.unwrap();
        works!(attempt, tx, sqlx::query(INSERT).execute(&mut *tx).await.unwrap())
    });
    judge(|table| world.count(table), &Router::new().route("/orders", route).layer(world.onlyonce().layer()))
        .await;
}

/// W01
#[tokio::test(flavor = "multi_thread")]
async fn rows_messages_and_completion_are_one_with_deadpool() {
    let world = World::new().await;
    let pool = world.deadpool();
    let route = post(move |attempt: Attempt| async move {
        let mut client = pool.get().await.unwrap();
        let mut tx = client.transaction().await.unwrap();
        works!(attempt, tx, tx.execute(INSERT, &[]).await.unwrap())
    });
    judge(|table| world.count(table), &Router::new().route("/orders", route).layer(world.onlyonce().layer()))
        .await;
}

/// W01
#[tokio::test(flavor = "multi_thread")]
async fn rows_messages_and_completion_are_one_with_tokio_postgres() {
    let world = World::new().await;
    let client = Arc::new(tokio::sync::Mutex::new(world.client().await));
    let route = post(move |attempt: Attempt| async move {
        let mut client = client.lock().await;
        let mut tx = client.transaction().await.unwrap();
        works!(attempt, tx, tx.execute(INSERT, &[]).await.unwrap())
    });
    judge(|table| world.count(table), &Router::new().route("/orders", route).layer(world.onlyonce().layer()))
        .await;
}

/// W01, R05, X05: a second completion tells that the first went through; a superseded attempt tells so; both abort the rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_attempt_cannot_commit_its_rows() {
    let world = World::new().await;
    let pool = world.sqlx().await;
    let schema = world.schema.clone();
    let route = post(move |attempt: Attempt| async move {
        let mut tx = pool.begin().await.unwrap();
        sqlx::query(INSERT).execute(&mut *tx).await.unwrap();
        if attempt.key().as_str() == "superseded" {
            let token = "UPDATE onlyonce_record SET token = decode(repeat('07', 16), 'hex')";
            Server::shared().sql(&format!("SET search_path = {schema}; {token}"));
            let error = attempt.complete_in(&mut tx, &paid()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Superseded, "{error}");
            // Whatever is told: an aborted transaction commits nothing.
            let _ = tx.commit().await;
            return Err(Problem::from(error));
        }
        attempt.complete_in(&mut tx, &paid()).await?;
        tx.commit().await?;
        let mut tx = pool.begin().await?;
        sqlx::query(INSERT).execute(&mut *tx).await?;
        let error = attempt.complete_in(&mut tx, &paid()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Completed, "{error}");
        Err::<&str, _>(Problem::from(error))
    });
    let app = Router::new().route("/orders", route).layer(world.onlyonce().layer());
    assert_eq!(send(&app, order("completed")).await.summary(), "201 paid");
    assert_eq!(world.count("payment"), "1");
    let superseded = send(&app, order("superseded")).await;
    assert_eq!((superseded.status, superseded.is_stored()), (500, false), "{superseded:?}");
    assert_eq!(world.count("payment"), "1");
}

/// W03: the rows, the result and the recovery point of a phase are one, by every driver; the work is called once.
#[tokio::test(flavor = "multi_thread")]
async fn a_phase_commits_once_whatever_the_driver() {
    let world = World::new().await;
    let (sqlx, deadpool, shared) = (world.sqlx().await, world.deadpool(), Shared::new(world.client().await));
    let works = Arc::new(AtomicUsize::new(0));
    let counted = works.clone();
    let route = post(move |attempt: Attempt| async move {
        let counted = &counted;
        let first: usize = attempt
            .phase(&sqlx, "first", async |tx| {
                sqlx::query(INSERT).execute(&mut **tx).await?;
                Ok::<_, sqlx::Error>(counted.fetch_add(1, Ordering::SeqCst))
            })
            .await?;
        let second: usize = attempt
            .phase(&deadpool, "second", async |tx| {
                tx.execute(INSERT, &[]).await?;
                Ok::<_, tokio_postgres::Error>(counted.fetch_add(1, Ordering::SeqCst))
            })
            .await?;
        let third: usize = attempt
            .phase(&shared, "third", async |tx| {
                tx.execute(INSERT, &[]).await?;
                attempt.send(&mut *tx, receipt()).await.unwrap();
                Ok::<_, tokio_postgres::Error>(counted.fetch_add(1, Ordering::SeqCst))
            })
            .await?;
        if attempt.number() < 3 {
            return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
        }
        Ok::<_, Problem>(format!("{first} {second} {third}").into_response())
    });
    let app = Router::new().route("/orders", route).layer(world.onlyonce().layer());
    assert_eq!(send(&app, order("k")).await.status, 503);
    assert_eq!(send(&app, order("k")).await.status, 503);
    assert_eq!(send(&app, order("k")).await.summary(), "200 0 1 2");
    assert!(send(&app, order("k")).await.is_replay());
    assert_eq!(works.load(Ordering::SeqCst), 3);
    let counts = ["payment", "onlyonce_result", "onlyonce_outbox"].map(|table| world.count(table));
    assert_eq!(counts, ["3", "3", "1"]);
}

/// W03: run again where the database asks for it, a few times; what fails otherwise leaves nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_phase_is_run_again_where_the_database_asks_for_it() {
    let world = World::new().await;
    let pool = world.sqlx().await;
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let route = post(move |attempt: Attempt| async move {
        let counted = &counted;
        let key = attempt.key().as_str();
        let done = attempt.phase(&pool, "first", async |tx| {
            sqlx::query(INSERT).execute(&mut **tx).await?;
            let run = counted.fetch_add(1, Ordering::SeqCst);
            let raise = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$";
            match key {
                "twice" if run < 2 => sqlx::raw_sql(raise).execute(&mut **tx).await.map(|_| 0),
                "always" => sqlx::raw_sql(raise).execute(&mut **tx).await.map(|_| 0),
                "broken" => sqlx::raw_sql("SELECT nothing").execute(&mut **tx).await.map(|_| 0),
                _ => Ok(7),
            }
        });
        Ok::<_, Problem>(done.await?.to_string())
    });
    let app = Router::new().route("/orders", route).layer(world.onlyonce().layer());
    for (key, expected, runs, rows) in [
        ("twice", "200 7", 3, "1"),
        ("always", "500", 6, "1"),
        ("broken", "500", 1, "1"),
        ("fine", "200 7", 1, "2"),
    ] {
        tries.store(0, Ordering::SeqCst);
        let answer = send(&app, order(key)).await;
        assert!(format!("{} {}", answer.status, answer.text()).starts_with(expected), "{key}: {answer:?}");
        assert_eq!((tries.load(Ordering::SeqCst), world.count("payment").as_str()), (runs, rows), "{key}");
    }
}

/// W03, R05: an attempt that was superseded while its phase worked commits nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_phase_of_a_superseded_attempt_is_rolled_back() {
    let world = World::new().await;
    let (pool, schema) = (world.sqlx().await, world.schema.clone());
    let route = post(move |attempt: Attempt| async move {
        let token = format!(
            "UPDATE {schema}.onlyonce_record SET token = decode(repeat('07', 16), 'hex'), revision = 1"
        );
        let done = attempt.phase(&pool, "first", async |tx| {
            sqlx::query(INSERT).execute(&mut **tx).await?;
            Server::shared().sql(&token);
            Ok::<_, sqlx::Error>(1)
        });
        done.await.map(|number| number.to_string())
    });
    let app = Router::new().route("/orders", route).layer(world.onlyonce().layer());
    let answer = send(&app, order("k")).await;
    assert_eq!(answer.status, 500, "{answer:?}");
    assert_eq!((world.count("payment"), world.count("onlyonce_result")), ("0".to_owned(), "0".to_owned()));
}

/// W03, X05: a COMMIT whose answer was lost may go through after the phase was run again: its rows are not stored twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_phase_whose_earlier_commit_went_through_is_rolled_back() {
    let world = World::new().await;
    let (pool, schema) = (world.sqlx().await, world.schema.clone());
    let route = post(move |attempt: Attempt| async move {
        // What the earlier commit leaves, as it lands while the phase works.
        let record = "UPDATE onlyonce_record SET recovery_point = 'first', revision = 1";
        let result =
            "INSERT INTO onlyonce_result SELECT id, 1, created_at, 'first', '7' FROM onlyonce_record";
        let landed =
            format!("SET search_path = {schema}; {record}; INSERT INTO payment VALUES (5); {result}");
        let first = attempt.phase(&pool, "first", async |tx| {
            sqlx::query(INSERT).execute(&mut **tx).await?;
            Server::shared().sql(&landed);
            Ok::<_, sqlx::Error>(8)
        });
        let error = first.await.unwrap_err();
        assert!(error.to_string().contains("has committed already"), "{error}");
        let again = attempt.phase(&pool, "first", async |_| Err::<i32, _>(sqlx::Error::RowNotFound));
        again.await.map(|number| number.to_string())
    });
    let app = Router::new().route("/orders", route).layer(world.onlyonce().layer());
    assert_eq!(send(&app, order("k")).await.summary(), "200 7", "asked again, it is on record");
    assert_eq!(world.count("payment"), "1");
}

/// W03: a handler that was made shorter while a record was under way cannot complete: its rows roll back, the record keeps what
/// it has, and the handler that began it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_without_a_phase_that_is_on_record_is_refused() {
    let world = World::new().await;
    let pool = world.sqlx().await;
    let route = post(move |attempt: Attempt| async move {
        let number = attempt.number();
        if number != 2 {
            let first = attempt.phase(&pool, "first", async |tx| {
                sqlx::query(INSERT).execute(&mut **tx).await?;
                Ok::<_, sqlx::Error>(7)
            });
            first.await?;
        }
        if number == 1 {
            return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
        }
        let mut tx = pool.begin().await?;
        sqlx::query(INSERT).execute(&mut *tx).await?;
        let completed = attempt.complete_in(&mut tx, &paid()).await;
        if number == 2 {
            let error = completed.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
            assert!(error.to_string().contains("phase \"first\" is on record"), "{error}");
            return Err(Problem::from(error));
        }
        completed?;
        tx.commit().await?;
        Ok("something else".into_response())
    });
    let app = Router::new().route("/orders", route).layer(world.onlyonce().layer());
    assert_eq!(send(&app, order("k")).await.status, 503);
    let second = send(&app, order("k")).await;
    assert_eq!((second.status, second.is_stored()), (500, false), "{second:?}");
    assert_eq!(send(&app, order("k")).await.summary(), "409 idempotency_outcome_unknown");
    let reason = format!("SELECT state, reason FROM {}.onlyonce_record", world.schema);
    assert_eq!(Server::shared().sql(&reason), "unknown|changed");
    let counts = ["payment", "onlyonce_result"].map(|table| world.count(table));
    assert_eq!(counts, ["1", "1"], "its rows are rolled back, and nothing is lost");
    let saying = Saying { verdict: Verdict::DidNotHappen { never_will: true }, token: None, ask: false };
    let engine = world.onlyonce().engine().clone();
    let judged = engine.verdict(id("k"), saying, &ordered(Force::No)).await.unwrap();
    assert!(matches!(judged, Judged::Applied(_)), "{judged:?}");
    assert_eq!(send(&app, order("k")).await.summary(), "201 paid", "the release that began it goes on");
    assert_eq!(world.count("payment"), "2");
}

/// The embedded store and a file for it.
struct File {
    store: Arc<Sqlite>,
    folder: std::path::PathBuf,
}

impl File {
    async fn new() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("onlyonce-write-first-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let store = Sqlite::open(folder.join("onlyonce.db"), sqlite::Options::default()).await.unwrap();
        let table = "CREATE TABLE payment (amount INTEGER NOT NULL)";
        store.write(move |tx| tx.execute_batch(table).map_err(Failure::from)).await.unwrap();
        Self { store: Arc::new(store), folder }
    }

    async fn count(&self, table: &'static str) -> i64 {
        let count = move |tx: &sqlite::Transaction<'_>| {
            tx.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
                .map_err(Failure::from)
        };
        self.store.write(count).await.unwrap()
    }

    fn onlyonce(&self) -> Onlyonce {
        Onlyonce::new(self.store.clone()).with_policy(local()).unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// W01
#[tokio::test(flavor = "multi_thread")]
async fn rows_messages_and_completion_are_one_in_a_file() {
    let file = File::new().await;
    let store = file.store.clone();
    let route = post(move |attempt: Attempt| async move {
        let number = attempt.number();
        let written = store.write(move |tx| {
            attempt.hold(tx)?;
            tx.execute(INSERT, [])?;
            attempt.send(tx, receipt())?;
            attempt.complete_in(tx, &paid())?;
            if number == 2 {
                // Whoever ignores an error has nothing to commit, as on a server.
                let again = attempt.complete_in(tx, &paid()).unwrap_err();
                assert_eq!(again.kind(), ErrorKind::Completed);
            }
            if number == 1 { Err(Failure::from("on second thoughts")) } else { Ok(()) }
        });
        match written.await {
            Ok(()) => "something else".into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    });
    let app = Router::new().route("/orders", route).layer(file.onlyonce().layer());
    for _ in 1..=2 {
        assert_eq!(send(&app, order("k")).await.status, 500);
        assert_eq!((file.count("payment").await, file.count("onlyonce_outbox").await), (0, 0));
    }
    assert_eq!(send(&app, order("k")).await.summary(), "201 paid");
    assert!(send(&app, order("k")).await.is_replay());
    assert_eq!((file.count("payment").await, file.count("onlyonce_outbox").await), (1, 1));
}

/// W01: a transaction elsewhere than the store cannot commit with its records.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_another_database_is_refused() {
    let (world, file) = (World::new().await, File::new().await);
    let (pool, elsewhere) = (world.sqlx().await, File::new().await);
    let other = elsewhere.store.clone();
    let route = post(move |attempt: Attempt| {
        let (pool, other) = (pool.clone(), other.clone());
        async move {
            let mut tx = pool.begin().await.unwrap();
            let error = attempt.complete_in(&mut tx, &paid()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("is not PostgreSQL"), "{error}");
            let phase = attempt.phase_blocking(&other, "first", |_| Ok::<_, std::io::Error>(1)).await;
            assert!(phase.unwrap_err().to_string().contains("not the layer's store"));
            StatusCode::SERVICE_UNAVAILABLE
        }
    });
    let app = Router::new().route("/orders", route).layer(file.onlyonce().layer());
    assert_eq!(send(&app, order("k")).await.status, 503);
}

/// A transfer in one transaction, on PostgreSQL. It waits at the gate before it completes.
fn transfers(pool: PgPool, gate: Arc<Semaphore>, runs: Arc<AtomicUsize>) -> axum::routing::MethodRouter {
    post(move |key: InTransaction| {
        let (pool, gate, runs) = (pool.clone(), gate.clone(), runs.clone());
        async move {
            let mut tx = pool.begin().await?;
            let attempt = match key.begin(&mut tx).await? {
                Begun::Run(attempt) => attempt,
                Begun::Answered(response) => return Ok(response),
            };
            runs.fetch_add(1, Ordering::SeqCst);
            sqlx::query(INSERT).execute(&mut *tx).await?;
            attempt.send(&mut tx, receipt()).await?;
            gate.acquire().await.unwrap().forget();
            let response = paid();
            attempt.complete_in(&mut tx, &response).await?;
            tx.commit().await?;
            Ok::<_, Problem>(response)
        }
    })
}

/// W01, R02: reservation, rows and completion are one row version; duplicates on one node wait, and are replayed.
#[tokio::test(flavor = "multi_thread")]
async fn one_transaction_reserves_and_completes() {
    let world = World::new().await;
    let (gate, runs) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let onlyonce = world.onlyonce().in_transaction().unwrap();
    let route = transfers(world.sqlx().await, gate.clone(), runs.clone());
    let app = Router::new().route("/orders", route).layer(onlyonce.layer());
    let requests: Vec<_> = (0..8)
        .map(|_| {
            tokio::spawn({
                let app = app.clone();
                async move { send(&app, order("k")).await }
            })
        })
        .collect();
    while runs.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.count("onlyonce_record"), "0", "nothing is on record before the commit");
    gate.add_permits(100);
    let mut replays = 0;
    for request in requests {
        let answer = request.await.unwrap();
        assert_eq!(answer.summary(), "201 paid", "{answer:?}");
        replays += usize::from(answer.is_replay());
    }
    assert_eq!((replays, runs.load(Ordering::SeqCst)), (7, 1));
    let counts = ["payment", "onlyonce_outbox", "onlyonce_record"].map(|table| world.count(table));
    assert_eq!(counts, ["1", "1", "1"]);
    let version = format!("SELECT ctid FROM {}.onlyonce_record", world.schema);
    assert_eq!(Server::shared().sql(&version), "(0,1)", "one row version");
    let other = Request::post("/orders").header("authorization", "Bearer t1").header("idempotency-key", "k");
    let reused = send(&app, other.body(Body::from("another body")).unwrap()).await;
    assert_eq!(reused.summary(), "422 idempotency_key_reused");
}

/// W01: by a pool of deadpool's, whose connections prepare each statement once.
#[tokio::test(flavor = "multi_thread")]
async fn one_transaction_prepares_its_statements_once_a_connection() {
    let world = World::new().await;
    let pool = world.deadpool();
    let of_handler = pool.clone();
    let route = post(move |key: InTransaction| {
        let pool = of_handler.clone();
        async move {
            let mut client = pool.get().await?;
            let mut tx = client.transaction().await?;
            let attempt = match key.begin(&mut tx).await? {
                Begun::Run(attempt) => attempt,
                Begun::Answered(response) => return Ok(response),
            };
            tx.execute(INSERT, &[]).await?;
            attempt.send(&mut tx, receipt()).await?;
            let response = paid();
            attempt.complete_in(&mut tx, &response).await?;
            tx.commit().await?;
            Ok::<_, Problem>(response)
        }
    });
    let app = Router::new().route("/orders", route).layer(world.onlyonce().in_transaction().unwrap().layer());
    let mut prepared = Vec::new();
    for key in ["one", "two", "three", "one"] {
        assert_eq!(send(&app, order(key)).await.summary(), "201 paid");
        prepared.push(pool.get().await.unwrap().statement_cache.size());
    }
    assert_eq!(prepared, [prepared[0]; 4], "no statement is prepared for each request");
    let counts = ["payment", "onlyonce_outbox", "onlyonce_record"].map(|table| world.count(table));
    assert_eq!(counts, ["3", "3", "3"]);
}

/// W08: a row that points at its record loses the pointer when that expires, and never itself; in both modes.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_loses_its_pointer_when_its_record_expires() {
    let world = World::new().await;
    let column = "ADD record bytea REFERENCES {}.onlyonce_record (id) ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED";
    let column = column.replace("{}", &world.schema);
    Server::shared().sql(&format!("ALTER TABLE {}.payment {column}", world.schema));
    const POINTING: &str = "INSERT INTO payment VALUES (5, $1)";
    let pool = world.sqlx().await;
    let (reserved, at_once) = (pool.clone(), pool);
    let one = post(move |attempt: Attempt| async move {
        attempt.keep_for(Duration::from_millis(1));
        let mut tx = reserved.begin().await?;
        sqlx::query(POINTING).bind(attempt.handle().id.0.to_vec()).execute(&mut *tx).await?;
        attempt.complete_in(&mut tx, &paid()).await?;
        tx.commit().await?;
        Ok::<_, Problem>(paid())
    });
    let other = post(move |key: InTransaction| async move {
        let mut tx = at_once.begin().await?;
        let Begun::Run(attempt) = key.begin(&mut tx).await? else { panic!("it is the first") };
        attempt.keep_for(Duration::from_millis(1));
        sqlx::query(POINTING).bind(attempt.handle().id.0.to_vec()).execute(&mut *tx).await?;
        attempt.complete_in(&mut tx, &paid()).await?;
        tx.commit().await?;
        Ok::<_, Problem>(paid())
    });
    let one = Router::new().route("/orders", one).layer(world.onlyonce().layer());
    let other =
        Router::new().route("/orders", other).layer(world.onlyonce().in_transaction().unwrap().layer());
    assert_eq!(send(&one, order("one")).await.status, 201);
    assert_eq!(send(&other, order("other")).await.status, 201);
    let until = std::time::Instant::now() + Duration::from_secs(60);
    let mut reaped = 0;
    while reaped < 2 {
        assert!(std::time::Instant::now() < until, "{reaped} of two records expired");
        reaped += world.store.reap(9).await.unwrap();
    }
    assert_eq!(
        (world.count("payment"), world.count("payment WHERE record IS NULL")),
        ("2".to_owned(), "2".to_owned())
    );
}

/// W01, R02: of two nodes one commits, at every isolation level. The other's rows roll back, and it is told the answer.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_one_transaction_commits() {
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let world = World::new().await;
        let runs = Arc::new(AtomicUsize::new(0));
        let gates = [(); 2].map(|()| Arc::new(Semaphore::new(0)));
        let set = format!("SET default_transaction_isolation = '{level}'");
        let pool = PgPoolOptions::new().after_connect(move |connection, _| {
            let set = sqlx::AssertSqlSafe(set.clone());
            Box::pin(async move { connection.execute(set).await.map(drop) })
        });
        let pool = pool.connect_with(world.options()).await.unwrap();
        let nodes = gates.clone().map(|gate| {
            let onlyonce = world.onlyonce().in_transaction().unwrap();
            Router::new()
                .route("/orders", transfers(pool.clone(), gate, runs.clone()))
                .layer(onlyonce.layer())
        });
        let [first, second] =
            nodes.clone().map(|node| tokio::spawn(async move { send(&node, order("k")).await }));
        // Both have written their rows, and so have their snapshots.
        let written = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%onlyonce_send%'
             AND pid IN (SELECT pid FROM pg_locks WHERE relation = '{}.payment'::regclass)",
            world.schema
        );
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while Server::shared().sql(&written) != "2" {
            assert!(std::time::Instant::now() < until, "{level}: both do not come so far");
        }
        gates[0].add_permits(1);
        assert_eq!(first.await.unwrap().summary(), "201 paid", "{level}");
        gates[1].add_permits(1);
        let second = second.await.unwrap();
        assert_eq!((second.summary().as_str(), second.is_replay()), ("201 paid", true), "{level}");
        let counts = ["payment", "onlyonce_outbox", "onlyonce_record"].map(|table| world.count(table));
        assert_eq!(counts, ["1", "1", "1"], "{level}");
        assert_eq!(runs.load(Ordering::SeqCst), 2, "{level}");
    }
}

/// A handler that runs its request in a transaction on `$db`: `$insert` stores its row. It may not be done by its key.
macro_rules! runs {
    ($db:expr, $runs:expr, |$tx:ident| $insert:expr) => {{
        let (db, runs) = ($db, $runs);
        post(move |key: InTransaction| async move {
            key.run(&db, async |$tx, attempt| {
                runs.fetch_add(1, Ordering::SeqCst);
                $insert.unwrap();
                attempt.send(&mut *$tx, receipt()).await?;
                if attempt.handle().id == id("fails") {
                    return Err(std::io::Error::other("it fails").into());
                }
                Ok::<_, Failed>(paid())
            })
            .await
        })
    }};
}

/// Any error, as an answer of 500.
struct Failed;

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Self {
        // Shown where a test fails.
        eprintln!("a handler failed: {error}: {:?}", error.source());
        Self
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> axum::response::Response {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

/// W01, R02: a transaction of the library's own, by every driver: rows, messages and the record commit together, and what fails
/// leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_run_in_one_transaction_by_every_driver() {
    for driver in ["sqlx", "deadpool", "tokio-postgres"] {
        let world = World::new().await;
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        let route = match driver {
            "sqlx" => {
                runs!(world.sqlx().await, counted, |tx| sqlx::query(INSERT).execute(&mut **tx).await)
            }
            "deadpool" => runs!(world.deadpool(), counted, |tx| tx.execute(INSERT, &[]).await),
            _ => runs!(Shared::new(world.client().await), counted, |tx| tx.execute(INSERT, &[]).await),
        };
        let layer = || world.onlyonce().in_transaction().unwrap().layer();
        let nodes = [(); 2].map(|()| Router::new().route("/orders", route.clone()).layer(layer()));
        let counts = || ["payment", "onlyonce_outbox", "onlyonce_record"].map(|table| world.count(table));
        let failed = send(&nodes[0], order("fails")).await;
        assert_eq!((failed.status, failed.is_stored()), (500, false), "{driver}");
        assert_eq!(counts(), ["0", "0", "0"], "{driver}");
        let first = send(&nodes[0], order("k")).await;
        assert_eq!(
            (first.summary().as_str(), first.is_replay(), first.is_stored()),
            ("201 paid", false, true)
        );
        assert_eq!(first.header("set-cookie"), Some("a=b"), "{driver}: its own answer");
        assert_eq!(counts(), ["1", "1", "1"], "{driver}");
        let version = format!("SELECT ctid FROM {}.onlyonce_record", world.schema);
        assert!(Server::shared().sql(&version).ends_with(",1)"), "{driver}: one row version");
        for node in &nodes {
            let again = send(node, order("k")).await;
            assert_eq!((again.summary().as_str(), again.is_replay()), ("201 paid", true), "{driver}");
            assert_eq!(again.header("set-cookie"), None, "{driver}");
        }
        assert_eq!(
            (counts(), runs.load(Ordering::SeqCst)),
            (["1", "1", "1"].map(str::to_owned), 2),
            "{driver}"
        );
        // A record that is there, and may run again, is written anew.
        let fails = post(async |_: Attempt| StatusCode::SERVICE_UNAVAILABLE);
        let before = Router::new().route("/orders", fails).layer(world.onlyonce().layer());
        assert_eq!(send(&before, order("again")).await.status, 503, "{driver}");
        let second = send(&nodes[1], order("again")).await;
        assert_eq!((second.summary().as_str(), second.is_replay()), ("201 paid", false), "{driver}");
        assert!(send(&nodes[0], order("again")).await.is_replay(), "{driver}");
        assert_eq!(counts(), ["2", "2", "2"], "{driver}");
    }
}

/// W01, R02: of two nodes one commits. The other's COMMIT is on its way together with the record that is lost, and commits
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_sent_with_a_lost_record_commits_nothing() {
    for driver in ["deadpool", "tokio-postgres"] {
        let world = World::new().await;
        let nodes = [(); 2].map(|()| {
            let (comes, goes) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
            (comes, goes)
        });
        let mut apps = Vec::new();
        for (comes, goes) in nodes.clone() {
            macro_rules! waits {
                ($db:expr) => {{
                    let db = $db;
                    post(move |key: InTransaction| async move {
                        key.run(&db, async |tx, _| {
                            tx.execute(INSERT, &[]).await?;
                            comes.add_permits(1);
                            goes.acquire().await?.forget();
                            Ok::<_, Failed>(paid())
                        })
                        .await
                    })
                }};
            }
            let route = match driver {
                "deadpool" => waits!(world.deadpool()),
                _ => waits!(Shared::new(world.client().await)),
            };
            apps.push(
                Router::new()
                    .route("/orders", route)
                    .layer(world.onlyonce().in_transaction().unwrap().layer()),
            );
        }
        let mut sent = Vec::new();
        for (app, (comes, _)) in apps.iter().zip(&nodes) {
            let app = app.clone();
            sent.push(tokio::spawn(async move { send(&app, order("k")).await }));
            comes.acquire().await.unwrap().forget();
        }
        for (place, (request, (_, goes))) in sent.into_iter().zip(&nodes).enumerate() {
            goes.add_permits(1);
            let answer = request.await.unwrap();
            assert_eq!((answer.summary().as_str(), answer.is_replay()), ("201 paid", place == 1), "{driver}");
        }
        assert_eq!(
            (world.count("payment"), world.count("onlyonce_record")),
            ("1".into(), "1".into()),
            "{driver}"
        );
        // Its connection is fit for the next one.
        nodes[1].1.add_permits(1);
        assert_eq!(send(&apps[1], order("other")).await.summary(), "201 paid", "{driver}");
        assert_eq!(world.count("payment"), "2", "{driver}");
    }
}

/// W01, X05: the answer to COMMIT has come, so nobody looks; a COMMIT that fails stores nothing and says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_heard_of_needs_no_look_and_one_that_fails_is_not_told() {
    let world = World::new().await;
    let pool = world.deadpool();
    let schema = world.schema.clone();
    let hide = format!("ALTER TABLE {schema}.onlyonce_record RENAME TO hidden");
    let route = post(move |key: InTransaction| async move {
        let hides = format!("{key:?}").contains(&format!("{:?}", id("hides")));
        let done = key.run(&pool, async |tx, _| {
            tx.execute(INSERT, &[]).await?;
            Ok::<_, Failed>(paid())
        });
        let done = done.await;
        if hides {
            Server::shared().sql(&hide);
        }
        done
    });
    let app = Router::new().route("/orders", route).layer(world.onlyonce().in_transaction().unwrap().layer());
    let refuses = format!(
        "CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
         CREATE CONSTRAINT TRIGGER refuses AFTER INSERT ON {schema}.payment DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()"
    );
    Server::shared().sql(&refuses);
    let refused = send(&app, order("refused")).await;
    assert_eq!((refused.status, refused.is_stored()), (500, false), "{refused:?}");
    assert_eq!((world.count("payment"), world.count("onlyonce_record")), ("0".to_owned(), "0".to_owned()));
    Server::shared().sql(&format!("DROP TRIGGER refuses ON {schema}.payment"));
    let told = send(&app, order("hides")).await;
    assert_eq!((told.summary().as_str(), told.is_stored()), ("201 paid", true), "{told:?}");
    Server::shared().sql(&format!("ALTER TABLE {schema}.hidden RENAME TO onlyonce_record"));
    assert!(send(&app, order("hides")).await.is_replay());
    assert_eq!(world.count("payment"), "1");
}

/// W01, R02: who lost its record to another node, ignores that, and commits, commits nothing: neither where there was no record
/// before, nor where an old one had expired.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_record_that_is_ignored_keeps_its_rows_from_being_committed() {
    let world = World::new().await;
    for uses in ["1", "2"] {
        let (pool, gate) = (world.sqlx().await, Arc::new(Semaphore::new(9)));
        let layer = || world.onlyonce().in_transaction().unwrap().layer();
        let other =
            Router::new().route("/orders", transfers(pool.clone(), gate, Arc::default())).layer(layer());
        let route = post(move |key: InTransaction| async move {
            let mut tx = pool.begin().await?;
            let Begun::Run(attempt) = key.begin(&mut tx).await? else { panic!("nothing is on record") };
            sqlx::query(INSERT).execute(&mut *tx).await?;
            assert!(!send(&other, order("k")).await.is_replay());
            let error = attempt.complete_in(&mut tx, &paid()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Completed, "{error}");
            // PostgreSQL says ROLLBACK to that.
            let _ = tx.commit().await;
            Ok::<_, Problem>(paid())
        });
        let app = Router::new().route("/orders", route).layer(layer());
        assert!(send(&app, order("k")).await.is_replay());
        assert_eq!(
            (world.count("payment"), world.count("onlyonce_record")),
            (uses.to_owned(), "1".to_owned())
        );
        let expires = format!("UPDATE {}.onlyonce_record SET expires_at = began_at", world.schema);
        Server::shared().sql(&expires);
    }
}

/// W01, R07: a client that hangs up changes nothing: the transaction is completed and commits.
#[tokio::test(flavor = "multi_thread")]
async fn one_transaction_outlives_its_client() {
    let world = World::new().await;
    let (gate, runs) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let onlyonce = world.onlyonce().in_transaction().unwrap();
    let route = transfers(world.sqlx().await, gate.clone(), runs.clone());
    let app = Router::new().route("/orders", route).layer(onlyonce.layer());
    let client = tokio::spawn({
        let app = app.clone();
        async move { send(&app, order("k")).await }
    });
    while runs.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    gate.add_permits(1);
    onlyonce.engine().idle().await;
    assert_eq!((world.count("payment"), world.count("onlyonce_record")), ("1".to_owned(), "1".to_owned()));
    assert!(send(&app, order("k")).await.is_replay());
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// W01, X05: the store does not answer after the handler's commit. Nobody is told that nothing ran.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_cannot_be_looked_at_is_not_said_not_to_have_run() {
    let world = World::new().await;
    let pool = world.sqlx().await;
    let [hide, show] = [("onlyonce_record", "hidden"), ("hidden", "onlyonce_record")]
        .map(|(from, to)| format!("ALTER TABLE {}.{from} RENAME TO {to}", world.schema));
    let route = post(move |key: InTransaction| async move {
        let mut tx = pool.begin().await?;
        let attempt = match key.begin(&mut tx).await? {
            Begun::Run(attempt) => attempt,
            Begun::Answered(response) => return Ok(response),
        };
        sqlx::query(INSERT).execute(&mut *tx).await?;
        attempt.complete_in(&mut tx, &paid()).await?;
        tx.commit().await?;
        Server::shared().sql(&hide);
        Ok::<_, Problem>(paid())
    });
    let onlyonce = world.onlyonce().in_transaction().unwrap();
    let app = Router::new().route("/orders", route).layer(onlyonce.layer());
    assert_eq!(send(&app, order("k")).await.summary(), "502 upstream_outcome_unknown");
    Server::shared().sql(&show);
    let again = send(&app, order("k")).await;
    assert_eq!((again.summary().as_str(), again.is_replay()), ("201 paid", true));
    assert_eq!(world.count("payment"), "1");
}

/// W01, R03: another node's transaction that does not commit in time is told as in progress.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_elsewhere_waits_a_short_while_and_is_told_409() {
    let world = World::new().await;
    let pool = world.sqlx().await;
    let (inserted, commits) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (told, waits) = (inserted.clone(), commits.clone());
    let slow = pool.clone();
    let route = post(move |key: InTransaction| {
        let (pool, told, waits) = (slow.clone(), told.clone(), waits.clone());
        async move {
            let mut tx = pool.begin().await?;
            let Begun::Run(attempt) = key.begin(&mut tx).await? else { panic!("it is the first") };
            attempt.complete_in(&mut tx, &paid()).await?;
            told.add_permits(1);
            waits.acquire().await.unwrap().forget();
            tx.commit().await?;
            Ok::<_, Problem>(paid())
        }
    });
    let layer = || world.onlyonce().in_transaction().unwrap().layer();
    let first = Router::new().route("/orders", route).layer(layer());
    let gate = Arc::new(Semaphore::new(9));
    let second = Router::new().route("/orders", transfers(pool, gate, Arc::default())).layer(layer());
    let held = tokio::spawn(async move { send(&first, order("k")).await });
    inserted.acquire().await.unwrap().forget();
    let duplicate = send(&second, order("k")).await;
    assert_eq!(duplicate.summary(), "409 idempotency_key_in_progress");
    assert_eq!(world.count("payment"), "0", "its rows are rolled back");
    commits.add_permits(1);
    assert_eq!(held.await.unwrap().summary(), "201 paid");
    assert!(send(&second, order("k")).await.is_replay());
}

/// W01: rolled back, or left without a completion, the request never was, and its client is told.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_complete_in_its_transaction_is_not_on_record() {
    let file = File::new().await;
    let (store, runs) = (file.store.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = runs.clone();
    let route = post(move |key: InTransaction| {
        let (store, run) = (store.clone(), counted.fetch_add(1, Ordering::SeqCst));
        async move {
            let written = store.write(move |tx| {
                let attempt = match key.begin(tx)? {
                    Begun::Run(attempt) => attempt,
                    Begun::Answered(response) => return Ok::<_, Failure>(response),
                };
                tx.execute(INSERT, [])?;
                if run == 0 {
                    drop(attempt);
                    return Err("nothing is kept".into());
                }
                attempt.send(tx, receipt())?;
                attempt.complete_in(tx, &paid())?;
                if run == 1 { Err("rolled back".into()) } else { Ok(paid()) }
            });
            written.await.unwrap_or_else(|error| Response::new(error.to_string()))
        }
    });
    let onlyonce = file.onlyonce().in_transaction().unwrap();
    let app = Router::new().route("/orders", route).layer(onlyonce.layer());
    for expected in ["200 nothing is kept", "200 rolled back"] {
        let answer = send(&app, order("k")).await;
        assert_eq!(
            (answer.summary().as_str(), answer.header("idempotency-stored")),
            (expected, Some("false"))
        );
        assert_eq!((file.count("payment").await, file.count("onlyonce_record").await), (0, 0));
    }
    let third = send(&app, order("k")).await;
    assert_eq!((third.summary().as_str(), third.is_stored()), ("201 paid", true));
    assert!(send(&app, order("k")).await.is_replay());
    assert_eq!(
        (file.count("payment").await, file.count("onlyonce_outbox").await, runs.load(Ordering::SeqCst)),
        (1, 1, 4)
    );
}

/// L02, T06: the same limits and the same age where the handler's own transaction reserves.
#[tokio::test(flavor = "multi_thread")]
async fn one_transaction_is_within_limits_and_not_for_old_requests() {
    let file = File::new().await;
    let (store, runs) = (file.store.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = runs.clone();
    let route = post(move |key: InTransaction| {
        let (store, counted) = (store.clone(), counted.clone());
        async move {
            let written = store.write(move |tx| {
                let attempt = match key.begin(tx)? {
                    Begun::Run(attempt) => attempt,
                    Begun::Answered(response) => return Ok::<_, Failure>(response),
                };
                counted.fetch_add(1, Ordering::SeqCst);
                attempt.complete_in(tx, &paid())?;
                Ok(paid())
            });
            written.await.unwrap_or_else(|error| Response::new(error.to_string()))
        }
    });
    let one = Limits {
        keys_per_second: Some(1),
        lookups_per_second: Some(1),
        keys_alive: Some(5),
        in_flight: Some(1),
        nodes: 3600,
        ..Limits::default()
    };
    let mut policy = local();
    policy.request_time_header = Some(http::HeaderName::from_static("x-time"));
    policy.request_age_max = Some(Duration::from_secs(300));
    let onlyonce = file.onlyonce().with_policy(policy).unwrap().with_limits(one).unwrap();
    let app = Router::new().route("/orders", route).layer(onlyonce.in_transaction().unwrap().layer());
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let now = now.as_secs().to_string();
    let timely = |key: &str| order_with(key, &[("x-time", &now)]);
    assert_eq!(send(&app, order("k")).await.summary(), "400 idempotency_request_too_old");
    assert_eq!(send(&app, timely("k")).await.summary(), "201 paid");
    assert_eq!(send(&app, timely("k2")).await.summary(), "429 idempotency_limit_reached");
    assert!(
        send(&app, order("k")).await.is_replay(),
        "what is on record is answered, however old the request is"
    );
    assert_eq!(send(&app, order("k")).await.summary(), "429 idempotency_limit_reached");
    assert_eq!((file.count("onlyonce_record").await, runs.load(Ordering::SeqCst)), (1, 1));
}

/// W01: what cannot be promised is a fault at start; a handler on the wrong layer says so.
#[tokio::test(flavor = "multi_thread")]
async fn one_transaction_needs_local_work_and_a_store_that_commits_with_it() {
    let world = World::new().await;
    for effects in [Effects::Keyed, Effects::Queryable, Effects::Opaque] {
        let policy = Policy { effects, ..Policy::default() };
        let onlyonce = Onlyonce::new(world.store.clone());
        let faults = onlyonce.clone().with_policy(policy.clone()).unwrap().in_transaction().unwrap_err();
        assert!(faults.to_string().contains("policy.effects"), "{faults}");
        let faults = world.onlyonce().in_transaction().unwrap().with_policy(policy).unwrap_err();
        assert!(faults.to_string().contains("must be local"), "{faults}");
    }
    let memory =
        Onlyonce::new(Arc::new(onlyonce::store::memory::Memory::new())).with_policy(local()).unwrap();
    assert!(memory.in_transaction().unwrap_err().to_string().contains("cannot commit together with rows"));
    let route = post(|_key: InTransaction| async { "never" });
    let app = Router::new().route("/orders", route).layer(world.onlyonce().layer());
    assert_eq!(send(&app, order("k")).await.status, 500);
    let keyless = Request::post("/orders").header("authorization", "Bearer t1").body(Body::empty()).unwrap();
    assert_eq!(send(&app, keyless).await.summary(), "400 idempotency_key_missing");
}

/// W03: on the embedded store a phase is a closure on the writer's thread, and is given once.
#[tokio::test(flavor = "multi_thread")]
async fn a_phase_in_a_file_commits_once() {
    let file = File::new().await;
    let store = file.store.clone();
    let route = post(move |attempt: Attempt| {
        let store = store.clone();
        async move {
            let number = attempt.number();
            let first: i64 = attempt
                .phase_blocking(&store, "first", move |tx| {
                    tx.execute(INSERT, [])?;
                    if number == 1 {
                        Err(rusqlite::Error::InvalidQuery)
                    } else {
                        Ok(tx.last_insert_rowid() + 6)
                    }
                })
                .await?;
            if number == 2 {
                return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
            }
            Ok::<_, Problem>(first.to_string().into_response())
        }
    });
    let app = Router::new().route("/orders", route).layer(file.onlyonce().layer());
    assert_eq!(send(&app, order("k")).await.status, 500);
    assert_eq!((file.count("payment").await, file.count("onlyonce_result").await), (0, 0));
    assert_eq!(send(&app, order("k")).await.status, 503);
    assert_eq!(send(&app, order("k")).await.summary(), "200 7");
    assert_eq!((file.count("payment").await, file.count("onlyonce_result").await), (1, 1));
}

/// U01, W03: a call in doubt cannot be completed away: the transaction is refused, and the record says unknown.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_while_a_call_is_in_doubt_is_refused() {
    for is_abandoned in [false, true] {
        let world = World::new().await;
        let pool = world.sqlx().await;
        let route = post(move |attempt: Attempt| async move {
            let calling = attempt.foreign("charged", Effects::Opaque, async |_| match is_abandoned {
                true => std::future::pending().await,
                false => Err::<(), _>(Called::Unknown(std::io::Error::other("reset"))),
            });
            let called = tokio::time::timeout(Duration::from_millis(500), calling).await;
            assert!(called.is_err() == is_abandoned, "{called:?}");
            let mut tx = pool.begin().await?;
            sqlx::query(INSERT).execute(&mut *tx).await?;
            let error = attempt.complete_in(&mut tx, &paid()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            drop(tx);
            Ok::<_, Problem>("not paid".into_response())
        });
        let app = Router::new().route("/orders", route).layer(world.onlyonce().layer());
        let first = send(&app, order("k")).await;
        assert!(!first.is_stored(), "{first:?}");
        assert_eq!(send(&app, order("k")).await.summary(), "409 idempotency_outcome_unknown");
        assert_eq!(world.count("payment"), "0");
    }
}

/// W03: on the embedded store, too, a completion without a phase that is on record is refused, and rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_in_a_file_without_a_phase_that_is_on_record_is_refused() {
    let file = File::new().await;
    let store = file.store.clone();
    let route = post(move |attempt: Attempt| {
        let store = store.clone();
        async move {
            if attempt.number() == 1 {
                let first = attempt.phase_blocking(&store, "first", |tx| tx.execute(INSERT, []));
                first.await?;
                return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
            }
            let completing = attempt.clone();
            let written = store.write(move |tx| {
                tx.execute(INSERT, [])?;
                completing.complete_in(tx, &paid())?;
                Ok::<_, Failure>(())
            });
            let error = written.await.unwrap_err();
            assert!(error.to_string().contains("phase \"first\" is on record"), "{error}");
            Ok::<_, Problem>("something else".into_response())
        }
    });
    let app = Router::new().route("/orders", route).layer(file.onlyonce().layer());
    assert_eq!(send(&app, order("k")).await.status, 503);
    let second = send(&app, order("k")).await;
    assert!(!second.is_stored(), "{second:?}");
    assert_eq!(send(&app, order("k")).await.summary(), "409 idempotency_outcome_unknown");
    assert_eq!((file.count("payment").await, file.count("onlyonce_result").await), (1, 1));
}
