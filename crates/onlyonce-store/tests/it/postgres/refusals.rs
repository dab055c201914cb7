//! A store that cannot be opened is refused with a remedy: never a hang, never the password.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use onlyonce_core::record::Effects;
use onlyonce_store::postgres::{Options, Postgres};
use onlyonce_store::{Error, ErrorKind, Level, Store};
use onlyonce_testkit::engines::postgres::Server;

use crate::sqlite::world::{draft, insert, running};

const PASSWORD: &str = "s3cret";

async fn refused(url: &str, kind: ErrorKind, told: &[&str]) {
    let began = Instant::now();
    let error = opened(url).await.expect_err(url);
    assert!(began.elapsed() < Duration::from_secs(20), "it hung");
    assert_eq!(error.kind(), kind, "{error}");
    for told in told {
        assert!(error.to_string().contains(told), "{url}: {error}");
    }
    assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error}");
}

async fn opened(url: &str) -> Result<Postgres, Error> {
    let store = Postgres::open(url, Options::default()).await?;
    store.prepare().await?;
    assert!(!format!("{store:?}").contains(PASSWORD), "{store:?}");
    Ok(store)
}

/// A role with a password, and a schema of its own.
fn role(settings: &str) -> (String, String) {
    let server = Server::shared();
    let name = server.fresh_name();
    server.sql(&format!("CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}' {settings}"));
    server.sql(&format!("CREATE SCHEMA {name} AUTHORIZATION {name}"));
    let url = format!("{}?schema={name}", server.url_of(&format!("{name}:{PASSWORD}"), "postgres"));
    (name, url)
}

/// S04, E02
#[tokio::test]
async fn a_wrong_password_role_database_or_schema_is_named() {
    let server = Server::shared();
    let (name, url) = role("");
    opened(&url).await.unwrap();
    let wrong = url.replace(PASSWORD, "guess");
    refused(&wrong, ErrorKind::Misconfigured, &["password", &format!("role \"{name}\"")]).await;
    let nobody = server.url_of(&format!("nobody:{PASSWORD}"), "postgres");
    refused(&nobody, ErrorKind::Misconfigured, &["\"nobody\"", "pg_hba.conf"]).await;
    let none = server.url_of(&name, "postgres");
    refused(&none, ErrorKind::Misconfigured, &["password missing"]).await;
    let elsewhere = server.url_of(&format!("{name}:{PASSWORD}"), "nowhere");
    refused(&elsewhere, ErrorKind::Misconfigured, &["\"nowhere\"", "create the database"]).await;
    let typo = url.replace("schema=", "schema=typo_");
    let remedy = format!("CREATE SCHEMA \"typo_{name}\" AUTHORIZATION \"{name}\"");
    refused(&typo, ErrorKind::Misconfigured, &[&remedy]).await;
}

/// X01
#[tokio::test]
async fn a_server_that_is_away_or_silent_is_told_in_time() {
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("postgres://ann:{PASSWORD}@{away}/pay");
    refused(&url, ErrorKind::Unavailable, &[&away.to_string(), "check that it runs"]).await;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let url = format!("postgres://ann:{PASSWORD}@{address}/pay?connect_timeout=1");
    refused(&url, ErrorKind::Unavailable, &["no answer within 1000 ms"]).await;
}

/// X01
#[tokio::test]
async fn a_role_that_may_only_read_is_told() {
    let (name, url) = role("");
    Server::shared().sql(&format!("ALTER ROLE {name} SET default_transaction_read_only = on"));
    refused(&url, ErrorKind::Unavailable, &["is read-only", "list all hosts in it"]).await;
}

/// X01
#[tokio::test]
async fn a_standby_is_told() {
    let standby = Server::start_in_recovery().unwrap();
    refused(&standby.url("postgres"), ErrorKind::Unavailable, &["is in recovery", "use the primary's URL"])
        .await;
}

