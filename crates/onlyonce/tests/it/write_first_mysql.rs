//! The same on MySQL: completion, messages and phases in transactions of sqlx's, and one transaction for all of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, post};
use onlyonce::phase::Called;
use onlyonce::relay::{Deliver, Delivered, Delivery, Relay};
use onlyonce::store::Store as _;
use onlyonce::store::mysql::{Mysql, Options};
use onlyonce::transaction::ErrorKind;
use onlyonce::{Attempt, Begun, Effects, InTransaction, Onlyonce, Problem};
use onlyonce_testkit::engines::mariadb::Server;
use sqlx::MySqlPool;
use tokio::sync::{Semaphore, mpsc};

use crate::world::order;
use crate::write_first::{INSERT, judge, local, paid, receipt, send, works};

/// A store in a database of its own, and the user's pool in another one.
struct World {
    store: Arc<Mysql>,
    database: String,
    rows: String,
    pool: MySqlPool,
}

impl World {
    async fn new() -> Self {
        let server = Server::shared();
        let (database, rows) = (server.fresh_database(), server.fresh_database());
        let store = Mysql::open(&server.url(&database), Options::default()).await.unwrap();
        store.prepare().await.unwrap();
        server.sql(&rows, "CREATE TABLE payment (amount BIGINT NOT NULL)");
        let pool = MySqlPool::connect(&server.url(&rows)).await.unwrap();
        Self { store: Arc::new(store), database, rows, pool }
    }

    fn count(&self, table: &str) -> String {
        let database = if table == "payment" { &self.rows } else { &self.database };
        Server::shared().sql(database, &format!("SELECT count(*) FROM {table}"))
    }

    fn onlyonce(&self) -> Onlyonce {
        Onlyonce::new(self.store.clone()).with_policy(local()).unwrap()
    }

    fn app(&self, route: MethodRouter) -> Router {
        Router::new().route("/orders", route).layer(self.onlyonce().layer())
    }
}

/// Makes the attempt of every record another's.
fn supersede(database: &str) {
    Server::shared().sql(database, "UPDATE onlyonce_record SET token = REPEAT(CHAR(7), 16), revision = 1");
}

/// W01
#[tokio::test(flavor = "multi_thread")]
async fn rows_messages_and_completion_are_one_with_sqlx_on_mysql() {
    let world = World::new().await;
    let pool = world.pool.clone();
    let route = post(move |attempt: Attempt| async move {
        let mut tx = pool.begin().await.unwrap();
        works!(attempt, tx, sqlx::query(INSERT).execute(&mut *tx).await.unwrap())
    });
    judge(|table| world.count(table), &world.app(route)).await;
}

/// W01, R05, X05: a second completion tells that the first went through; a superseded attempt tells so; both roll the rows back,
/// also for who commits after all.
#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_attempt_cannot_commit_its_rows_on_mysql() {
    let world = World::new().await;
    let (pool, database) = (world.pool.clone(), world.database.clone());
    let route = post(move |attempt: Attempt| async move {
        let mut tx = pool.begin().await?;
        sqlx::query(INSERT).execute(&mut *tx).await?;
        if attempt.key().as_str() == "superseded" {
            supersede(&database);
            let error = attempt.complete_in(&mut tx, &paid()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Superseded, "{error}");
            tx.commit().await?;
            return Err(Problem::from(error));
        }
        attempt.complete_in(&mut tx, &paid()).await?;
        tx.commit().await?;
        let mut tx = pool.begin().await?;
        sqlx::query(INSERT).execute(&mut *tx).await?;
        let error = attempt.complete_in(&mut tx, &paid()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Completed, "{error}");
        tx.commit().await?;
        Err::<&str, _>(Problem::from(error))
    });
    let app = world.app(route);
    assert_eq!(send(&app, order("completed")).await.summary(), "201 paid");
    assert_eq!(world.count("payment"), "1");
    let superseded = send(&app, order("superseded")).await;
    assert_eq!((superseded.status, superseded.is_stored()), (500, false), "{superseded:?}");
    assert_eq!(world.count("payment"), "1");
}

