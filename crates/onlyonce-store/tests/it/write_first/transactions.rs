//! Completions inside transactions: what commits, what is undone, and who waits for whom.

use std::time::Instant;

use onlyonce_core::machine;
use onlyonce_core::record::{Effects, Revision, Token};
use onlyonce_core::time::When;
use onlyonce_store::{Change, ErrorKind, Swapped};

use super::{Answer, Application, SOON, Sent, code, created, receipt};
use crate::sqlite::world::{completed, draft, id, running};

const INSERT: &str = "INSERT INTO payment VALUES (120)";

/// W01, W09: rows, message and completion are there together, or none of them.
pub(crate) async fn rows_messages_and_completion_commit_together_or_not_at_all<A: Application>() {
    for (end, expected) in [("ROLLBACK", 0), ("COMMIT", 1)] {
        let world = A::world().await;
        let (before, handle) = world.reserve("k").await;
        world.app.sql("BEGIN").await.unwrap();
        world.app.hold(Some(&handle)).await.unwrap();
        world.app.sql(INSERT).await.unwrap();
        world.app.send(&receipt()).await.unwrap();
        world.app.complete(Some(&handle), &created()).await.unwrap();
        assert!(world.is_unchanged(id("k"), Some(&before)).await, "not before the transaction ends");
        world.app.sql(end).await.unwrap();
        assert_eq!(world.is_unchanged(id("k"), Some(&before)).await, expected == 0);
        let counts = (world.count("payment").await, world.count("onlyonce_outbox").await);
        assert_eq!(counts, (expected, expected));
    }
}

/// W01, W09, X05: an application that does not know what became of its COMMIT retries its transaction, and is told.
pub(crate) async fn a_transaction_that_is_retried_after_its_commit_is_told_so_and_rolled_back<
    A: Application,
>() {
    let world = A::world().await;
    let (_, handle) = world.reserve("k").await;
    for (status, expected) in [(201, ""), (202, "OO002"), (201, "OO002")] {
        world.app.sql("BEGIN").await.unwrap();
        world.app.sql(INSERT).await.unwrap();
        let told = world.app.complete(Some(&handle), &Answer { status, ..created() }).await;
        assert_eq!(code(told), expected);
        world.app.sql("COMMIT").await.unwrap();
    }
    assert_eq!(world.count("payment").await, 1);
    let seen = world.load("k").await;
    assert_eq!(machine::stored(&seen.record).unwrap().0.status, 201);
    let refused = world.app.complete(Some(&handle), &created()).await.unwrap_err();
    assert_eq!(refused.message, "onlyonce: this attempt has completed already");
}

/// W01, W09: whatever it was refused by.
pub(crate) async fn who_ignores_an_error_and_commits_has_nothing_to_commit<A: Application>() {
    let world = A::world().await;
    let (before, handle) = world.reserve("k").await;
    let void = format!("{}.{}", &handle[..64], "0".repeat(32));
    let broken = Sent { key: Some("a.b".to_owned()), ..receipt() };
    let malformed = Sent { handle: Some("zz".to_owned()), ..receipt() };
    for fault in 0..6 {
        world.app.sql("BEGIN").await.unwrap();
        world.app.sql(INSERT).await.unwrap();
        world.app.send(&receipt()).await.unwrap();
        let told = match fault {
            0 => world.app.complete(Some(&void), &created()).await,
            1 => world.app.hold(Some(&void)).await,
            2 => world.app.hold(Some("malformed")).await,
            3 => world.app.complete(Some(&handle), &Answer { status: 99, ..created() }).await,
            4 => world.app.send(&broken).await.map(drop),
            _ => world.app.send(&malformed).await.map(drop),
        };
        assert_ne!(code(told), "", "{fault}");
        world.app.sql("COMMIT").await.unwrap();
        let counts = (world.count("payment").await, world.count("onlyonce_outbox").await);
        assert_eq!(counts, (0, 0), "{fault}");
    }
    assert!(world.is_unchanged(id("k"), Some(&before)).await);
}

/// W09: undone with its savepoint, after which another completion is as good as the first.
pub(crate) async fn a_completion_is_undone_with_its_savepoint<A: Application>() {
    let world = A::world().await;
    let (_, handle) = world.reserve("k").await;
    world.app.sql("BEGIN").await.unwrap();
    world.app.sql(INSERT).await.unwrap();
    world.app.sql("SAVEPOINT first").await.unwrap();
    world.app.complete(Some(&handle), &Answer { status: 500, ..created() }).await.unwrap();
    world.app.sql("ROLLBACK TO SAVEPOINT first").await.unwrap();
    world.app.complete(Some(&handle), &created()).await.unwrap();
    world.app.sql("COMMIT").await.unwrap();
    let seen = world.load("k").await;
    assert_eq!(machine::stored(&seen.record).unwrap().0.status, 201);
    assert_eq!(world.count("payment").await, 1);
}

