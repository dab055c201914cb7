//! `--store`, `onlyonce store backup` and `onlyonce store check` from outside.

use std::fs;

use onlyonce_testkit::engines::postgres::Server;
use serde_json::Value;

use crate::demo::Served;
use crate::program::{Folder, run, text};

/// A demo on free ports.
const ANY: [&str; 6] = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--service", "127.0.0.1:0"];

/// A closed store with records of a whole story.
fn played() -> Folder {
    let folder = Folder::new();
    assert_eq!(folder.run(&["demo", "--tour", "--store", "sqlite:onlyonce.db"]).status.code(), Some(0));
    folder
}

/// An error with these words, and nothing in the folder has changed.
fn refused(folder: &Folder, arguments: &[&str], words: &[&str]) {
    let before = folder.contents();
    let output = folder.run(arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert!(error.starts_with("error: "), "{error}");
    for word in words {
        assert!(error.contains(word), "{arguments:?}: {error} has no {word:?}");
    }
    assert!(before == folder.contents(), "{arguments:?}: the folder was changed");
}

/// All verbs that take a store.
fn refused_by_all(folder: &Folder, store: &str, words: &[&str]) {
    refused(folder, &[&["demo"], &ANY[..], &["--store", store]].concat(), words);
    refused(folder, &["store", "check", "--store", store], words);
    refused(folder, &["store", "backup", "--store", store, "copy.db"], words);
}

/// E02: the whole story, through a restart; a schema that is missing is told, and the password never.
#[test]
fn the_story_is_played_on_postgresql() {
    let (folder, server) = (Folder::new(), Server::shared());
    let url = server.fresh_schema();
    let output = folder.run(&["demo", "--tour", "--store", &url]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let typo = url.replace("schema=", "schema=typo_").replace("postgres@", "postgres:s3cret@");
    refused(&folder, &["demo", "--store", &typo], &["has no schema \"typo_", "CREATE SCHEMA"]);
    refused(&folder, &["store", "check", "--store", &url], &["pg_dump"]);
    assert!(!text(&folder.run(&["demo", "--store", &typo]).stderr).contains("s3cret"));
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("--json prints JSON and nothing else")
}

/// E01
#[test]
fn a_store_that_cannot_be_meant_is_refused_with_its_remedy() {
    let folder = Folder::new();
    for (store, words) in [
        ("onlyonce.db", &["\"onlyonce.db\"", "write sqlite:onlyonce.db"][..]),
        ("sqlite:", &["names no file"]),
        ("sqlite://a.db", &["write sqlite:a.db"]),
        ("dynamodb://r?region=eu-north-1", &["names the table \"r\"", "write 3 to 255 letters"]),
        ("mongodb://db", &["an unknown kind", "use sqlite:PATH"]),
    ] {
        refused_by_all(&folder, store, words);
    }
    refused(&folder, &["store", "check", "--store", "memory:"], &["has no file"]);
}

/// E01
#[test]
fn a_folder_is_refused_with_its_remedy() {
    let folder = Folder::new();
    refused_by_all(&folder, "sqlite:.", &["is a folder; use a file in it"]);
    refused_by_all(&folder, "sqlite:missing/onlyonce.db", &["\"missing\"", "create it first"]);
}

/// E01
#[test]
fn a_file_that_is_not_ours_is_refused_untouched() {
    let folder = Folder::new();
    fs::write(folder.path().join("letter.txt"), "Dear Ann,\n".repeat(100)).expect("written");
    refused_by_all(
        &folder,
        "sqlite:letter.txt",
        &["is not an SQLite database", "was not changed", "use another file"],
    );
}

/// P07: byte 60 of a SQLite file is its user version, byte 68 whose file it is.
#[test]
fn a_newer_file_and_another_programs_file_are_refused_untouched() {
    for (at, words) in [
        (60, &["written by a newer release", "upgrade"][..]),
        (68, &["of another program", "use another file"]),
    ] {
        let folder = played();
        let file = folder.path().join("onlyonce.db");
        let mut bytes = fs::read(&file).expect("readable");
        bytes[at] ^= 0x40;
        fs::write(&file, bytes).expect("written");
        refused_by_all(&folder, "sqlite:onlyonce.db", words);
    }
}

/// E01
#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_read_is_refused_untouched() {
    // A link to itself can be opened by nobody, not even by root.
    let folder = Folder::new();
    std::os::unix::fs::symlink("onlyonce.db", folder.path().join("onlyonce.db")).expect("a link");
    refused_by_all(
        &folder,
        "sqlite:onlyonce.db",
        &["onlyonce.db\"", "allow this process to read and write it"],
    );
}

#[test]
fn a_verb_about_a_file_does_not_create_one() {
    let folder = Folder::new();
    for verb in [&["store", "check"][..], &["store", "backup", "copy.db"]] {
        refused(&folder, verb, &["onlyonce.db\" does not exist", "use the file of a store"]);
    }
}

/// E01, P05
#[test]
fn a_backup_is_a_store_like_the_one_it_came_from() {
    let folder = played();
    let checked = folder.run(&["store", "check", "--json"]);
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
    let copied = folder.run(&["store", "backup", "copy.db"]);
    assert_eq!(copied.status.code(), Some(0), "{}", text(&copied.stderr));
    assert!(text(&copied.stdout).contains("to \"copy.db\""), "{}", text(&copied.stdout));
    assert_eq!(text(&copied.stderr), "", "progress is for terminals");
    let names: Vec<_> = folder.contents().into_keys().collect();
    assert_eq!(names, ["copy.db", "onlyonce.db"]);
    let copy = folder.run(&["store", "check", "--store", "sqlite:copy.db", "--json"]);
    assert_eq!(json(&copy.stdout), json(&checked.stdout));
    assert_eq!(json(&copy.stdout)["whole"], true);
    assert!(json(&copy.stdout)["records"].as_u64() > Some(5));
    assert_eq!(folder.run(&["demo", "--tour", "--store", "sqlite:copy.db"]).status.code(), Some(0));
}

#[test]
fn a_backup_overwrites_nothing_and_a_dry_run_does_nothing() {
    let folder = played();
    let before = folder.contents();
    let output = folder.run(&["store", "backup", "--dry-run", "copy.db"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).starts_with("would copy "), "{}", text(&output.stdout));
    let output = folder.run(&["store", "backup", "--dry-run", "--json", "copy.db"]);
    let result = json(&output.stdout);
    assert_eq!((&result["done"], &result["to"]), (&Value::from(false), &Value::from("copy.db")));
    assert!(before == folder.contents());
    for arguments in
        [&["store", "backup", "onlyonce.db"][..], &["store", "backup", "--dry-run", "onlyonce.db"]]
    {
        refused(&folder, arguments, &["\"onlyonce.db\" exists already", "use a new file"]);
    }
    refused(&folder, &["store", "backup", "missing/copy.db"], &["\"missing\"", "create it first"]);
}

/// P07
#[test]
fn a_damaged_file_is_a_no_and_left_as_it_is() {
    let folder = played();
    let file = folder.path().join("onlyonce.db");
    let whole = fs::read(&file).expect("readable");
    let mut scratched = whole.clone();
    scratched[4096..].iter_mut().skip(7).step_by(97).for_each(|byte| *byte ^= 0xff);
    for damaged in [scratched, whole[..whole.len() / 2].to_vec()] {
        fs::write(&file, &damaged).expect("written");
        let output = folder.run(&["store", "check"]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        assert!(text(&output.stdout).starts_with("damaged: restore the file from a backup\n"));
        let output = folder.run(&["store", "check", "--json"]);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(json(&output.stdout)["whole"], false);
        assert!(!json(&output.stdout)["faults"].as_array().expect("a list").is_empty());
        assert!(fs::read(&file).expect("readable") == damaged, "the file was changed");
    }
}

/// E01: its owner goes on; another owner is told who has it.
#[cfg(unix)]
#[test]
fn a_store_in_use_can_be_copied_and_checked_but_has_one_owner() {
    let folder = Folder::new();
    let store = folder.url("onlyonce.db");
    let mut served = Served::begin(&["--store", &store]);
    let first = served.pay();
    let output = folder.run(&[&["demo"], &ANY[..], &["--store", &store]].concat());
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains(&format!("belongs to process {};", served.id())), "{error}");
    assert!(error.contains("stop that process"), "{error}");
    let checked = folder.run(&["store", "check", "--json"]);
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
    assert_eq!(json(&checked.stdout)["records"], 1, "what is only in the WAL counts");
    let copied = folder.run(&["store", "backup", "copy.db"]);
    assert_eq!(copied.status.code(), Some(0), "{}", text(&copied.stderr));
    let again = served.pay();
    assert!(again.contains("idempotent-replayed: true\r\n"), "{again}");
    assert_eq!(served.interrupt(), Some(0));
    for store in [store, folder.url("copy.db")] {
        let mut served = Served::begin(&["--store", &store]);
        let replayed = served.pay();
        assert!(replayed.contains("idempotent-replayed: true\r\n"), "{replayed}");
        assert_eq!(Served::body(&replayed), Served::body(&first));
        assert_eq!(served.interrupt(), Some(0));
    }
}

/// P05
#[cfg(unix)]
#[test]
fn a_service_that_was_killed_remembers_what_it_answered() {
    let folder = Folder::new();
    let store = folder.url("onlyonce.db");
    let first = {
        let served = Served::begin(&["--store", &store]);
        served.pay()
        // Dropped: SIGKILL.
    };
    assert!(first.starts_with("HTTP/1.1 201 Created\r\n"), "{first}");
    let checked = folder.run(&["store", "check", "--json"]);
    assert_eq!(json(&checked.stdout)["records"], 1, "{}", text(&checked.stderr));
    let mut served = Served::begin(&["--store", &store]);
    let again = served.pay();
    assert!(again.contains("idempotent-replayed: true\r\n"), "{again}");
    assert_eq!(Served::body(&first), Served::body(&again));
    assert_eq!(served.interrupt(), Some(0));
}

#[test]
fn help_names_the_verbs() {
    let help = text(&run(&["store", "--help"]).stdout);
    assert!(help.contains("backup") && help.contains("check"), "{help}");
    let help = text(&run(&["store", "backup", "--help"]).stdout);
    for flag in ["--store", "--dry-run", "--json", "sqlite:onlyonce.db"] {
        assert!(help.contains(flag), "{flag}: {help}");
    }
}