/// W01, W09: the kinds of what the database refuses; a record that another transaction holds is tried again later.
#[tokio::test(flavor = "multi_thread")]
async fn what_mysql_refuses_has_its_kind() {
    let world = World::new().await;
    let pool = world.pool.clone();
    let route = post(move |attempt: Attempt| async move {
        let mut holds = pool.begin().await?;
        attempt.hold(&mut holds).await?;
        let mut tx = pool.begin().await?;
        sqlx::query("SET SESSION innodb_lock_wait_timeout = 0").execute(&mut *tx).await?;
        let error = attempt.complete_in(&mut tx, &paid()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Again, "{error}");
        holds.rollback().await?;
        let mut tx = pool.begin().await?;
        let large = receipt().bytes(vec![b'x'; (1 << 20) + 1]);
        let error = attempt.send(&mut tx, large).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let mut tx = pool.begin().await?;
        attempt.complete_in(&mut tx, &paid()).await?;
        tx.commit().await?;
        Ok::<_, Problem>("something else")
    });
    assert_eq!(send(&world.app(route), order("k")).await.summary(), "201 paid");
}

/// W03: the rows, the result and the recovery point of a phase are one; the work is called once.
#[tokio::test(flavor = "multi_thread")]
async fn a_phase_commits_once_on_mysql() {
    let world = World::new().await;
    let (pool, works) = (world.pool.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = works.clone();
    let route = post(move |attempt: Attempt| async move {
        let counted = &counted;
        let first: usize = attempt
            .phase(&pool, "first", async |tx| {
                sqlx::query(INSERT).execute(&mut **tx).await?;
                Ok::<_, sqlx::Error>(counted.fetch_add(1, Ordering::SeqCst))
            })
            .await?;
        let second: usize = attempt
            .phase(&pool, "second", async |tx| {
                sqlx::query(INSERT).execute(&mut **tx).await?;
                attempt.send(&mut *tx, receipt()).await.unwrap();
                Ok::<_, sqlx::Error>(counted.fetch_add(1, Ordering::SeqCst))
            })
            .await?;
        if attempt.number() < 3 {
            return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
        }
        Ok::<_, Problem>(format!("{first} {second}").into_response())
    });
    let app = world.app(route);
    assert_eq!(send(&app, order("k")).await.status, 503);
    assert_eq!(send(&app, order("k")).await.status, 503);
    assert_eq!(send(&app, order("k")).await.summary(), "200 0 1");
    assert!(send(&app, order("k")).await.is_replay());
    assert_eq!(works.load(Ordering::SeqCst), 2);
    let counts = ["payment", "onlyonce_result", "onlyonce_outbox"].map(|table| world.count(table));
    assert_eq!(counts, ["2", "2", "1"]);
}

/// W03, R05: run again where the database asks for it, a few times; what fails otherwise, or is superseded, leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_phase_is_run_again_where_mysql_asks_for_it() {
    let world = World::new().await;
    let (pool, database, tries) = (world.pool.clone(), world.database.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = tries.clone();
    let route = post(move |attempt: Attempt| async move {
        let (counted, key) = (&counted, attempt.key().as_str());
        let done = attempt.phase(&pool, "first", async |tx| {
            sqlx::query(INSERT).execute(&mut **tx).await?;
            let run = counted.fetch_add(1, Ordering::SeqCst);
            let deadlock = "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213";
            match key {
                "twice" if run < 2 => sqlx::raw_sql(deadlock).execute(&mut **tx).await.map(|_| 0),
                "always" => sqlx::raw_sql(deadlock).execute(&mut **tx).await.map(|_| 0),
                "broken" => sqlx::raw_sql("SELECT nothing").execute(&mut **tx).await.map(|_| 0),
                "superseded" => {
                    supersede(&database);
                    Ok(7)
                }
                _ => Ok(7),
            }
        });
        Ok::<_, Problem>(done.await?.to_string())
    });
    let app = world.app(route);
    for (key, expected, runs, rows) in [
        ("twice", "200 7", 3, "1"),
        ("always", "500", 6, "1"),
        ("broken", "500", 1, "1"),
        ("fine", "200 7", 1, "2"),
        ("superseded", "500", 1, "2"),
    ] {
        tries.store(0, Ordering::SeqCst);
        let answer = send(&app, order(key)).await;
        assert!(format!("{} {}", answer.status, answer.text()).starts_with(expected), "{key}: {answer:?}");
        assert_eq!((tries.load(Ordering::SeqCst), world.count("payment").as_str()), (runs, rows), "{key}");
    }
}

/// W02, W04: a foreign call between two phases has the same key on every attempt, and is made outside any transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_lost_is_made_again_with_the_same_key_on_mysql() {
    let world = World::new().await;
    let (pool, database) = (world.pool.clone(), world.database.clone());
    let (told, mut keys) = mpsc::unbounded_channel();
    let route = post(move |attempt: Attempt| async move {
        attempt
            .phase(&pool, "ordered", async |tx| sqlx::query(INSERT).execute(&mut **tx).await.map(|_| ()))
            .await?;
        let charged = attempt.foreign("charged", Effects::Keyed, async |call| {
            let open = "SELECT count(*) FROM information_schema.innodb_trx AS trx JOIN information_schema.processlist AS session
                        ON session.id = trx.trx_mysql_thread_id WHERE session.db = DATABASE()";
            // InnoDB may show what it showed to somebody else a moment ago. One that is open stays so.
            for _ in 0..20 {
                if Server::shared().sql(&database, open) == "0" {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(150)).await;
            }
            assert_eq!(Server::shared().sql(&database, open), "0", "no transaction is open");
            told.send(call.key().to_owned()).unwrap();
            match attempt.number() {
                1 => Err(Called::Unknown(std::io::Error::other("cut off"))),
                _ => Ok("ch_7".to_owned()),
            }
        });
        let charged = charged.await?;
        let mut tx = pool.begin().await?;
        attempt.send(&mut tx, receipt()).await?;
        attempt.complete_in(&mut tx, &paid().map(|_| charged)).await?;
        tx.commit().await?;
        Ok::<_, Problem>(paid())
    });
    let app = world.app(route);
    assert!(!send(&app, order("k")).await.is_stored());
    assert_eq!(send(&app, order("k")).await.summary(), "201 ch_7");
    let (first, second) = (keys.recv().await.unwrap(), keys.recv().await.unwrap());
    assert_eq!(first, second);
    assert_eq!((world.count("payment"), world.count("onlyonce_outbox")), ("1".to_owned(), "1".to_owned()));
}

