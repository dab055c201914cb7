//! Who may do what: an application's user, reports, and everybody else.

use onlyonce_testkit::engines::mariadb::Server;

use super::{App, World};
use crate::sqlite::world::id;
use crate::write_first::{Application as _, code, created, receipt};

/// A user with these of the grants that `onlyonce migrate --grants` prints.
async fn user(world: &World, app: bool, reports: bool) -> App {
    let (server, place) = (Server::shared(), &world.place);
    let name = format!("{}_{}{}", &place[..place.len().min(24)], u8::from(app), u8::from(reports));
    let named = |is: bool| if is { vec![name.clone()] } else { Vec::new() };
    let grants = onlyonce_store::mysql::grants(&server.url(place), &named(app), &named(reports)).unwrap();
    // Whoever may log in to a database at all sees nothing there.
    let login = format!("CREATE USER {name} IDENTIFIED BY 's3cret'; GRANT USAGE ON {place}.* TO {name};");
    server.sql("", &format!("{login} {}", grants.replace(" -- only for plain INSERTs", "")));
    let connected =
        App::open(&server.url_of(&format!("{name}:s3cret"), if app || reports { place } else { "" })).await;
    if app || reports {
        connected.sql(&format!("USE {place}")).await.unwrap();
    }
    connected
}

/// W09: it completes what it has a handle of, stores messages, and reads nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_application_may_complete_and_send_and_nothing_else() {
    let world = App::world().await;
    let app = user(&world, true, false).await;
    let (_, handle) = world.reserve("k").await;
    let (other, _) = world.reserve("other").await;
    app.hold(Some(&handle)).await.unwrap();
    app.send(&receipt()).await.unwrap();
    let plain = "INSERT INTO onlyonce_outbox (`key`, destination, payload, content_type, group_key, due_at)
                 VALUES ('m', 'receipts', '{}', 'text/plain', 'g', 7)";
    app.sql(plain).await.unwrap();
    app.sql("INSERT INTO onlyonce_outbox (destination, payload) VALUES ('receipts', '{}')").await.unwrap();
    app.complete(Some(&handle), &created()).await.unwrap();
    for denied in [
        "SELECT * FROM onlyonce_record",
        "SELECT id FROM onlyonce_record",
        "SELECT * FROM onlyonce_keys",
        "SELECT `key` FROM onlyonce_outbox",
        "SELECT * FROM onlyonce_messages",
        "SELECT * FROM onlyonce_archive",
        "SELECT * FROM onlyonce_audit",
        "SELECT * FROM onlyonce_store",
        "SELECT * FROM onlyonce_migration",
        "UPDATE onlyonce_record SET state = 'completed'",
        "UPDATE onlyonce_outbox SET state = 'dead'",
        "DELETE FROM onlyonce_record",
        "DELETE FROM onlyonce_outbox",
        "INSERT INTO onlyonce_outbox (destination, payload, state) VALUES ('receipts', '{}', 'dead')",
        "INSERT INTO onlyonce_outbox (destination, payload, record) VALUES ('receipts', '{}', X'00')",
        "CREATE TABLE mine (a INT)",
        "CREATE TEMPORARY TABLE onlyonce_record (a INT)",
        "DROP PROCEDURE onlyonce_hold",
        "CALL onlyonce_write_completed('x', 200, '', '', NULL, NULL)",
    ] {
        assert_eq!(code(app.sql(denied).await), "42000", "{denied}");
    }
    assert!(world.is_unchanged(id("other"), Some(&other)).await);
    assert_eq!(world.count("onlyonce_outbox").await, 3);
}

/// W09: the views show records and messages to reports; answers, tokens and procedures they do not.
#[tokio::test(flavor = "multi_thread")]
async fn reports_may_read_the_views_and_call_nothing() {
    let world = App::world().await;
    let reports = user(&world, false, true).await;
    let (before, handle) = world.reserve("k").await;
    let row = "SELECT CONCAT(`key`, ' ', state, ' ', effects) FROM onlyonce_keys";
    assert_eq!(reports.text(row).await, "k running local");
    assert_eq!(reports.number("SELECT count(*) FROM onlyonce_messages").await, 0);
    assert_eq!(code(reports.sql("SELECT body FROM onlyonce_keys").await), "42S22");
    assert_eq!(code(reports.sql("SELECT token FROM onlyonce_record").await), "42000");
    assert_eq!(code(reports.hold(Some(&handle)).await), "42000");
    assert!(world.is_unchanged(id("k"), Some(&before)).await);
}

/// W09: without a grant nobody may call them, and the answer does not tell whether they are there.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_may_call_the_procedures_without_a_grant() {
    let world = App::world().await;
    let nobody = user(&world, false, false).await;
    let (before, handle) = world.reserve("k").await;
    let call = format!("CALL {}.onlyonce_complete('{handle}', 200, NULL, '', NULL)", world.place);
    assert_eq!(code(nobody.sql(&call).await), "42000");
    assert!(world.is_unchanged(id("k"), Some(&before)).await);
}
