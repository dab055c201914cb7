//! Batched reads, and reads that are sent alone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onlyonce_core::record::{Effects, Id, Response, Revision, Seen, Source, State, StateSet};
use onlyonce_core::time::When;
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Change, Error, ErrorKind, Query, Store, Swapped};
use onlyonce_testkit::engines::postgres::Server;
use tokio::task::JoinHandle;

use crate::sqlite::world::{HOUR, completed, draft, id, insert, put, running};

const LOOKS: usize = 500;
/// Whatever takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(30);
const LARGE: usize = 300_000;

struct World {
    store: Arc<Postgres>,
    other: tokio_postgres::Client,
    schema: String,
}

impl World {
    async fn new() -> Self {
        let server = Server::shared();
        let url = server.fresh_schema();
        let schema = url.split_once("schema=").unwrap().1.to_owned();
        let options = Options { lock_wait: PATIENCE, statement_timeout: PATIENCE, ..Options::default() };
        let store = Postgres::open(&format!("{url}&application_name={schema}"), options).await.unwrap();
        store.prepare().await.unwrap();
        let (other, connection) =
            tokio_postgres::connect(&server.url("postgres"), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        other.batch_execute(&format!("SET search_path = {schema}")).await.unwrap();
        Self { store: Arc::new(store), other, schema }
    }

    fn look(&self, id: Id) -> JoinHandle<Result<Option<Seen>, Error>> {
        let store = self.store.clone();
        tokio::spawn(async move { store.load(id).await })
    }

    /// How many connections of the store wait for the lock, and how many there are.
    fn connections(&self) -> (usize, usize) {
        let told = Server::shared().sql(&format!(
            "SELECT count(*) FILTER (WHERE wait_event_type = 'Lock'), count(*) FROM pg_stat_activity
             WHERE application_name = '{}'",
            self.schema
        ));
        let (waiting, all) = told.split_once('|').unwrap();
        (waiting.parse().unwrap(), all.parse().unwrap())
    }

    /// Begins looks that wait at a lock: what comes meanwhile goes together.
    async fn held(&self, ids: impl IntoIterator<Item = Id>) -> Vec<JoinHandle<Result<Option<Seen>, Error>>> {
        self.other.batch_execute("BEGIN; LOCK TABLE onlyonce_record IN ACCESS EXCLUSIVE MODE").await.unwrap();
        let looks = ids.into_iter().map(|id| self.look(id)).collect();
        let until_two_wait = async {
            while self.connections().0 < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, until_two_wait).await.expect("looks wait at the lock");
        looks
    }

    /// As `psql` shows it.
    fn row(&self, sql: &str) -> String {
        Server::shared().sql(&format!("SET search_path = {}; {sql}", self.schema))
    }

    fn insert(&self, key: &str) -> JoinHandle<Result<Swapped, Error>> {
        let (store, (id, next)) = (self.store.clone(), draft(key, Effects::Opaque, running()));
        tokio::spawn(async move { store.swap(id, Change::new(None, Revision(7), next)).await })
    }

    async fn let_go(&self) {
        self.other.batch_execute("COMMIT").await.unwrap();
    }
}

fn key(number: usize) -> String {
    format!("k{number}")
}

/// R04: who looks takes no connection each, and each is shown its own record.
#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_looks_at_once_take_two_connections() {
    let world = World::new().await;
    for number in (0..LOOKS).step_by(50) {
        put(&*world.store, &key(number)).await;
    }
    let before = world.connections().1;
    let looks = world.held((0..LOOKS).map(|number| id(&key(number)))).await;
    let (waiting, all) = world.connections();
    assert_eq!(waiting, 2, "the others wait on this side");
    assert!(all <= before + 2, "{before} connections became {all}");
    world.let_go().await;
    for (number, look) in looks.into_iter().enumerate() {
        let seen = tokio::time::timeout(PATIENCE, look).await.expect("everybody is answered");
        let seen = seen.unwrap().unwrap();
        let expected = (number % 50 == 0).then(|| key(number));
        assert_eq!(seen.map(|seen| seen.record.key.as_str().to_owned()), expected);
    }
}

/// R04: also where all look at one record.
#[tokio::test(flavor = "multi_thread")]
async fn looks_at_one_record_go_together() {
    let world = World::new().await;
    let put = put(&*world.store, "k").await;
    let looks = world.held((0..LOOKS).map(|_| id("k"))).await;
    world.let_go().await;
    for look in looks {
        let seen = tokio::time::timeout(PATIENCE, look).await.expect("everybody is answered");
        assert_eq!(seen.unwrap().unwrap().unwrap().record, put.record);
    }
}