struct Receiver(mpsc::UnboundedSender<(String, u32)>);

#[async_trait]
impl Deliver for Receiver {
    async fn deliver(&self, delivery: &Delivery) -> Delivered {
        self.0.send((delivery.key.to_string(), delivery.number)).unwrap();
        match delivery.number {
            1 => Delivered::Again { after: Some(Duration::ZERO), error: "not now".to_owned() },
            2 => Delivered::Done { provider_id: Some("p-7".to_owned()) },
            _ => Delivered::Dead { error: "a third time".to_owned() },
        }
    }
}

/// W05, W06: a message that a transaction stored is delivered until it is taken, each time with its own key.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_transaction_is_delivered_on_mysql() {
    let world = World::new().await;
    let (told, mut deliveries) = mpsc::unbounded_channel();
    let onlyonce = world.onlyonce();
    let _relay = Relay::new(onlyonce.engine()).to("receipts", Receiver(told)).start();
    let pool = world.pool.clone();
    let route = post(move |attempt: Attempt| async move {
        let mut tx = pool.begin().await?;
        let key = attempt.send(&mut tx, receipt()).await?;
        attempt.complete_in(&mut tx, &paid().map(|_| key.to_string())).await?;
        tx.commit().await?;
        Ok::<_, Problem>(paid())
    });
    let app = Router::new().route("/orders", route).layer(onlyonce.layer());
    let key = send(&app, order("k")).await.text().to_owned();
    for number in [1, 2] {
        let delivery = tokio::time::timeout(Duration::from_secs(30), deliveries.recv()).await.unwrap();
        assert_eq!(delivery, Some((key.clone(), number)));
    }
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while world.count("onlyonce_messages WHERE state = 'delivered' AND provider_id = 'p-7'") != "1" {
        assert!(std::time::Instant::now() < until, "it is not settled");
        tokio::task::yield_now().await;
    }
}

