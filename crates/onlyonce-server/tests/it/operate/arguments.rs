//! What cannot be meant is refused, before anything is asked of anybody.

use super::world::run;
use crate::program::Folder;

const SCOPE: &str = "516eb950d18cc63e2fd05f889a35f14e0cc72d7738759cc6b5dbaedca508dd12";

/// Ends with 2 and these words; with `--json` the same in JSON.
fn refused(arguments: &[&str], words: &str) {
    let ended = run(arguments);
    assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{arguments:?}: {ended:?}");
    assert!(ended.err.contains(words), "{arguments:?}: {ended:?} has no {words:?}");
    let ended = run(&[arguments, &["--json"]].concat());
    assert_eq!(ended.code, 2, "{arguments:?}: {ended:?}");
    let error = ended.error();
    assert!(error["detail"].as_str().is_some_and(|detail| detail.contains(words)), "{arguments:?}: {error}");
    assert!(error["code"].is_string() && error.get("status").is_some(), "{error}");
}

#[test]
fn a_gateway_and_a_store_are_never_named_together() {
    let both = ["--admin", "http://127.0.0.1:1", "--store", "sqlite:a.db"];
    for verb in [
        &["keys", "list"][..],
        &["keys", "show", SCOPE, "k"],
        &["keys", "verdict", SCOPE, "k", "happened", "--reason", "r"],
        &["keys", "forget", SCOPE, "k", "--reason", "r"],
        &["keys", "purge", SCOPE, "--reason", "r"],
        &["log"],
    ] {
        refused(&[verb, &both].concat(), "cannot be used with");
        refused(&[verb, &["--token", "env:T", "--store", "sqlite:a.db"]].concat(), "cannot be used with");
    }
}

#[test]
fn what_cannot_be_meant_is_refused_with_its_remedy() {
    let verdict = |word: &'static str, flags: &[&'static str]| {
        [&["keys", "verdict", SCOPE, "k", word, "--reason", "r", "--store", "sqlite:a.db"], flags].concat()
    };
    refused(&verdict("perhaps", &[]), "invalid value 'perhaps'");
    refused(&verdict("happened", &["--final"]), "--final goes with did-not-happen");
    refused(&verdict("unknown", &["--status", "200"]), "--status goes with happened");
    refused(&verdict("happened", &["--ask"]), "cannot be used with");
    refused(&verdict("happened", &["--body", "x"]), "--status");
    refused(
        &verdict("happened", &["--status", "200", "--body", "x", "--body-file", "f"]),
        "cannot be used with",
    );
    refused(&verdict("happened", &["--status", "42"]), "use 200 to 599");
    refused(
        &verdict("happened", &["--status", "200", "--header", "nonsense"]),
        "write it like 'content-type: text/plain'",
    );
    refused(&verdict("happened", &["--status", "200", "--body-file", "nowhere"]), "cannot be read");
    refused(&verdict("happened", &["--attempt", "x"]), "not a handle");
    refused(&["keys", "forget", SCOPE, "k", "--store", "sqlite:a.db"], "--reason");
    refused(&["keys", "list", "--state", "odd", "--store", "sqlite:a.db"], "unknown");
    refused(&["keys", "list", "--limit", "many"], "many");
    refused(&["keys", "show", SCOPE, "k", "--as", "ann"], "--response");
    refused(&["log", "--action", "odd"], "verdict");
    refused(&["keys", "list", "--admin", "127.0.0.1:8081"], "write http://127.0.0.1:8081");
    refused(&["keys", "list", "--token", "s3cret"], "write env:NAME");
    refused(&["keys", "list", "--config", "nowhere.toml"], "nowhere.toml");
    assert!(!run(&["keys", "list", "--token", "s3cret"]).err.contains("s3cret"));
}

#[test]
fn a_store_that_is_not_there_is_not_made() {
    let folder = Folder::new();
    let missing = folder.url("onlyonce.db");
    for verb in [
        &["keys", "list"][..],
        &["keys", "show", SCOPE, "k"],
        &["keys", "show", SCOPE, "k", "--response", "-"],
        &["keys", "verdict", SCOPE, "k", "happened", "--reason", "r"],
        &["keys", "forget", SCOPE, "k", "--reason", "r", "--dry-run"],
        &["keys", "purge", SCOPE, "--reason", "r"],
        &["log"],
        &["sweep", "--once"],
        &["reap", "--dry-run"],
    ] {
        let arguments = [verb, &["--store", &missing]].concat();
        let ended = run(&arguments);
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.err.contains("does not exist"), "{ended:?}");
        assert!(folder.contents().is_empty(), "{verb:?} made something");
        let ended = run(&[verb, &["--store", "memory:"]].concat());
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.err.contains("exists only inside its gateway's process; use --admin"), "{ended:?}");
        let ended = run(&[verb, &["--store", "dynamodb://ann:s3cret@db/x"]].concat());
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.err.contains("has credentials in it") && !ended.err.contains("s3cret"), "{ended:?}");
    }
}

#[test]
fn a_gateway_that_is_not_there_is_not_replaced_by_a_store() {
    let folder = Folder::new();
    let output = crate::program::onlyonce()
        .current_dir(folder.path())
        .args(["keys", "list", "--admin", "http://127.0.0.1:1"])
        .output()
        .expect("it starts");
    let ended = super::world::Ended::of(&output);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.err.starts_with("error: no gateway answers at http://127.0.0.1:1: "), "{ended:?}");
    let remedy = "; give its address with --admin, or a store with --store";
    assert!(ended.err.contains(remedy), "{ended:?}");
    let error = run(&["log", "--admin", "http://127.0.0.1:1", "--json"]).error();
    assert_eq!((&error["code"], &error["status"]), (&"gateway_unreachable".into(), &serde_json::Value::Null));
    assert!(folder.contents().is_empty());
}

/// The admin port is found where serve would open it.
#[test]
fn the_admin_port_comes_from_the_settings() {
    let folder = Folder::new();
    std::fs::write(folder.path().join("a.toml"), "admin = \"127.0.0.1:2\"\n[policy]\nlease = \"never\"\n")
        .expect("written");
    let ended = super::world::Ended::of(&folder.run(&["keys", "list", "--config", "a.toml"]));
    assert!(ended.code == 2 && ended.err.contains("no gateway answers at http://127.0.0.1:2: "), "{ended:?}");
    std::fs::write(folder.path().join("a.toml"), "admin = \"0.0.0.0:2\"\n").expect("written");
    let ended = super::world::Ended::of(&folder.run(&["log", "--config", "a.toml"]));
    assert!(ended.code == 2 && ended.err.contains("no gateway answers at http://127.0.0.1:2: "), "{ended:?}");
    std::fs::write(folder.path().join("a.toml"), "admin = \"127.0.0.1:0\"\n").expect("written");
    let ended = super::world::Ended::of(&folder.run(&["log", "--config", "a.toml"]));
    assert!(ended.code == 2 && ended.err.contains("the address of its ready line"), "{ended:?}");
}