/// L01: a large record is looked at alone, and whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_record_among_others_comes_whole() {
    let world = World::new().await;
    // Noise, so that the server does not make it small.
    let body: Vec<u8> =
        (0_u32..).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).take(LARGE).collect();
    let response = Response { status: 201, headers: Vec::new(), body: Bytes::from(body) };
    let large = State::Completed {
        response: Some(Arc::new(response)),
        by: Source::Attempt,
        expires_at: When::AfterWrite(HOUR),
    };
    let large = insert(&*world.store, draft("large", Effects::Opaque, large), 1).await.unwrap();
    let small = put(&*world.store, "small").await;
    let looks = world.held((0..20).map(|number| id(if number % 2 == 0 { "large" } else { "small" }))).await;
    world.let_go().await;
    for (number, look) in looks.into_iter().enumerate() {
        let seen = look.await.unwrap().unwrap().unwrap();
        assert_eq!(seen.record, if number % 2 == 0 { large.record.clone() } else { small.record.clone() });
    }
}

/// P07: a record of a newer release, one that is damaged, or one that another program wrote wrongly is an error for who asks for
/// it and for nobody else. It is never absent, never run over, never deleted, and the error says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_read_is_an_error_and_the_others_are_served() {
    for (damage, told) in [
        ("rest = set_byte(rest, 0, 99)", "newer release"),
        ("rest = substr(rest, 1, 20)", "restore"),
        ("state = 'running'", "column \"expires_at\", which no running record has, is set"),
        ("state = 'done'", "column \"state\" is \"done\", which this release does not know"),
        ("body = NULL", "some are null and some are not"),
        ("key = 'other'", "are not those of its id"),
    ] {
        let world = World::new().await;
        put(&*world.store, "odd").await;
        let even = put(&*world.store, "even").await;
        let expired = draft("expired", Effects::Opaque, completed(When::WRITE));
        insert(&*world.store, expired, 3).await.unwrap();
        let sql = format!("UPDATE onlyonce_record SET {damage}, due_at = '-infinity' WHERE key = 'odd'");
        world.other.batch_execute(&sql).await.unwrap();
        let stored = format!("SELECT * FROM onlyonce_record WHERE id = '\\x{}'", hex(id("odd")));
        let before = world.row(&stored);
        let looks = world.held((0..20).map(|number| id(if number % 2 == 0 { "even" } else { "odd" }))).await;
        world.let_go().await;
        for (number, look) in looks.into_iter().enumerate() {
            match look.await.unwrap() {
                Ok(seen) => assert!(number % 2 == 0 && seen.unwrap().record == even.record),
                Err(error) => assert_unreadable(&error, told),
            }
        }
        assert_unreadable(&world.store.load(id("odd")).await.unwrap_err(), told);
        // Also where it stands in the way of others of a batch.
        let writes: Vec<_> = ["odd", "even", "new", "newer"].map(|key| world.insert(key)).into();
        for (write, key) in writes.into_iter().zip(["odd", "even", "new", "newer"]) {
            match (key, write.await.unwrap()) {
                ("odd", Err(error)) => assert_unreadable(&error, told),
                ("even", Ok(Swapped::Lost(Some(seen)))) => assert_eq!(seen.record, even.record),
                ("new" | "newer", Ok(Swapped::Applied(_))) => {}
                (key, answer) => panic!("{key}: {answer:?}"),
            }
        }
        // People are told; workers go on with the others.
        assert_unreadable(&world.store.scan(Query::all(10)).await.unwrap_err(), told);
        let due = world.store.scan(Query::due(StateSet::ALL, 10)).await.unwrap().records;
        assert_eq!(due.iter().map(|(due, _)| *due).collect::<Vec<_>>(), [id("expired")]);
        assert_eq!(world.store.reap(10).await.unwrap(), 1);
        assert_eq!(world.row(&stored), before, "it is untouched");
    }
}

fn hex(id: Id) -> String {
    id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[track_caller]
fn assert_unreadable(error: &Error, told: &str) {
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    for told in [told, "nothing was changed"] {
        assert!(error.to_string().contains(told), "{error}");
    }
}