/// W01, R03: one transaction for the reservation too. A duplicate elsewhere waits for it a short while and is told 409; rolled
/// back, it never was.
#[tokio::test(flavor = "multi_thread")]
async fn one_transaction_reserves_and_completes_on_mysql() {
    let world = World::new().await;
    let (written, commits) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let node = |waits: bool| {
        let (pool, written, commits) = (world.pool.clone(), written.clone(), commits.clone());
        let route = post(move |key: InTransaction| async move {
            let mut tx = pool.begin().await?;
            let attempt = match key.begin(&mut tx).await? {
                Begun::Run(attempt) => attempt,
                Begun::Answered(response) => return Ok(response),
            };
            sqlx::query(INSERT).execute(&mut *tx).await?;
            attempt.send(&mut tx, receipt()).await?;
            attempt.complete_in(&mut tx, &paid()).await?;
            if waits {
                written.add_permits(1);
                commits.acquire().await.unwrap().forget();
            }
            tx.commit().await?;
            Ok::<_, Problem>(paid())
        });
        Router::new().route("/orders", route).layer(world.onlyonce().in_transaction().unwrap().layer())
    };
    let (first, second) = (node(true), node(false));
    let held = tokio::spawn({
        let first = first.clone();
        async move { send(&first, order("k")).await }
    });
    written.acquire().await.unwrap().forget();
    assert_eq!(send(&second, order("k")).await.summary(), "409 idempotency_key_in_progress");
    assert_eq!(world.count("payment"), "0", "its rows are rolled back");
    commits.add_permits(1);
    assert_eq!(held.await.unwrap().summary(), "201 paid");
    assert!(send(&second, order("k")).await.is_replay());
    let counts = ["payment", "onlyonce_record", "onlyonce_outbox"].map(|table| world.count(table));
    assert_eq!(counts, ["1", "1", "1"]);

    let pool = world.pool.clone();
    let route = post(move |key: InTransaction| async move {
        let mut tx = pool.begin().await?;
        let Begun::Run(attempt) = key.begin(&mut tx).await? else { panic!("it is the first") };
        sqlx::query(INSERT).execute(&mut *tx).await?;
        attempt.complete_in(&mut tx, &paid()).await?;
        tx.rollback().await?;
        Ok::<_, Problem>(paid())
    });
    let gives_up =
        Router::new().route("/orders", route).layer(world.onlyonce().in_transaction().unwrap().layer());
    assert!(!send(&gives_up, order("other")).await.is_stored());
    assert_eq!((world.count("payment"), world.count("onlyonce_record")), ("1".to_owned(), "1".to_owned()));
}

/// W01, R02: who lost its record to another node, ignores that, and commits, commits nothing: neither where there was no record
/// before, nor where an old one had expired.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_record_that_is_ignored_keeps_its_rows_from_being_committed_on_mysql() {
    let world = World::new().await;
    for uses in ["1", "2"] {
        let node = |route| {
            let onlyonce = world.onlyonce().in_transaction().unwrap();
            Router::new().route("/orders", route).layer(onlyonce.layer())
        };
        let (pool, others) = (world.pool.clone(), world.pool.clone());
        let other = node(post(move |key: InTransaction| async move {
            let mut tx = others.begin().await?;
            let Begun::Run(attempt) = key.begin(&mut tx).await? else { panic!("nothing is on record") };
            sqlx::query(INSERT).execute(&mut *tx).await?;
            attempt.complete_in(&mut tx, &paid()).await?;
            tx.commit().await?;
            Ok::<_, Problem>(paid())
        }));
        let app = node(post(move |key: InTransaction| async move {
            let mut tx = pool.begin().await?;
            let Begun::Run(attempt) = key.begin(&mut tx).await? else { panic!("nothing is on record") };
            sqlx::query(INSERT).execute(&mut *tx).await?;
            assert!(!send(&other, order("k")).await.is_replay());
            let error = attempt.complete_in(&mut tx, &paid()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Completed, "{error}");
            // It commits nothing: the transaction was rolled back.
            let _ = tx.commit().await;
            Ok::<_, Problem>(paid())
        }));
        assert!(send(&app, order("k")).await.is_replay());
        assert_eq!(
            (world.count("payment"), world.count("onlyonce_record")),
            (uses.to_owned(), "1".to_owned())
        );
        Server::shared().sql(&world.database, "UPDATE onlyonce_record SET expires_at = began_at");
    }
}

/// W01: a transaction of the wrong server is refused by name.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_on_another_server_is_refused_by_name() {
    let world = World::new().await;
    let url = onlyonce_testkit::engines::postgres::Server::shared().url("postgres");
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let route = post(move |attempt: Attempt| async move {
        let mut tx = pool.begin().await?;
        let error = attempt.complete_in(&mut tx, &paid()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("is not PostgreSQL"), "{error}");
        Ok::<_, Problem>("told")
    });
    assert_eq!(send(&world.app(route), order("k")).await.summary(), "200 told");
}
