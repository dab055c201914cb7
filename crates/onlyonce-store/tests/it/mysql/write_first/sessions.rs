//! Sessions as applications have them: modes, character sets, time zones, isolation levels, and no transaction at all.

use onlyonce_core::machine;
use onlyonce_core::record::{Effects, Revision, State, Token};
use onlyonce_core::time::{Timestamp, When};
use onlyonce_store::{ErrorKind, Swapped};
use onlyonce_testkit::engines::mariadb::Server;

use super::App;
use crate::sqlite::world::{HOUR, draft, id};
use crate::write_first::agreement::agrees;
use crate::write_first::{Answer, Application as _, code, created, receipt, stored};

const INSERT: &str = "INSERT INTO payment VALUES (120)";

/// W09: error numbers, for drivers that tell no SQLSTATE.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_numbers_of_their_own() {
    let world = App::world().await;
    let (_, handle) = world.reserve("k").await;
    world.app.complete(Some(&handle), &created()).await.unwrap();
    let void = format!("{}.{}", &handle[..64], "0".repeat(32));
    for (handle, number) in [(void, "code: 31001"), (handle, "code: 31002")] {
        let refused = world.app.hold(Some(&handle)).await.unwrap_err();
        assert!(refused.whole.contains(number), "{}", refused.whole);
    }
}

/// W09: the procedures have the modes and character sets that they were made with, and count in UTC.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_does_not_depend_on_the_session() {
    let world = App::world().await;
    for (number, session) in [
        "SET sql_mode = ''",
        "SET sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,STRICT_TRANS_TABLES'",
        "SET NAMES latin1, time_zone = '-11:00'",
        "SET NAMES binary, div_precision_increment = 0, sql_safe_updates = 1",
        "SET autocommit = 0",
    ]
    .into_iter()
    .enumerate()
    {
        let app = App::connect(&world.place).await;
        app.sql(session).await.unwrap();
        let (own, mut next) = draft(
            &format!("k{number}"),
            Effects::Local,
            State::Running { lapses_at: When::AfterWrite(HOUR) },
        );
        next.terms.retention = std::time::Duration::MAX;
        world.insert((own, next)).await;
        let world = crate::write_first::World { store: world.store.clone(), place: world.place.clone(), app };
        if session.contains("autocommit") {
            let handle = crate::write_first::handle(own, Token([5; 16]));
            world.app.complete(Some(&handle), &created()).await.unwrap();
            world.app.sql("ROLLBACK").await.unwrap();
            let seen = world.store.load(own).await.unwrap().unwrap();
            assert!(machine::stored(&seen.record).is_none(), "it is the application's to commit");
        } else {
            let told = agrees(&world, own, Token([5; 16]), &created(), Some(stored())).await;
            assert_eq!(told, "completed", "{session}");
            let seen = world.store.load(own).await.unwrap().unwrap();
            assert_eq!(machine::stored(&seen.record).unwrap().1, Timestamp::from_micros(i64::MAX));
        }
        let text = "CALL onlyonce_send('receipts', '{}', NULL, NULL, NULL, NULL, NULL)";
        world.app.sql(text).await.unwrap();
        world.app.sql("COMMIT").await.unwrap();
    }
    assert_eq!(world.count("onlyonce_outbox").await, 5);
    assert_eq!(world.count("onlyonce_outbox WHERE due_at > created_at").await, 0);
}

/// W09: spans of seconds with a fraction, and longer than there are moments.
#[tokio::test(flavor = "multi_thread")]
async fn retention_is_in_seconds() {
    let world = App::world().await;
    for (retention, expected) in
        [("0", "0"), ("2.5", "2500000"), ("34560000", "34560000000000"), ("0.0000014", "1")]
    {
        let (_, handle) = world.reserve(retention).await;
        world
            .app
            .sql(&format!("CALL onlyonce_complete('{handle}', 200, NULL, '', {retention})"))
            .await
            .unwrap();
        let kept = format!("SELECT expires_at - written_at FROM onlyonce_record WHERE `key` = '{retention}'");
        assert_eq!(world.app.number(&kept).await.to_string(), expected, "{retention}");
    }
    for ages in ["9e12", "1e30"] {
        let (_, handle) = world.reserve(ages).await;
        world.app.sql(&format!("CALL onlyonce_complete('{handle}', 200, NULL, '', {ages})")).await.unwrap();
        let seen = world.load(ages).await;
        assert_eq!(machine::stored(&seen.record).unwrap().1, Timestamp::from_micros(i64::MAX));
    }
}

/// R06, W09: at a stricter level, too, a completion is judged on the record as it stands: no renewal starves it.
#[tokio::test(flavor = "multi_thread")]
async fn at_a_stricter_level_a_renewal_does_not_fail_the_transaction() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let world = App::world().await;
        let (before, handle) = world.reserve("k").await;
        world.app.sql(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await.unwrap();
        world.app.sql("BEGIN").await.unwrap();
        // From here on the transaction has its snapshot.
        assert_eq!(world.count("payment").await, 0);
        assert!(matches!(world.renew("k", before.revision, 2).await.unwrap(), Swapped::Applied(_)));
        world.app.sql(INSERT).await.unwrap();
        world.app.complete(Some(&handle), &created()).await.unwrap();
        world.app.sql("COMMIT").await.unwrap();
        assert_eq!(world.count("payment").await, 1, "{level}");
        let seen = world.load("k").await;
        assert!(machine::stored(&seen.record).is_some() && seen.revision != Revision(2), "{level}");
    }
}

