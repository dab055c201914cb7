//! The functions that an application calls in its own transaction: the cases of every server, and what is PostgreSQL's alone.

mod roles;
mod transactions;

use std::sync::Arc;
use std::time::Duration;

use onlyonce_core::machine;
use onlyonce_core::record::{Effects, State, Token};
use onlyonce_core::time::{Timestamp, When};
use onlyonce_store::Store as _;
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_testkit::engines::postgres::Server;
use tokio_postgres::{Client, Error, NoTls};

use crate::sqlite::world::{HOUR, draft, id};
use crate::write_first::agreement::agrees;
use crate::write_first::{self, Answer, Application, Refused, Sent, created, stored};

write_first::all_cases!(Client);

type World = write_first::World<Client>;

impl Application for Client {
    // Its JSON cannot hold one at all.
    const NUL: &str = "22P05";
    const DUPLICATE: &str = "23505";
    const KEY: &str = "key";
    const DUE_IN_SECONDS: &str =
        "SELECT max(extract(epoch FROM due_at - clock_timestamp()))::bigint FROM onlyonce_outbox";
    const READ_COMMITTED: &str = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED";

    async fn world() -> World {
        world_on(Server::shared()).await
    }

    async fn connect(place: &str) -> Self {
        let client = connect(&Server::shared().url("postgres")).await;
        client.batch_execute(&format!("SET search_path = {place}")).await.unwrap();
        client
    }

    async fn sql(&self, sql: &str) -> Result<(), Refused> {
        self.batch_execute(sql).await.map_err(|error| refused(&error))
    }

    async fn number(&self, sql: &str) -> i64 {
        self.query_one(sql, &[]).await.unwrap().get(0)
    }

    fn bytes(bytes: &[u8]) -> String {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("decode('{digits}', 'hex')")
    }

    async fn hold(&self, handle: Option<&str>) -> Result<(), Refused> {
        self.execute("SELECT onlyonce_hold($1)", &[&handle]).await.map(drop).map_err(|error| refused(&error))
    }

    async fn complete(&self, handle: Option<&str>, answer: &Answer) -> Result<(), Refused> {
        const SQL: &str = "
            SELECT onlyonce_complete($1, $2::bigint::integer, $3::text::jsonb, $4, $5::bigint * interval '1 microsecond')";
        let Answer { status, headers, body, retention } = answer;
        self.execute(SQL, &[&handle, status, headers, body, retention])
            .await
            .map(drop)
            .map_err(|error| refused(&error))
    }

    async fn send(&self, sent: &Sent) -> Result<String, Refused> {
        const SQL: &str =
            "SELECT onlyonce_send($1, $2, $3, $4, $5::bigint * interval '1 microsecond', $6, $7)";
        let Sent { destination, payload, key, group_key, delay, content_type, handle } = sent;
        let row =
            self.query_one(SQL, &[destination, payload, key, group_key, delay, content_type, handle]).await;
        row.map(|row| row.get(0)).map_err(|error| refused(&error))
    }

    async fn wait_shortly(&self) -> &'static str {
        self.batch_execute("SET lock_timeout = '30ms'").await.unwrap();
        "55P03"
    }

    fn waiting(place: &str) -> String {
        Server::shared().sql(&format!(
            "SELECT count(*) FROM pg_locks AS waiting
                 JOIN pg_locks AS held ON held.pid = waiting.pid AND held.relation IS NOT NULL
             WHERE NOT waiting.granted AND held.relation::regclass::text LIKE '%{place}%'"
        ))
    }
}

