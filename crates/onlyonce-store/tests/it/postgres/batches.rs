//! Batched writes, and writes that must be sent alone.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use onlyonce_core::record::{Draft, Effects, Id, Revision, State};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::{Timestamp, When};
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Change, Error, ErrorKind, Store, Swapped};
use onlyonce_testkit::engines::postgres::Server;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use crate::sqlite::world::{HOUR, completed, draft, insert, running};

const KEYS: u64 = 12;
const HELD: u64 = 7;
/// Whatever takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A store, and a connection beside it that does what somebody's own transaction would.
struct World {
    store: Arc<Postgres>,
    other: Client,
    /// Sees what goes on: within a transaction one sees only how it was.
    watch: Client,
    schema: String,
}

impl World {
    async fn new(options: Options) -> Self {
        let server = Server::shared();
        let url = server.fresh_schema();
        let (_, schema) = url.split_once("schema=").unwrap();
        let schema = schema.to_owned();
        let url = format!("{url}&application_name={schema}");
        let store = Postgres::open(&url, options).await.unwrap();
        store.prepare().await.unwrap();
        let (other, watch) = (connect(server).await, connect(server).await);
        other.batch_execute(&format!("SET search_path = {schema}")).await.unwrap();
        Self { store: Arc::new(store), other, watch, schema }
    }

    async fn sql(&self, sql: &str) {
        self.other.batch_execute(sql).await.unwrap();
    }

    async fn fill(&self) {
        for number in 0..KEYS {
            let revision = insert(&*self.store, record(number), 1).await.unwrap().revision;
            assert_eq!(revision, Revision(1));
        }
    }

    /// Completes every record at once.
    fn complete_all(&self) -> Vec<JoinHandle<Result<Swapped, Error>>> {
        (0..KEYS).map(|number| self.write(number, Some(1))).collect()
    }

    fn insert_all(&self) -> Vec<JoinHandle<Result<Swapped, Error>>> {
        (0..KEYS).map(|number| self.write(number, None)).collect()
    }

    fn write(&self, number: u64, expected: Option<u64>) -> JoinHandle<Result<Swapped, Error>> {
        let store = self.store.clone();
        let (id, next) = match expected {
            None => record(number),
            Some(_) => draft(&key(number), Effects::Opaque, completed(When::AfterWrite(HOUR))),
        };
        let change = Change::new(expected.map(Revision), Revision(2), next);
        tokio::spawn(async move { store.swap(id, change).await })
    }

