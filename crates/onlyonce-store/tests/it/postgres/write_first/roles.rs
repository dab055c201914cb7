//! Who may do what: an application's role, reports, and everybody else.

use onlyonce_testkit::engines::postgres::Server;
use tokio_postgres::Client;

use super::{World, code, connect, created};
use crate::sqlite::world::id;
use crate::write_first::{self, Application as _};

struct Roles {
    app: String,
    reports: String,
}

impl Roles {
    /// Roles with the grants that `onlyonce migrate --grants` prints, given by the schema's owner.
    fn of(world: &World) -> Self {
        let name = Server::shared().fresh_name();
        let (app, reports, schema) = (format!("{name}_app"), format!("{name}_reports"), &world.place);
        let make = |role: &str| Server::shared().sql(&format!("CREATE ROLE {role} LOGIN PASSWORD 's3cret'"));
        make(&app);
        make(&reports);
        let url = format!("{}?schema={schema}", Server::shared().url("postgres"));
        Server::shared().sql(&onlyonce_store::postgres::grants(&url, &[&app], &[&reports]).unwrap());
        Self { app, reports }
    }

    async fn connect(role: &str, world: &World) -> Client {
        let client = connect(&Server::shared().url_of(&format!("{role}:s3cret"), "postgres")).await;
        client.batch_execute(&format!("SET search_path = {}", world.place)).await.unwrap();
        client
    }
}

/// W09: it completes what it has a handle of, stores messages, and reads nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_application_may_complete_and_send_and_nothing_else() {
    let world = Client::world().await;
    let roles = Roles::of(&world);
    let app = Roles::connect(&roles.app, &world).await;
    let (_, handle) = world.reserve("k").await;
    let (other, _) = world.reserve("other").await;
    app.hold(Some(&handle)).await.unwrap();
    app.execute("SELECT onlyonce_send('receipts', '{}', handle => $1)", &[&handle]).await.unwrap();
    let plain = "INSERT INTO onlyonce_outbox (key, destination, payload, content_type, group_key, due_at)
                 VALUES ('m', 'receipts', '{}', 'text/plain', 'g', clock_timestamp())";
    app.batch_execute(plain).await.unwrap();
    app.batch_execute("INSERT INTO onlyonce_outbox (destination, payload) VALUES ('receipts', '{}')")
        .await
        .unwrap();
    app.complete(Some(&handle), &created()).await.unwrap();
    for denied in [
        "SELECT * FROM onlyonce_record",
        "SELECT id FROM onlyonce_record",
        "SELECT * FROM onlyonce_keys",
        "SELECT * FROM onlyonce_outbox",
        "SELECT key FROM onlyonce_outbox",
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
        "INSERT INTO onlyonce_outbox (destination, payload, record) VALUES ('receipts', '{}', '\\x00')",
        "CREATE TABLE mine ()",
        "DROP FUNCTION onlyonce_hold",
    ] {
        let raised = code(app.batch_execute(denied).await);
        let is_denied = raised == "42501" || raised == "42P01";
        assert!(is_denied, "{denied}: {raised:?}");
    }
    assert!(world.is_unchanged(id("other"), Some(&other)).await);
}

/// W09: the views show records and messages to reports; answers, tokens and functions they do not.
#[tokio::test(flavor = "multi_thread")]
async fn reports_may_read_the_views_and_call_nothing() {
    let world = Client::world().await;
    let roles = Roles::of(&world);
    let reports = Roles::connect(&roles.reports, &world).await;
    let (_, handle) = world.reserve("k").await;
    world.app.complete(Some(&handle), &created()).await.unwrap();
    let columns = "SELECT id, scope, scope_label, key, route, state, attempt, effects, recovery_point, status, created_at,
                          began_at, updated_at, expires_at, due_at FROM onlyonce_keys";
    let row = reports.query_one(columns, &[]).await.unwrap();
    assert_eq!((row.get::<_, &str>(3), row.get::<_, &str>(5), row.get::<_, i32>(9)), ("k", "completed", 201));
    assert_eq!(code(reports.batch_execute("SELECT body FROM onlyonce_keys").await), "42703");
    assert_eq!(code(reports.batch_execute("SELECT token FROM onlyonce_record").await), "42501");
    assert_eq!(write_first::code(reports.hold(Some(&handle)).await), "42501");
}

