//! Completions inside transactions of PostgreSQL's own kinds.

use onlyonce_core::machine;
use onlyonce_core::record::Revision;
use onlyonce_store::{ErrorKind, Swapped};
use onlyonce_testkit::engines::postgres::Server;
use tokio_postgres::{Client, IsolationLevel};

use super::{code, world_on};
use crate::sqlite::world::id;
use crate::write_first::{self, Application as _, renewed};

/// W09: also what was refused, after which another completion is as good as the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_undone_with_its_savepoint() {
    let mut world = Client::world().await;
    let (_, handle) = world.reserve("k").await;
    let mut transaction = world.app.transaction().await.unwrap();
    let savepoint = transaction.savepoint("first").await.unwrap();
    savepoint.execute("SELECT onlyonce_complete($1, 500)", &[&handle]).await.unwrap();
    let again = savepoint.execute("SELECT onlyonce_complete($1, 201)", &[&handle]).await;
    assert_eq!(code(again), "OO002", "also in the transaction that completed it");
    savepoint.rollback().await.unwrap();
    transaction.execute("SELECT onlyonce_complete($1, 201)", &[&handle]).await.unwrap();
    transaction.commit().await.unwrap();
    let seen = world.load("k").await;
    assert_eq!(machine::stored(&seen.record).unwrap().0.status, 201);
}

/// R06, W09: at a stricter level a record that was renewed after the snapshot fails the transaction; held first, it is not
/// renewed.
#[tokio::test(flavor = "multi_thread")]
async fn at_a_stricter_level_a_renewal_fails_the_transaction_unless_it_holds_first() {
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let mut world = Client::world().await;
        let (before, handle) = world.reserve("k").await;
        let transaction = world.app.build_transaction().isolation_level(level).start().await.unwrap();
        transaction.query("SELECT * FROM payment", &[]).await.unwrap();
        assert!(matches!(
            renewed(&*world.store, "k", before.revision, 2).await.unwrap(),
            Swapped::Applied(_)
        ));
        let raised = transaction.execute("SELECT onlyonce_complete($1, 201)", &[&handle]).await;
        assert_eq!(code(raised), "40001");
        transaction.rollback().await.unwrap();

        let transaction = world.app.build_transaction().isolation_level(level).start().await.unwrap();
        transaction.execute("SELECT onlyonce_hold($1)", &[&handle]).await.unwrap();
        let error = renewed(&*world.store, "k", Revision(2), 3).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        transaction.execute("INSERT INTO payment VALUES (120)", &[]).await.unwrap();
        transaction.execute("SELECT onlyonce_complete($1, 201)", &[&handle]).await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(world.count("payment").await, 1);
        assert!(machine::stored(&world.load("k").await.record).is_some());
    }
}

/// W09: prepared, the record stays locked until the transaction is ended, and is completed then.
#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_transaction_completes_when_it_is_committed() {
    let server = Server::start(&[("max_prepared_transactions", "4")]).unwrap();
    let world = world_on(&server).await;
    let (before, handle) = world.reserve("k").await;
    for (end, is_completed) in [("ROLLBACK", false), ("COMMIT", true)] {
        let sql = format!(
            "BEGIN; INSERT INTO payment VALUES (1); SELECT onlyonce_complete('{handle}', 201); PREPARE TRANSACTION 'two'"
        );
        world.app.batch_execute(&sql).await.unwrap();
        assert!(world.is_unchanged(id("k"), Some(&before)).await, "not yet");
        world.app.batch_execute("SET lock_timeout = '30ms'").await.unwrap();
        assert_eq!(write_first::code(world.app.hold(Some(&handle)).await), "55P03");
        world.app.batch_execute(&format!("{end} PREPARED 'two'")).await.unwrap();
        assert_eq!(machine::stored(&world.load("k").await.record).is_some(), is_completed);
    }
    assert_eq!(world.count("payment").await, 1);
}

/// W08: a business row points at the record it was made for, also while a node renews that; the reaper goes past it.
#[tokio::test(flavor = "multi_thread")]
async fn a_business_row_may_point_at_its_record() {
    let mut world = Client::world().await;
    let table = "CREATE TABLE invoice (record bytea REFERENCES onlyonce_record (id) ON DELETE SET NULL);
                 CREATE INDEX ON invoice (record)";
    world.app.batch_execute(table).await.unwrap();
    let (before, handle) = world.reserve("k").await;
    let transaction = world.app.transaction().await.unwrap();
    let insert = "INSERT INTO invoice VALUES (decode(split_part($1, '.', 1), 'hex'))";
    transaction.execute(insert, &[&handle]).await.unwrap();
    renewed(&*world.store, "k", before.revision, 2).await.unwrap();
    transaction.execute("SELECT onlyonce_complete($1, 201, retention => '0')", &[&handle]).await.unwrap();
    transaction.commit().await.unwrap();
    let joined = "SELECT key, state FROM invoice JOIN onlyonce_keys ON id = encode(record, 'hex')";
    let row = world.app.query_one(joined, &[]).await.unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("k", "completed"));
    assert_eq!(world.store.reap(10).await.unwrap(), 1);
    let left = world.app.query_one("SELECT record IS NULL FROM invoice", &[]).await.unwrap();
    assert!(left.get::<_, bool>(0));
}

/// W09: the application's own time-out of a statement counts, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_waits_for_longer_than_it_may_is_cancelled() {
    let world = Client::world().await;
    let (_, handle) = world.reserve("k").await;
    world.app.sql("BEGIN").await.unwrap();
    world.app.hold(Some(&handle)).await.unwrap();
    let other = Client::connect(&world.place).await;
    other.sql("SET statement_timeout = '30ms'").await.unwrap();
    assert_eq!(write_first::code(other.hold(Some(&handle)).await), "57014");
}
