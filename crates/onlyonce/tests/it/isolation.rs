//! Transactions of the user's own at REPEATABLE READ and SERIALIZABLE: what a record that changed after the snapshot leads to.
//!
//! | the record changed after the snapshot | what the handler is told |
//! |---|---|
//! | by a renewal, and is completed | [`ErrorKind::Again`]: roll back, run the transaction again; the second completes |
//! | by a later attempt | the same; the next transaction is told [`ErrorKind::Superseded`] |
//! | not at all, since it is held first | nothing: it commits |
//!
//! A phase is run again by itself, and `hold` as its first statement keeps renewals away from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::post;
use onlyonce::transaction::{ErrorKind, PgTransaction, Shared};
use onlyonce::{Attempt, Problem};
use onlyonce_testkit::engines::postgres::Server;
use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::world::order;
use crate::write_first::{INSERT, World, paid, send};

const LEVELS: [&str; 2] = ["REPEATABLE READ", "SERIALIZABLE"];
const SNAPSHOT: &str = "SELECT count(*) FROM payment";

/// What another node does to the record.
#[derive(Clone)]
struct Elsewhere(String);

impl Elsewhere {
    /// A renewal: the record is written anew, and nothing else about it changes.
    fn renews(&self) {
        static REVISION: AtomicUsize = AtomicUsize::new(1);
        let revision = REVISION.fetch_add(1, Ordering::SeqCst);
        self.sql(&format!("UPDATE onlyonce_record SET revision = {revision}"));
    }

    /// A later attempt begins.
    fn supersedes(&self) {
        self.sql("UPDATE onlyonce_record SET token = decode(repeat('07', 16), 'hex'), revision = 0");
    }

    /// A renewal that gives up soon cannot be written.
    fn cannot_renew(&self) {
        let renewal = "UPDATE onlyonce_record SET revision = 0";
        let told = "EXCEPTION WHEN lock_not_available THEN RAISE NOTICE 'held'";
        self.sql(&format!(
            "SET lock_timeout = '30ms'; DO $$ BEGIN {renewal}; RAISE 'it was renewed'; {told}; END $$"
        ));
    }

    fn sql(&self, sql: &str) {
        Server::shared().sql(&format!("SET search_path = {}; {sql}", self.0));
    }
}

/// A handler whose transactions are begun by `$begin`, and what it does in them, by its key. `$run` runs a statement.
macro_rules! handles {
    ($attempt:ident, $elsewhere:ident, $tx:ident = $begin:expr, $run:expr) => {{
        let key = $attempt.key().as_str().to_owned();
        let mut $tx = $begin;
        if key == "held" {
            $attempt.hold(&mut $tx).await?;
            $elsewhere.cannot_renew();
        }
        $run(&mut $tx, SNAPSHOT).await;
        match &*key {
            "renewed" => $elsewhere.renews(),
            "superseded" => $elsewhere.supersedes(),
            _ => {}
        }
        $run(&mut $tx, INSERT).await;
        let completed = $attempt.complete_in(&mut $tx, &paid()).await;
        if matches!(&*key, "renewed" | "superseded") {
            let error = completed.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Again, "{error}");
            $tx.rollback().await?;
            let mut $tx = $begin;
            $run(&mut $tx, INSERT).await;
            $attempt.complete_in(&mut $tx, &paid()).await?;
            $tx.commit().await?;
        } else {
            completed?;
            $tx.commit().await?;
        }
        if key == "twice" {
            let mut $tx = $begin;
            $run(&mut $tx, INSERT).await;
            let error = $attempt.complete_in(&mut $tx, &paid()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Completed, "{error}");
            $tx.rollback().await?;
        }
        Ok::<_, Problem>("something else".into_response())
    }};
}

async fn by_sqlx(tx: &mut sqlx::PgTransaction<'_>, sql: &'static str) {
    sqlx::query(sql).execute(&mut **tx).await.unwrap();
}

async fn by_client(tx: &mut tokio_postgres::Transaction<'_>, sql: &'static str) {
    tx.execute(sql, &[]).await.unwrap();
}

/// Each key, its answer, and whether its row is there.
async fn judge(world: &World, app: &Router, level: &str) {
    for (key, expected) in
        [("fine", 201), ("renewed", 201), ("held", 201), ("twice", 201), ("superseded", 500)]
    {
        // One record at a time: what is done elsewhere is done to all of them.
        Server::shared().sql(&format!("TRUNCATE {0}.payment, {0}.onlyonce_record", world.schema));
        let answer = send(app, order(key)).await;
        assert_eq!(answer.status, expected, "{level}, {key}: {answer:?}");
        let rows = if expected == 201 { "1" } else { "0" };
        assert_eq!(world.count("payment"), rows, "{level}, {key}");
        if expected == 201 {
            let again = send(app, order(key)).await;
            assert!(again.is_replay() && again.text() == "paid", "{level}, {key}: {again:?}");
        }
    }
}

/// W01, W09, R05
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_at_a_stricter_level_is_told_to_run_again_with_sqlx() {
    for level in LEVELS {
        let world = World::new().await;
        let pool = PgPool::connect_with(world.options()).await.unwrap();
        let elsewhere = Elsewhere(world.schema.clone());
        let begin = format!("BEGIN ISOLATION LEVEL {level}");
        let route = post(move |attempt: Attempt| async move {
            handles!(
                attempt,
                elsewhere,
                tx = pool.begin_with(sqlx::AssertSqlSafe(begin.clone())).await?,
                by_sqlx
            )
        });
        judge(&world, &Router::new().route("/orders", route).layer(world.onlyonce().layer()), level).await;
    }
}