/// W09: PostgreSQL lets everybody call a new function; not these.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_may_call_the_functions_without_a_grant() {
    let world = Client::world().await;
    let name = Server::shared().fresh_name();
    let schema = &world.place;
    Server::shared().sql(&format!(
        "CREATE ROLE {name} LOGIN PASSWORD 's3cret'; GRANT USAGE ON SCHEMA {schema} TO {name}"
    ));
    let nobody = Roles::connect(&name, &world).await;
    let (before, handle) = world.reserve("k").await;
    assert_eq!(write_first::code(nobody.hold(Some(&handle)).await), "42501");
    assert_eq!(write_first::code(nobody.complete(Some(&handle), &created()).await), "42501");
    assert_eq!(code(nobody.batch_execute("SELECT onlyonce_send('receipts', '{}')").await), "42501");
    assert!(world.is_unchanged(id("k"), Some(&before)).await);
}

/// W09: a caller that puts tables, functions and operators of its own in front captures nothing.
#[tokio::test(flavor = "multi_thread")]
async fn shadows_in_front_of_the_search_path_capture_nothing() {
    let world = Client::world().await;
    let roles = Roles::of(&world);
    let evil = Server::shared().fresh_name();
    Server::shared().sql(&format!("CREATE SCHEMA {evil} AUTHORIZATION {}", roles.app));
    let app = Roles::connect(&roles.app, &world).await;
    let (_, handle) = world.reserve("k").await;
    let schema = &world.place;
    let shadows = format!(
        "SET search_path = {evil}, pg_temp, pg_catalog, {schema};
         CREATE TABLE stolen (what text);
         CREATE TEMP TABLE onlyonce_record (id bytea, token bytea, state text);
         CREATE TEMP TABLE onlyonce_outbox (key text, destination text);
         CREATE FUNCTION {evil}.decode(text, text) RETURNS bytea LANGUAGE sql AS
             $$ INSERT INTO {evil}.stolen VALUES ($1); SELECT ''::bytea $$;
         CREATE FUNCTION {evil}.left(text, integer) RETURNS text LANGUAGE sql AS
             $$ INSERT INTO {evil}.stolen VALUES ($1); SELECT '' $$;
         CREATE FUNCTION {evil}.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'epoch'::timestamptz $$;
         CREATE FUNCTION {evil}.gen_random_uuid() RETURNS uuid LANGUAGE sql AS
             $$ SELECT '00000000-0000-0000-0000-000000000000'::uuid $$;
         CREATE FUNCTION {evil}.matches(text, text) RETURNS boolean LANGUAGE sql AS
             $$ INSERT INTO {evil}.stolen VALUES ($1); SELECT false $$;
         CREATE OPERATOR {evil}.!~ (LEFTARG = text, RIGHTARG = text, FUNCTION = {evil}.matches);
         CREATE FUNCTION {evil}.same(bytea, bytea) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$;
         CREATE OPERATOR {evil}.= (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = {evil}.same)"
    );
    app.batch_execute(&shadows).await.unwrap();
    let calls = format!(
        "SELECT {schema}.onlyonce_hold('{handle}'); SELECT {schema}.onlyonce_send('receipts', '{{}}', handle => '{handle}');
         SELECT {schema}.onlyonce_complete('{handle}', 201, '{{\"a\": \"b\"}}')"
    );
    app.batch_execute(&calls).await.unwrap();
    assert_eq!(app.number(&format!("SELECT count(*) FROM {evil}.stolen")).await, 0);
    assert!(onlyonce_core::machine::stored(&world.load("k").await.record).is_some());
    assert_eq!(world.count("onlyonce_outbox").await, 1);
}

/// R05, W09: two services with roles of their own: neither knows the other's handles, and a guess is told nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_cannot_touch_an_attempt_whose_handle_it_does_not_have() {
    let world = Client::world().await;
    let roles = Roles::of(&world);
    let app = Roles::connect(&roles.app, &world).await;
    let (before, handle) = world.reserve("k").await;
    let guess = format!("{}.{}", handle.split_once('.').unwrap().0, "a".repeat(32));
    assert_eq!(write_first::code(app.complete(Some(&guess), &created()).await), "OO001");
    assert!(world.is_unchanged(id("k"), Some(&before)).await);
}
