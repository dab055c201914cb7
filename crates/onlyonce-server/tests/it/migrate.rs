//! `onlyonce migrate` from outside, and what it and `serve` say of a store that cannot be used.

use std::fs;
use std::net::TcpListener;
use std::process::Output;
use std::time::{Duration, Instant};

use onlyonce_testkit::engines::postgres::Server;
use rusqlite::Connection;
use serde_json::Value;

use crate::demo::Served;
use crate::program::{Folder, onlyonce, text};

const PASSWORD: &str = "s3cret";
/// Whatever takes longer than this hangs.
const SOON: Duration = Duration::from_secs(30);

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("--json prints JSON and nothing else")
}

/// The words of what ended with 0.
fn done(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn schema_of(url: &str) -> &str {
    url.split_once("schema=").expect("a URL with a schema").1
}

fn tables(schema: &str) -> String {
    Server::shared().sql(&format!("SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'"))
}

/// A role with a password, and a schema of its own.
fn role() -> (String, String) {
    let server = Server::shared();
    let name = server.fresh_name();
    server.sql(&format!("CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'"));
    server.sql(&format!("CREATE SCHEMA {name} AUTHORIZATION {name}"));
    let url = format!("{}?schema={name}", server.url_of(&format!("{name}:{PASSWORD}"), "postgres"));
    (name, url)
}

/// An error with these words, from both verbs and in good time, without the password; and nothing was made.
fn refused(store: &str, words: &[&str]) {
    let folder = Folder::new();
    let serve =
        ["serve", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    for verb in [&["migrate"][..], &["migrate", "--dry-run", "--json"], &serve] {
        let began = Instant::now();
        let output = folder.run(&[verb, &["--store", store]].concat());
        assert!(began.elapsed() < SOON, "{verb:?} hung");
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{verb:?}: {error}");
        for word in words {
            assert!(error.contains(word), "{verb:?}: {error} has no {word:?}");
        }
        assert!(!error.contains(PASSWORD), "{error}");
    }
    assert!(folder.contents().is_empty());
}

/// E02
#[test]
fn what_would_be_applied_is_shown_and_then_applied_once() {
    let (folder, url) = (Folder::new(), Server::shared().fresh_schema());
    let schema = schema_of(&url);
    let told = done(&folder.run(&["migrate", "--dry-run", "--store", &url]));
    assert!(told.contains(": schema version 0; this release needs 2\n"), "{told}");
    assert!(told.contains("\nmigration 1 \"0001-first\"\n"), "{told}");
    assert!(told.contains(&format!("CREATE TABLE \"{schema}\".onlyonce_record (")), "{told}");
    assert!(told.ends_with("would apply 2 migrations; nothing was changed\n"), "{told}");
    assert_eq!(tables(schema), "0");

    let told = done(&folder.run(&["migrate", "--store", &url]));
    assert!(told.ends_with("applied 2 migrations: schema version 2\n"), "{told}");
    assert_eq!(tables(schema), "8");
    let told = done(&folder.run(&["migrate", "--store", &url]));
    assert!(told.ends_with(": schema version 2; this release needs 2\nnothing to do\n"), "{told}");
}

/// E02: what an upgrade asks of the nodes that still run is told with each step.
#[test]
fn machines_are_told_the_same() {
    let (folder, url) = (Folder::new(), Server::shared().fresh_schema());
    let schema = schema_of(&url);
    let told = json(&folder.run(&["migrate", "--dry-run", "--json", "--store", &url]));
    assert_eq!(
        (&told["done"], &told["version"], &told["latest"]),
        (&Value::from(false), &Value::from(0), &Value::from(2))
    );
    assert_eq!(
        (&told["migrations"][0]["name"], &told["migrations"][0]["needs"]),
        (&"0001-first".into(), &1.into())
    );
    assert_eq!(tables(schema), "0");
    let told = json(&folder.run(&["migrate", "--json", "--store", &url]));
    assert_eq!(
        (&told["done"], &told["version_before"], &told["version"]),
        (&true.into(), &0.into(), &2.into())
    );
    let told = json(&folder.run(&["migrate", "--json", "--store", &url]));
    assert_eq!((&told["done"], &told["migrations"]), (&true.into(), &Value::Array(Vec::new())));
}

/// E01: a file has one process, which brings it up to its release when it opens it.
#[test]
fn a_file_and_memory_are_told_as_one_would_expect() {
    let folder = Folder::new();
    let told = done(&folder.run(&["migrate", "--dry-run"]));
    assert!(told.contains("store sqlite:onlyonce.db: schema version 0; this release needs 1\n"), "{told}");
    assert!(told.contains("CREATE TABLE onlyonce_record ("), "{told}");
    assert!(folder.contents().is_empty(), "nothing was made");
    assert!(done(&folder.run(&["migrate"])).ends_with("applied 1 migration: schema version 1\n"));
    assert!(folder.contents().contains_key("onlyonce.db"));
    assert!(done(&folder.run(&["migrate"])).ends_with("nothing to do\n"));
    // Also while its owner uses it: there is nothing to do that would need the file.
    let mut served = Served::begin(&["--store", &folder.url("onlyonce.db")]);
    assert!(done(&folder.run(&["migrate"])).ends_with("nothing to do\n"));
    assert_eq!(served.interrupt(), Some(0));
    let told = done(&folder.run(&["migrate", "--store", "memory:"]));
    assert_eq!(told, "store memory: has no schema; nothing to do\n");
    assert_eq!(json(&folder.run(&["migrate", "--store", "memory:", "--json"]))["done"], true);
}

/// The store is found where serve would find it; what else is wrong with the settings is not this verb's business.
#[test]
fn the_store_comes_from_the_settings() {
    let folder = Folder::new();
    let file = folder.path().join("onlyonce.toml");
    fs::write(&file, "store = \"sqlite:named.db\"\n[policy]\nlease = \"never\"\n").expect("written");
    assert!(done(&folder.run(&["migrate", "--config", "onlyonce.toml"])).contains("sqlite:named.db"));
    assert!(folder.contents().contains_key("named.db"));
    let from_variable = onlyonce()
        .current_dir(folder.path())
        .env("ONLYONCE_STORE", "memory:")
        .arg("migrate")
        .output()
        .expect("the program can be started");
    assert!(done(&from_variable).contains("store memory:"));
    let output = folder.run(&["migrate", "--config", "nowhere.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("nowhere.toml"), "{}", text(&output.stderr));
}

/// E02, S04
#[test]
fn a_wrong_url_password_role_database_or_schema_is_named_with_its_remedy() {
    let server = Server::shared();
    let (name, url) = role();
    refused("postgres://", &["host"]);
    refused(&url.replace(PASSWORD, "guess"), &["password", &format!("role \"{name}\"")]);
    refused(&server.url_of(&format!("nobody:{PASSWORD}"), "postgres"), &["\"nobody\"", "pg_hba.conf"]);
    let elsewhere = server.url_of(&format!("{name}:{PASSWORD}"), "nowhere");
    refused(&elsewhere, &["\"nowhere\"", "create the database"]);
    refused(&url.replace("schema=", "schema=typo_"), &["has no schema \"typo_", "CREATE SCHEMA"]);
    refused("mongodb://db", &["an unknown kind"]);
}

/// X01
#[test]
fn a_server_that_is_away_silent_read_only_or_in_recovery_is_named_with_its_remedy() {
    let away = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    refused(&format!("postgres://ann:{PASSWORD}@{away}/pay"), &[&away.to_string(), "check that it runs"]);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let url = format!("postgres://ann:{PASSWORD}@{address}/pay?connect_timeout=1");
    refused(&url, &["no answer within 1000 ms"]);
    let (name, url) = role();
    Server::shared().sql(&format!("ALTER ROLE {name} SET default_transaction_read_only = on"));
    refused(&url, &["is read-only", "list all hosts"]);
    let standby = Server::start_in_recovery().expect("a standby");
    refused(&standby.url("postgres"), &["is in recovery", "use the primary's URL"]);
}

/// P07, E01: a store of an earlier layout is refused by the command as it is by the gateway, with the same advice.
#[test]
fn a_store_of_another_layout_is_refused_by_migrate_and_serve_alike() {
    let advice = [
        "was not made by migration \"0001-first\"",
        "restore it from a backup, or use the release that made it",
    ];
    let folder = Folder::new();
    let url = folder.url("earlier.db");
    done(&folder.run(&["migrate", "--store", &url]));
    let earlier = Connection::open(folder.path().join("earlier.db")).expect("the file is there");
    earlier
        .execute_batch(
            "DROP INDEX onlyonce_record_by_pending; UPDATE onlyonce_migration SET checksum = x'00'",
        )
        .expect("changed");
    drop(earlier);
    refused(&url, &advice);

    let url = Server::shared().fresh_schema();
    let schema = schema_of(&url);
    done(&folder.run(&["migrate", "--store", &url]));
    Server::shared().sql(&format!(
        "DROP INDEX {schema}.onlyonce_record_by_pending; UPDATE {schema}.onlyonce_migration SET checksum = '\\x00'"
    ));
    refused(&url, &advice);
}

/// P07: a newer schema is taken where it says that this release can work with it, and else refused.
#[test]
fn a_newer_schema_is_taken_where_it_says_so_and_else_refused() {
    let (folder, url) = (Folder::new(), Server::shared().fresh_schema());
    let schema = schema_of(&url);
    done(&folder.run(&["migrate", "--store", &url]));
    Server::shared().sql(&format!(
        "INSERT INTO {schema}.onlyonce_migration (number, name, checksum, needs) VALUES (3, '0003-later', '\\x00', 2)"
    ));
    let told = done(&folder.run(&["migrate", "--store", &url]));
    assert!(
        told.contains("schema version 3; this release needs 2\nit was made by a newer release, and"),
        "{told}"
    );
    Server::shared().sql(&format!("UPDATE {schema}.onlyonce_migration SET needs = 3 WHERE number = 3"));
    refused(&url, &["\"0003-later\" of a newer release", "upgrade this node"]);
    Server::shared().sql(&format!(
        "DELETE FROM {schema}.onlyonce_migration WHERE number = 3;
         UPDATE {schema}.onlyonce_migration SET checksum = '\\x00' WHERE number = 1"
    ));
    refused(&url, &["was not made by migration \"0001-first\""]);
}

/// W09: the statements are printed, run as they are, and change nothing by being printed.
#[test]
fn grants_are_printed_for_the_roles_that_are_named() {
    let (folder, url) = (Folder::new(), Server::shared().fresh_schema());
    let (schema, name) = (schema_of(&url), Server::shared().fresh_name());
    done(&folder.run(&["migrate", "--store", &url]));
    Server::shared().sql(&format!("CREATE ROLE \"{name} app\"; CREATE ROLE {name}_reports"));
    let roles = format!("app={name} app,reports={name}_reports");
    let told = done(&folder.run(&["migrate", "--store", &url, "--grants", &roles]));
    assert_eq!(told.lines().count(), 5, "{told}");
    assert!(told.starts_with(&format!("GRANT USAGE ON SCHEMA \"{schema}\" TO \"{name} app\";\n")), "{told}");
    let may_call = format!(
        "SELECT has_function_privilege('{name} app', '{schema}.onlyonce_hold(text)', 'EXECUTE'),
                has_table_privilege('{name}_reports', '{schema}.onlyonce_keys', 'SELECT')"
    );
    assert_eq!(Server::shared().sql(&may_call), "f|f");
    Server::shared().sql(&told);
    assert_eq!(Server::shared().sql(&may_call), "t|t");
    for (grants, word) in [
        ("shop", "\"shop\" is neither app=ROLE nor reports=ROLE"),
        ("app=shop,admin=ann", "\"admin=ann\" is neither"),
        ("app=", "\"app=\" has no role"),
        ("", "\"\" is neither"),
    ] {
        let output = folder.run(&["migrate", "--store", &url, "--grants", grants]);
        assert_eq!(output.status.code(), Some(2), "{grants}");
        assert!(text(&output.stderr).contains(word), "{grants}: {}", text(&output.stderr));
    }
    let output = folder.run(&["migrate", "--store", "sqlite:x.db", "--grants", "app=shop"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("store sqlite:x.db has no roles"), "{}", text(&output.stderr));
    assert!(folder.contents().is_empty(), "nothing was made");
}

/// W09: the same on MySQL, for users and roles.
#[cfg(feature = "mysql")]
#[test]
fn grants_are_printed_for_users_of_mysql() {
    use onlyonce_testkit::engines::mariadb::Server;

    let (folder, server) = (Folder::new(), Server::shared());
    let database = server.fresh_database();
    let url = server.url(&database);
    done(&folder.run(&["migrate", "--store", &url]));
    server.sql("", &format!("CREATE USER {database}@'127.0.0.%'; CREATE ROLE {database}"));
    let roles = format!("app={database}@127.0.0.%,reports={database}");
    let told = done(&folder.run(&["migrate", "--store", &url, "--grants", &roles]));
    assert_eq!(told.lines().count(), 8, "{told}");
    server.sql("", &told.replace("; -- only for plain INSERTs", ";"));
    let granted = |to: &str| server.sql("", &format!("SHOW GRANTS FOR {to}"));
    assert!(granted(&format!("{database}@'127.0.0.%'")).contains("`onlyonce_complete`"));
    assert!(granted(&database).contains("`onlyonce_messages`"));
}