/// X01: the store that is open goes on with the connections it has.
#[tokio::test(flavor = "multi_thread")]
async fn too_few_connections_are_told() {
    let (name, url) = role("");
    let store = opened(&url).await.unwrap();
    Server::shared().sql(&format!("ALTER ROLE {name} CONNECTION LIMIT 0"));
    refused(&url, ErrorKind::Unavailable, &["too many connections", "max_connections"]).await;
    let id = onlyonce_core::record::Id([1; 32]);
    assert_eq!(store.load(id).await.unwrap(), None, "a connection that it has");
    let first = draft("k", Effects::Opaque, running());
    let error = insert(&store, first.clone(), 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    Server::shared().sql(&format!("ALTER ROLE {name} CONNECTION LIMIT -1"));
    insert(&store, first, 1).await.unwrap();
}

/// E02: a schema that nobody has prepared, and one whose tables are gone.
#[tokio::test]
async fn tables_that_are_missing_are_told() {
    let (_, url) = role("");
    let store = Postgres::open(&url, Options::default()).await.unwrap();
    let error = store.load(onlyonce_core::record::Id([1; 32])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("lacks a migration"), "{error}");
}

/// X05: what is acknowledged outlives a crash of the server, also where a role was made careless.
#[tokio::test]
async fn synchronous_commit_that_is_off_is_switched_on() {
    let (name, url) = role("");
    Server::shared().sql(&format!("ALTER ROLE {name} SET synchronous_commit = off"));
    let store = opened(&url).await.unwrap();
    Server::shared().sql(&format!(
        "CREATE TABLE {name}.seen (setting text);
         GRANT INSERT ON {name}.seen TO {name};
         CREATE FUNCTION {name}.note() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN INSERT INTO {name}.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
         CREATE TRIGGER note AFTER INSERT ON {name}.onlyonce_record FOR EACH STATEMENT EXECUTE FUNCTION {name}.note()"
    ));
    crate::sqlite::world::put(&store, "k").await;
    assert_eq!(Server::shared().sql(&format!("SELECT setting FROM {name}.seen")), "on");
}

/// X05: what makes the promises void is found, and a healthy server has nothing to say.
#[tokio::test(flavor = "multi_thread")]
async fn settings_that_lose_acknowledged_writes_are_found() {
    let (_, url) = role("");
    assert_eq!(opened(&url).await.unwrap().examine().await.unwrap(), []);
    let careless = Server::start(&[("fsync", "off"), ("full_page_writes", "off")]).unwrap();
    let findings = opened(&careless.url("postgres")).await.unwrap().examine().await.unwrap();
    let found: Vec<_> = findings.iter().map(|finding| (finding.level, finding.code)).collect();
    assert_eq!(found, [(Level::Error, "postgres.fsync"), (Level::Warning, "postgres.full_page_writes")]);
    assert!(findings[0].remedy.contains("fsync = on"), "{findings:?}");
}

/// E02: servers that speak as PostgreSQL does, and on which nothing was tested. Here PostgreSQL plays them.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_only_resembles_postgresql_is_refused_by_name_unless_it_is_allowed() {
    for (says, name) in [
        ("CREATE FUNCTION {}.version() RETURNS text RETURN 'CockroachDB CCL v23.1.11'", "CockroachDB"),
        (
            "CREATE FUNCTION {}.version() RETURNS text RETURN 'PostgreSQL 11.2-YB-2.18.3.0-b0 on x86_64'",
            "YugabyteDB",
        ),
        (
            "CREATE TABLE {0}.pg_extension (extname name); INSERT INTO {0}.pg_extension VALUES ('citus')",
            "Citus",
        ),
    ] {
        let (schema, url) = role("");
        Server::shared().sql(&says.replace("{}", &schema).replace("{0}", &schema));
        Server::shared().sql(&format!("GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {schema}"));
        let url = format!("{url}&options=-c%20search_path%3D{schema}%2Cpg_catalog");
        let told = [&*format!("is {name}, on which Onlyonce has not been tested"), "unproven=true"];
        refused(&url, ErrorKind::Misconfigured, &told).await;
        opened(&format!("{url}&unproven=true")).await.unwrap();
    }
}