    /// Waits until a statement of the store waits for somebody's lock.
    async fn until_someone_waits(&self) -> i32 {
        const SQL: &str =
            "SELECT pid FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'";
        let looking = async {
            loop {
                if let Some(row) = self.watch.query_opt(SQL, &[&self.schema]).await.unwrap() {
                    return row.get(0);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.expect("somebody waits for the lock")
    }
}

async fn connect(server: &Server) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn key(number: u64) -> String {
    format!("k{number}")
}

fn record(number: u64) -> (Id, Box<Draft>) {
    draft(&key(number), Effects::Opaque, running())
}

fn patient() -> Options {
    Options { lock_wait: PATIENCE, statement_timeout: PATIENCE, ..Options::default() }
}

fn is_applied(swapped: &Swapped) -> bool {
    matches!(swapped, Swapped::Applied(_))
}

/// Everybody but the one that is held has an answer; gives back the one that is left.
async fn all_but_one(
    mut writes: Vec<JoinHandle<Result<Swapped, Error>>>,
) -> JoinHandle<Result<Swapped, Error>> {
    let held = writes.remove(usize::try_from(HELD).unwrap());
    for write in writes {
        let swapped = tokio::time::timeout(PATIENCE, write).await.expect("nobody waits for one row");
        assert!(is_applied(&swapped.unwrap().unwrap()));
    }
    assert!(!held.is_finished());
    held
}

/// E02, R04
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_does_not_wait_for_a_row_that_somebody_holds() {
    let world = World::new(patient()).await;
    world.fill().await;
    world.sql(&format!("BEGIN; SELECT 1 FROM onlyonce_record WHERE key = 'k{HELD}' FOR UPDATE")).await;
    let held = all_but_one(world.complete_all()).await;
    world.sql("COMMIT").await;
    assert!(is_applied(&held.await.unwrap().unwrap()), "it was only late");
}

/// E02, R05
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_its_holder_has_changed_is_lost() {
    let world = World::new(patient()).await;
    world.fill().await;
    world.sql(&format!("BEGIN; UPDATE onlyonce_record SET revision = 77 WHERE key = 'k{HELD}'")).await;
    let held = all_but_one(world.complete_all()).await;
    world.until_someone_waits().await;
    world.sql("COMMIT").await;
    let Swapped::Lost(Some(seen)) = held.await.unwrap().unwrap() else { panic!("it was changed") };
    assert_eq!(
        seen.revision,
        Revision(77),
        "what stands there now is shown, and not what stood there before"
    );
}

/// E02, R01: one that is being inserted by somebody else cannot be skipped; the batch gives up on it soon.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_does_not_wait_for_somebody_elses_insert() {
    for ends in ["COMMIT", "ROLLBACK"] {
        let world = World::new(patient()).await;
        insert(&*world.store, record(HELD), 1).await.unwrap();
        world.sql("CREATE TABLE copy AS SELECT * FROM onlyonce_record; DELETE FROM onlyonce_record").await;
        world.sql("BEGIN; INSERT INTO onlyonce_record SELECT * FROM copy").await;
        let held = all_but_one(world.insert_all()).await;
        world.until_someone_waits().await;
        world.sql(ends).await;
        match (ends, held.await.unwrap().unwrap()) {
            ("COMMIT", Swapped::Lost(Some(seen))) => assert_eq!(seen.revision, Revision(1)),
            ("ROLLBACK", Swapped::Applied(seen)) => assert_eq!(seen.revision, Revision(2)),
            (ends, swapped) => panic!("after {ends}: {swapped:?}"),
        }
    }
}

/// X02: the server is well, and is not to be left alone for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_held_too_long_is_busy_and_unchanged() {
    let world = World::new(Options { lock_wait: Duration::from_millis(100), ..Options::default() }).await;
    world.fill().await;
    world.sql(&format!("BEGIN; SELECT 1 FROM onlyonce_record WHERE key = 'k{HELD}' FOR UPDATE")).await;
    let error = world.write(HELD, Some(1)).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Busy, true), "{error}");
    assert!(error.to_string().contains("another transaction holds the record"), "{error}");
    world.sql("COMMIT").await;
    let seen = world.store.load(record(HELD).0).await.unwrap().unwrap();
    assert_eq!(seen.revision, Revision(1));
}

/// E02
#[tokio::test(flavor = "multi_thread")]
async fn one_bad_row_fails_alone() {
    let world = World::new(Options::default()).await;
    world
        .sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON onlyonce_record
             FOR EACH ROW WHEN (NEW.key = 'k7') EXECUTE FUNCTION refuse()",
        )
        .await;
    for (number, write) in (0..).zip(world.insert_all()) {
        match write.await.unwrap() {
            Ok(swapped) => assert!(number != HELD && is_applied(&swapped)),
            Err(error) => assert!(number == HELD && error.to_string().contains("not this one"), "{error}"),
        }
    }
}

/// E02
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_or_a_failed_serialization_is_tried_again() {
    for code in ["40001", "40P01"] {
        let world = World::new(Options::default()).await;
        world
            .sql(&format!(
                "CREATE SEQUENCE times;
                 CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN
                     IF nextval('{}.times') <= 3 THEN RAISE EXCEPTION 'met another' USING ERRCODE = '{code}'; END IF;
                     RETURN NEW;
                 END $$;
                 CREATE TRIGGER refuse BEFORE INSERT ON onlyonce_record FOR EACH ROW EXECUTE FUNCTION refuse()",
                world.schema
            ))
            .await;
        assert!(is_applied(&world.write(HELD, None).await.unwrap().unwrap()));
    }
}