/// W01, W09, R05
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_at_a_stricter_level_is_told_to_run_again_with_tokio_postgres() {
    use tokio_postgres::IsolationLevel;
    for (name, level) in
        LEVELS.into_iter().zip([IsolationLevel::RepeatableRead, IsolationLevel::Serializable])
    {
        let world = World::new().await;
        let client = Arc::new(tokio::sync::Mutex::new(world.client().await));
        let elsewhere = Elsewhere(world.schema.clone());
        let route = post(move |attempt: Attempt| async move {
            let mut client = client.lock().await;
            handles!(
                attempt,
                elsewhere,
                tx = client.build_transaction().isolation_level(level).start().await?,
                by_client
            )
        });
        judge(&world, &Router::new().route("/orders", route).layer(world.onlyonce().layer()), name).await;
    }
}

/// A handler of two phases in `$db`; what happens elsewhere is by its key. `$run` runs a statement.
macro_rules! phases {
    ($attempt:ident, $elsewhere:ident, $works:ident, $db:expr, $run:expr, $error:ty) => {{
        let key = $attempt.key().as_str().to_owned();
        let (elsewhere, works, key) = (&$elsewhere, &$works, &*key);
        let first = $attempt.phase(&$db, "first", async |tx| {
            $run(tx, INSERT).await?;
            Ok::<_, $error>(1)
        });
        first.await?;
        if key == "renewed-twice" {
            elsewhere.renews();
        }
        let second = $attempt.phase(&$db, "second", async |tx| {
            let is_first = works.fetch_add(1, Ordering::SeqCst) == 0;
            if key == "held" {
                $attempt.hold(&mut *tx).await.unwrap();
                elsewhere.cannot_renew();
            }
            $run(tx, SNAPSHOT).await?;
            match key {
                "renewed" | "renewed-twice" if is_first => elsewhere.renews(),
                "superseded" if is_first => elsewhere.supersedes(),
                _ => {}
            }
            $run(tx, INSERT).await?;
            Ok::<_, $error>(2)
        });
        let second: i32 = second.await?;
        Ok::<_, Problem>(second.to_string().into_response())
    }};
}

async fn in_phase_by_sqlx(tx: &mut PgTransaction, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::query(sql).execute(&mut **tx).await.map(drop)
}

async fn in_phase_by_client(
    tx: &tokio_postgres::Client,
    sql: &'static str,
) -> Result<(), tokio_postgres::Error> {
    tx.execute(sql, &[]).await.map(drop)
}

/// Each key, its answer, how often the second phase was run, and how many rows there are.
async fn judge_phases(world: &World, app: &Router, works: &AtomicUsize, level: &str) {
    for (key, expected, runs, rows) in [
        ("fine", 200, 1, "2"),
        ("renewed", 200, 2, "2"),
        ("renewed-twice", 200, 2, "2"),
        ("held", 200, 1, "2"),
        ("superseded", 500, 2, "1"),
    ] {
        let tables = ["payment", "onlyonce_record", "onlyonce_result"]
            .map(|table| format!("{}.{table}", world.schema));
        Server::shared().sql(&format!("TRUNCATE {}", tables.join(", ")));
        works.store(0, Ordering::SeqCst);
        let answer = send(app, order(key)).await;
        assert_eq!(answer.status, expected, "{level}, {key}: {answer:?}");
        let found = (works.load(Ordering::SeqCst), world.count("payment"), world.count("onlyonce_result"));
        assert_eq!(found, (runs, rows.to_owned(), rows.to_owned()), "{level}, {key}");
    }
}

/// W03, R05
#[tokio::test(flavor = "multi_thread")]
async fn a_phase_at_a_stricter_level_is_run_again_with_sqlx() {
    for level in LEVELS {
        let world = World::new().await;
        let pool = PgPoolOptions::new().max_connections(1).connect_with(world.options()).await.unwrap();
        let set = format!("SET default_transaction_isolation = '{level}'");
        sqlx::query(sqlx::AssertSqlSafe(set)).execute(&pool).await.unwrap();
        let works = Arc::new(AtomicUsize::new(0));
        let (counted, elsewhere) = (works.clone(), Elsewhere(world.schema.clone()));
        let route = post(move |attempt: Attempt| async move {
            phases!(attempt, elsewhere, counted, pool, in_phase_by_sqlx, sqlx::Error)
        });
        let app = Router::new().route("/orders", route).layer(world.onlyonce().layer());
        judge_phases(&world, &app, &works, level).await;
    }
}

/// W03, R05
#[tokio::test(flavor = "multi_thread")]
async fn a_phase_at_a_stricter_level_is_run_again_with_tokio_postgres() {
    for level in LEVELS {
        let world = World::new().await;
        let client = world.client().await;
        client.batch_execute(&format!("SET default_transaction_isolation = '{level}'")).await.unwrap();
        let shared = Shared::new(client);
        let works = Arc::new(AtomicUsize::new(0));
        let (counted, elsewhere) = (works.clone(), Elsewhere(world.schema.clone()));
        let route = post(move |attempt: Attempt| async move {
            phases!(attempt, elsewhere, counted, shared, in_phase_by_client, tokio_postgres::Error)
        });
        let app = Router::new().route("/orders", route).layer(world.onlyonce().layer());
        judge_phases(&world, &app, &works, level).await;
    }
}