/// W09: where the server refuses to go beyond a snapshot (the default of MariaDB 11.8), nothing is left to commit, and a
/// transaction that holds first is not refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_keeps_to_snapshots_refuses_unless_the_record_is_held_first() {
    let world = App::world().await;
    let (before, handle) = world.reserve("k").await;
    world.app.sql("SET SESSION innodb_snapshot_isolation = ON").await.unwrap();
    world.app.sql("BEGIN").await.unwrap();
    assert_eq!(world.count("payment").await, 0);
    world.renew("k", before.revision, 2).await.unwrap();
    world.app.sql(INSERT).await.unwrap();
    let refused = world.app.complete(Some(&handle), &created()).await.unwrap_err();
    assert!(refused.whole.contains("code: 1020"), "{}", refused.whole);
    world.app.sql("COMMIT").await.unwrap();
    assert_eq!(world.count("payment").await, 0);

    world.app.sql("BEGIN").await.unwrap();
    world.app.hold(Some(&handle)).await.unwrap();
    let error = world.renew("k", Revision(2), 3).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    world.app.sql(INSERT).await.unwrap();
    world.app.complete(Some(&handle), &created()).await.unwrap();
    world.app.sql("COMMIT").await.unwrap();
    assert_eq!(world.count("payment").await, 1);
}

/// W07, W09: outside a transaction the record and what belongs to it are still written together, and at once.
#[tokio::test(flavor = "multi_thread")]
async fn outside_a_transaction_a_completion_is_one() {
    let world = App::world().await;
    let (_, handle) = world.reserve("k").await;
    let Some((left, _)) = handle.split_once('.') else { panic!("a handle has a dot") };
    let request = format!("INSERT INTO onlyonce_request VALUES (X'{left}', 7, 'x', NULL)");
    world.app.sql(&request).await.unwrap();
    // The last of its statements fails: none of them may stay.
    let refuse =
        "CREATE TRIGGER refuse BEFORE DELETE ON onlyonce_request FOR EACH ROW SIGNAL SQLSTATE '45000'";
    world.app.sql(refuse).await.unwrap();
    assert_eq!(code(world.app.complete(Some(&handle), &created()).await), "45000");
    assert!(machine::stored(&world.load("k").await.record).is_none());
    world.app.sql("DROP TRIGGER refuse").await.unwrap();
    world.app.complete(Some(&handle), &created()).await.unwrap();
    let other = App::connect(&world.place).await;
    assert_eq!(other.number("SELECT count(*) FROM onlyonce_request").await, 0);
    assert!(machine::stored(&world.load("k").await.record).is_some());
    // The session is as it was: outside a transaction.
    world.app.sql(INSERT).await.unwrap();
    assert_eq!(other.number("SELECT count(*) FROM payment").await, 1);
}

/// W09, X01: a statement that the server cuts off leaves nothing to commit either.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_takes_too_long_leaves_nothing_to_commit() {
    let world = App::world().await;
    let (before, handle) = world.reserve("k").await;
    let other = App::connect(&world.place).await;
    other.sql("BEGIN").await.unwrap();
    other.hold(Some(&handle)).await.unwrap();
    world.app.sql("SET SESSION max_statement_time = 0.1").await.unwrap();
    world.app.sql("BEGIN").await.unwrap();
    world.app.sql(INSERT).await.unwrap();
    let refused = world.app.complete(Some(&handle), &Answer { status: 202, ..created() }).await.unwrap_err();
    assert!(refused.whole.contains("code: 1969"), "{}", refused.whole);
    world.app.sql("COMMIT").await.unwrap();
    assert_eq!(world.count("payment").await, 0);
    other.sql("ROLLBACK").await.unwrap();
    assert!(world.is_unchanged(id("k"), Some(&before)).await);
    world.app.send(&receipt()).await.unwrap();
}

/// W08: a business row points at the record it was made for, also while a node renews that; the reaper goes past it.
#[tokio::test(flavor = "multi_thread")]
async fn a_business_row_may_point_at_its_record() {
    let world = App::world().await;
    let table = "CREATE TABLE invoice (record BINARY(32), FOREIGN KEY (record) REFERENCES onlyonce_record (id) ON DELETE SET NULL)";
    world.app.sql(table).await.unwrap();
    let (_, handle) = world.reserve("k").await;
    world.app.sql("BEGIN").await.unwrap();
    let insert = format!("INSERT INTO invoice VALUES (UNHEX(SUBSTRING_INDEX('{handle}', '.', 1)))");
    world.app.sql(&insert).await.unwrap();
    world.app.complete(Some(&handle), &Answer { retention: Some(0), ..created() }).await.unwrap();
    world.app.sql("COMMIT").await.unwrap();
    let joined =
        "SELECT CONCAT(`key`, ' ', state) FROM invoice JOIN onlyonce_keys ON id = LOWER(HEX(record))";
    assert_eq!(world.app.text(joined).await, "k completed");
    assert_eq!(world.store.reap(10).await.unwrap(), 1);
    assert_eq!(world.count("invoice WHERE record IS NULL").await, 1);
    Server::shared().sql(&world.place, "DROP TABLE invoice");
}