/// E02: what comes while a commit is under way goes into the next.
#[tokio::test(flavor = "multi_thread")]
async fn many_writes_at_once_take_few_transactions() {
    const WRITES: u64 = 200;
    let world = World::new(Options::default()).await;
    world
        .sql(&format!(
            "CREATE TABLE seen (id xid8);
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO {}.seen VALUES (pg_current_xact_id()); RETURN NULL; END $$;
             CREATE TRIGGER note AFTER INSERT ON onlyonce_record FOR EACH STATEMENT EXECUTE FUNCTION note()",
            world.schema
        ))
        .await;
    let writes: Vec<_> = (0..WRITES).map(|number| world.write(number, None)).collect();
    for write in writes {
        assert!(is_applied(&write.await.unwrap().unwrap()));
    }
    let row = world.other.query_one("SELECT count(DISTINCT id) FROM seen", &[]).await.unwrap();
    let transactions: i64 = row.get(0);
    assert!(transactions < 50, "{WRITES} writes took {transactions} transactions");
}

/// The record of this number as it is of this kind: what kinds share and what tells them apart is a column each.
fn of_kind(number: u64, kind: u64, state: State<When>) -> (Id, Box<Draft>) {
    let (_, mut next) = draft(&key(number), Effects::Opaque, state);
    let label = [None, Some("acme"), Some("beta")][usize::try_from(kind % 3).unwrap()];
    next.scope = Scope::stored([u8::try_from(kind % 2).unwrap(); 32], label.map(Into::into));
    next.route = (kind % 4 != 3).then(|| format!("POST /{}", kind % 4).into());
    (Id::of(&next.scope, &next.key), next)
}

/// E02: each row of a batch has columns of its own, whether they are alike or differ.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_writes_each_record_as_it_is_whether_they_are_alike_or_differ() {
    const WRITES: u64 = 60;
    for kinds in [1, 12] {
        let world = World::new(Options::default()).await;
        let reserved = |number: u64| {
            let lapses_at = When::AfterWrite(HOUR * u32::try_from(1 + number % kinds).unwrap());
            of_kind(number, number % kinds, State::Running { lapses_at })
        };
        let ended = |number: u64| {
            let moment = Timestamp::from_micros(4_102_444_800_000_000);
            let state = match number % kinds {
                3 | 4 => State::Retryable {
                    retry_after: None,
                    expires_at: When::AfterWrite(HOUR),
                    stuck_since: None,
                },
                5 => completed(When::At(moment)),
                kind => completed(When::AfterWrite(HOUR * u32::try_from(1 + kind).unwrap())),
            };
            of_kind(number, number % kinds, state)
        };
        for (expected, revision) in [(None, 1), (Some(1), 2)] {
            let drafted = |number| if expected.is_none() { reserved(number) } else { ended(number) };
            let write = |number| {
                let (store, (id, next)) = (world.store.clone(), drafted(number));
                let change = Change::new(expected.map(Revision), Revision(revision), next);
                tokio::spawn(async move { store.swap(id, change).await })
            };
            let writes: Vec<_> = (0..WRITES).map(write).collect();
            for (number, write) in (0..).zip(writes) {
                let Swapped::Applied(seen) = write.await.unwrap().unwrap() else {
                    panic!("{number} is lost")
                };
                let (id, next) = drafted(number);
                let due = next.due();
                assert_eq!(*seen.record, next.clone().stamp(seen.now), "{number} of {kinds}");
                assert_eq!(world.store.load(id).await.unwrap().unwrap().record, seen.record);
                const SQL: &str = "SELECT state, scope, label, route, due_at = least($2::timestamptz,
                                       written_at + $3::bigint * interval '1 s')
                                   FROM onlyonce_record WHERE id = $1";
                let at = due.at.map(|at| UNIX_EPOCH + Duration::from_micros(at.as_micros().cast_unsigned()));
                let after = due.after_write.map(|after| after.as_secs().cast_signed());
                let row = world.other.query_one(SQL, &[&&id.0[..], &at, &after]).await.unwrap();
                assert_eq!(
                    (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4)),
                    (
                        next.state.name().as_str(),
                        &next.scope.digest()[..],
                        next.scope.label(),
                        next.route.as_deref(),
                        true
                    ),
                    "{number} of {kinds}"
                );
            }
        }
    }
}