/// R05, W09, X02: nobody renews the record or begins another attempt, and nobody waits for long.
pub(crate) async fn while_the_row_is_held_no_renewal_and_no_other_attempt_is_written<A: Application>() {
    let world = A::world().await;
    let (before, handle) = world.reserve("k").await;
    for completes in [false, true] {
        world.app.sql("BEGIN").await.unwrap();
        match completes {
            true => world.app.complete(Some(&handle), &created()).await.unwrap(),
            false => world.app.hold(Some(&handle)).await.unwrap(),
        }
        let (id, mut next) = draft("k", Effects::Local, running());
        next.token = Token([8; 16]);
        next.attempt = 2;
        let began = Instant::now();
        let error =
            world.store.swap(id, Change::new(Some(before.revision), Revision(2), next)).await.unwrap_err();
        assert_eq!((error.kind(), error.wrote_nothing()), (ErrorKind::Busy, true), "{error}");
        assert!(world.store.load(id).await.unwrap().is_some(), "a look does not wait");
        // The application's own time-out counts for a second transaction of the same attempt.
        let other = A::connect(&world.place).await;
        let late = other.wait_shortly().await;
        other.sql("BEGIN").await.unwrap();
        other.sql(INSERT).await.unwrap();
        assert_eq!(code(other.complete(Some(&handle), &created()).await), late);
        other.sql("COMMIT").await.unwrap();
        assert_eq!(code(other.hold(Some(&handle)).await), late);
        assert!(began.elapsed() < SOON);
        world.app.sql("ROLLBACK").await.unwrap();
        assert_eq!(world.count("payment").await, 0, "what waited too long has nothing to commit");
    }
    assert!(world.is_unchanged(id("k"), Some(&before)).await);
    world.app.complete(Some(&handle), &created()).await.unwrap();
}

/// R05, W09: two transactions of one attempt at once. One commits; the other waits for it and is refused.
pub(crate) async fn of_two_transactions_of_one_attempt_one_commits<A: Application>() {
    let world = A::world().await;
    let (_, handle) = world.reserve("k").await;
    let other = A::connect(&world.place).await;
    world.app.sql("BEGIN").await.unwrap();
    world.app.sql(INSERT).await.unwrap();
    world.app.complete(Some(&handle), &created()).await.unwrap();
    let second = async {
        other.sql("BEGIN").await.unwrap();
        other.sql(INSERT).await.unwrap();
        let told = code(other.complete(Some(&handle), &Answer { status: 202, ..created() }).await);
        other.sql("COMMIT").await.unwrap();
        told
    };
    let first = async {
        world.until_somebody_waits().await;
        world.app.sql("COMMIT").await.unwrap();
    };
    assert_eq!(tokio::join!(second, first).0, "OO002");
    assert_eq!(world.count("payment").await, 1);
}

/// R05, W09: a later attempt that begins while the application waits for the row supersedes it.
pub(crate) async fn an_attempt_that_is_superseded_while_it_waits_is_refused<A: Application>() {
    let world = A::world().await;
    let (_, handle) = world.reserve("k").await;
    let other = A::connect(&world.place).await;
    world.app.sql("BEGIN").await.unwrap();
    let token = A::bytes(&[8; 16]);
    let supersede = format!("UPDATE onlyonce_record SET token = {token}, attempt = 2, revision = 2");
    world.app.sql(&supersede).await.unwrap();
    let superseded = async {
        world.until_somebody_waits().await;
        world.app.sql("COMMIT").await.unwrap();
    };
    let (told, ()) =
        tokio::join!(async { code(other.complete(Some(&handle), &created()).await) }, superseded);
    assert_eq!(told, "OO001");
}

/// R06, W09: at READ COMMITTED a renewal under way costs nothing: the completion is judged on what stands there then.
pub(crate) async fn at_read_committed_a_renewal_does_not_fail_the_transaction<A: Application>() {
    let world = A::world().await;
    let (before, handle) = world.reserve("k").await;
    world.app.sql(A::READ_COMMITTED).await.unwrap();
    world.app.sql("BEGIN").await.unwrap();
    assert_eq!(world.count("payment").await, 0);
    assert!(matches!(world.renew("k", before.revision, 2).await.unwrap(), Swapped::Applied(_)));
    world.app.complete(Some(&handle), &created()).await.unwrap();
    world.app.sql("COMMIT").await.unwrap();
    assert!(machine::stored(&world.load("k").await.record).is_some());
}

/// R05, W09: what a node and an application write at the same moment: one of the two, and the other is told.
pub(crate) async fn the_outcome_of_the_node_and_the_completion_exclude_each_other<A: Application>() {
    let world = A::world().await;
    let (before, handle) = world.reserve("k").await;
    world.app.sql("BEGIN").await.unwrap();
    world.app.sql(INSERT).await.unwrap();
    let (id, lost) = draft("k", Effects::Local, completed(When::WRITE));
    world.store.swap(id, Change::new(Some(before.revision), Revision(2), lost)).await.unwrap();
    let told = world.app.complete(Some(&handle), &created()).await;
    assert_eq!(code(told), "OO002", "the node has stored an answer before");
    world.app.sql("COMMIT").await.unwrap();
    assert_eq!(world.count("payment").await, 0);
    let (_, handle) = world.reserve("other").await;
    world.app.complete(Some(&handle), &Answer { status: 299, ..created() }).await.unwrap();
    let Swapped::Lost(Some(seen)) = world.renew("other", Revision(1), 2).await.unwrap() else {
        panic!("a renewal finds the completion")
    };
    assert_eq!(machine::stored(&seen.record).unwrap().0.status, 299);
}