async fn world_on(server: &Server) -> World {
    let url = server.fresh_schema();
    let place = url.split_once("schema=").unwrap().1.to_owned();
    let options = Options { lock_wait: Duration::from_millis(50), ..Options::default() };
    let store = Postgres::open(&url, options).await.unwrap();
    store.prepare().await.unwrap();
    let app = connect(&server.url("postgres")).await;
    let table = format!("SET search_path = {place}; CREATE TABLE payment (amount integer)");
    app.batch_execute(&table).await.unwrap();
    World { store: Arc::new(store), place, app }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn refused(error: &Error) -> Refused {
    let error = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
    let (state, message) = (error.code().code().to_owned(), error.message().to_owned());
    Refused { state, message, whole: format!("{error:?}") }
}

/// The SQLSTATE of what was refused; empty where it was not.
fn code<T>(result: Result<T, Error>) -> String {
    write_first::code(result.map_err(|error| refused(&error)))
}

/// W09: intervals that are negative, and arguments that are null and have no default.
#[tokio::test(flavor = "multi_thread")]
async fn a_negative_interval_and_a_null_are_refused() {
    let world = Client::world().await;
    let (before, handle) = world.reserve("k").await;
    for negative in ["-1 microsecond", "-1 day", "-290000 years"] {
        let sql = "SELECT onlyonce_complete($1, 200, retention => $2::text::interval)";
        assert_eq!(code(world.app.execute(sql, &[&handle, &negative]).await), "22023", "{negative}");
    }
    for nothing in ["onlyonce_complete($1, NULL)", "onlyonce_complete($1, 200, headers => NULL)"] {
        let sql = format!("SELECT {nothing}");
        assert_eq!(code(world.app.execute(&sql, &[&handle]).await), "22023", "{nothing}");
    }
    assert!(world.is_unchanged(id("k"), Some(&before)).await);
}

/// W09: a retention that is for ever is so by SQL too, and days are days whatever the session's time zone.
#[tokio::test(flavor = "multi_thread")]
async fn retention_does_not_depend_on_the_session() {
    let world = Client::world().await;
    world
        .app
        .batch_execute("SET timezone = 'Europe/Berlin'; SET standard_conforming_strings = off")
        .await
        .unwrap();
    let (own, mut forever) =
        draft("forever", Effects::Local, State::Running { lapses_at: When::AfterWrite(HOUR) });
    forever.terms.retention = Duration::MAX;
    world.insert((own, forever)).await;
    assert_eq!(agrees(&world, own, Token([5; 16]), &created(), Some(stored())).await, "completed");

    let kept = "SELECT (expires_at AT TIME ZONE 'UTC') - (written_at AT TIME ZONE 'UTC') = $2::text::interval
                FROM onlyonce_record WHERE id = $1";
    for (key, retention) in [("days", "400 days"), ("zero", "0"), ("hours", "25 hours 1 microsecond")] {
        let (_, handle) = world.reserve(key).await;
        let sql = "SELECT onlyonce_complete(handle => $1, status => 200, retention => $2::text::interval)";
        world.app.execute(sql, &[&handle, &retention]).await.unwrap();
        let row = world.app.query_one(kept, &[&&id(key).0[..], &retention]).await.unwrap();
        assert!(row.get::<_, bool>(0), "{retention}");
    }
    let (_, handle) = world.reserve("ages").await;
    let sql = "SELECT onlyonce_complete($1, 200, retention => interval '250000 years')";
    world.app.execute(sql, &[&handle]).await.unwrap();
    let seen = world.load("ages").await;
    assert_eq!(machine::stored(&seen.record).unwrap().1, Timestamp::from_micros(i64::MAX));
}

/// W09: drivers that send parameters as text and without a type, by place and by name; one signature a name.
#[tokio::test(flavor = "multi_thread")]
async fn parameters_without_a_type_resolve() {
    let world = Client::world().await;
    let statements = [
        "PREPARE by_place AS SELECT onlyonce_complete($1, $2, $3, $4)",
        "PREPARE by_name AS SELECT onlyonce_complete(status => $2, handle => $1, body => $3, retention => $4)",
        "PREPARE held AS SELECT onlyonce_hold($1)",
        "PREPARE sent AS SELECT onlyonce_send($1, $2, group_key => $3, handle => $4)",
    ];
    for statement in statements {
        world.app.batch_execute(statement).await.unwrap();
    }
    let (_, handle) = world.reserve("place").await;
    let calls = [
        format!("EXECUTE held('{handle}')"),
        format!("EXECUTE sent('receipts', '{{}}', '7', '{handle}')"),
        format!("EXECUTE by_place('{handle}', '201', '{{\"a\": \"b\"}}', '\\x7b7d')"),
    ];
    for call in calls {
        world.app.batch_execute(&call).await.unwrap();
    }
    let (_, handle) = world.reserve("name").await;
    world.app.batch_execute(&format!("EXECUTE by_name('{handle}', '201', 'x', '1 hour')")).await.unwrap();
    let overloads = "SELECT count(*) FROM pg_proc JOIN pg_namespace AS schemas ON schemas.oid = pronamespace
                     WHERE nspname = current_schema() AND proname LIKE 'onlyonce%'";
    let functions = 5;
    assert_eq!(world.app.query_one(overloads, &[]).await.unwrap().get::<_, i64>(0), functions);
}