/// E02: after a failover the new server's clock may be behind what a record was stamped with last.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_batch_no_record_is_stamped_before_its_last_stamp() {
    let world = World::new(Options::default()).await;
    world.fill().await;
    let ahead = "UPDATE onlyonce_record SET written_at = written_at + interval '1 hour' WHERE key = 'k7'";
    world.sql(ahead).await;
    let before = world.store.load(record(HELD).0).await.unwrap().unwrap();
    for (number, write) in (0..).zip(world.complete_all()) {
        let Swapped::Applied(seen) = write.await.unwrap().unwrap() else { panic!("{number} is lost") };
        let is_ahead = seen.record.written_at >= before.record.written_at;
        assert_eq!(is_ahead, number == HELD, "{number}");
        assert_eq!(world.store.load(record(number).0).await.unwrap().unwrap().record, seen.record);
    }
}

/// R01: of a batch that is written in part, each is told what became of its own.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_batch_some_of_whose_keys_are_taken_each_is_told_its_own() {
    let world = World::new(Options::default()).await;
    world.fill().await;
    let writes: Vec<_> = (0..4 * KEYS).map(|number| world.write(number, None)).collect();
    for (number, write) in (0..).zip(writes) {
        let (id, _) = record(number);
        let now = world.store.load(id);
        match write.await.unwrap().unwrap() {
            Swapped::Applied(seen) if number >= KEYS => assert_eq!(seen.revision, Revision(2)),
            Swapped::Lost(Some(seen)) if number < KEYS => {
                assert_eq!((seen.revision, &seen.record), (Revision(1), &now.await.unwrap().unwrap().record));
            }
            swapped @ (Swapped::Applied(_) | Swapped::Lost(_)) => panic!("{number}: {swapped:?}"),
        }
    }
}

/// X05: nobody knows what was written, and the next write has a connection again.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_connection_is_cut_is_unavailable_and_the_next_one_goes() {
    let world = World::new(patient()).await;
    world.fill().await;
    world.sql(&format!("BEGIN; SELECT 1 FROM onlyonce_record WHERE key = 'k{HELD}' FOR UPDATE")).await;
    let cut = world.write(HELD, Some(1));
    // First as a batch of one, which soon gives up, and then alone: cut it wherever it is.
    while !cut.is_finished() {
        const SQL: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                           WHERE application_name = $1 AND wait_event_type = 'Lock'";
        world.watch.query(SQL, &[&world.schema]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let error = cut.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    world.sql("COMMIT").await;
    assert!(is_applied(&world.write(HELD, Some(1)).await.unwrap().unwrap()));
}

/// X05: on one thread, so that every task has noticed what its connection was told before this one goes on.
#[tokio::test]
async fn a_connection_that_was_closed_while_nobody_used_it_fails_no_write() {
    const OTHERS: &str =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1";
    const TRIES_MAX: u32 = 2_000;
    let world = World::new(Options::default()).await;
    assert!(is_applied(&world.write(HELD, None).await.unwrap().unwrap()));
    let mut tries = 0;
    // Each of them has been told so before it is no longer listed.
    while world.watch.query_one(OTHERS, &[&world.schema]).await.unwrap().get::<_, i64>(0) > 0 {
        tries += 1;
        assert!(tries < TRIES_MAX, "the server still lists connections that it was told to end");
    }
    // What came before this answer has been noticed with it.
    world.watch.query("SELECT 1", &[]).await.unwrap();
    assert!(is_applied(&world.write(HELD + 1, None).await.unwrap().unwrap()));
    let (id, _) = draft(&format!("k{HELD}"), Effects::Opaque, running());
    assert!(world.store.load(id).await.unwrap().is_some());
}

/// U01: text knows no NUL there. No key that a client can send has one; a label is for people, and is shown without.
#[tokio::test(flavor = "multi_thread")]
async fn text_that_the_server_cannot_hold_is_refused_alone_or_shown_without() {
    let world = World::new(Options::default()).await;
    let (id, odd) = draft("a\0b", Effects::Opaque, running());
    let writes = world.insert_all();
    let error = insert(&*world.store, (id, odd), 1).await.unwrap_err();
    assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Other, true), "{error}");
    for write in writes {
        assert!(is_applied(&write.await.unwrap().unwrap()));
    }
    let (_, mut next) = draft("k", Effects::Opaque, running());
    next.scope = Scope::stored([7; 32], Some("a\0b".into()));
    let id = Id::of(&next.scope, &next.key);
    insert(&*world.store, (id, next), 1).await.unwrap();
    let seen = world.store.load(id).await.unwrap().unwrap();
    assert_eq!(seen.record.scope.label(), Some("a\u{fffd}b"));
}
