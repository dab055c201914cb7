//! A gateway on DynamoDB, from outside: its table is made by `migrate` and by nobody else, and what was answered is replayed by
//! every node.

use std::fs;

use onlyonce_testkit::engines::dynamodb::Server;

use crate::program::{Folder, text};
use crate::serve::{Service, Serving, post};

const NOWHERE: [&str; 6] =
    ["--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

/// Runs `serve`, which must not start, and gives why.
fn refused(folder: &Folder, arguments: &[&str]) -> String {
    let output = folder.run(&[&["serve"], &NOWHERE[..], arguments].concat());
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    text(&output.stderr)
}

fn done(folder: &Folder, arguments: &[&str]) -> String {
    let output = folder.run(arguments);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// E05, P05, R01
#[test]
fn a_gateway_serves_from_a_table_that_was_migrated() {
    let (folder, url) = (Folder::new(), Server::shared().fresh_table());
    let told = refused(&folder, &["--store", &url]);
    assert!(told.contains("there is no such table") && told.contains("onlyonce migrate"), "{told}");
    let told = done(&folder, &["migrate", "--dry-run", "--store", &url]);
    assert!(told.contains("schema version 0") && told.contains("CreateTable"), "{told}");
    assert!(done(&folder, &["migrate", "--store", &url]).contains("schema version 1"));
    assert!(done(&folder, &["migrate", "--store", &url]).contains("nothing to do"));

    let service = Service::start("first");
    let arguments = ["--upstream", &service.url(), "--store", &url];
    let mut one = Serving::start(&arguments);
    service.lets(1);
    let first = one.answer(&post("k1"));
    assert!(first.starts_with("HTTP/1.1 200") && first.ends_with("first"), "{first}");
    // Another node replays what this one stored, also after this one has gone.
    let two = Serving::start(&arguments);
    let replayed = two.answer(&post("k1"));
    assert!(replayed.starts_with("HTTP/1.1 200") && replayed.ends_with("first"), "{replayed}");
    assert!(replayed.contains("idempotent-replayed: true"), "{replayed}");
    assert_eq!(one.stop(), Some(0));
    assert!(two.answer(&post("k1")).contains("idempotent-replayed: true"));
    let shown = done(&folder, &["keys", "list", "--store", &url]);
    assert!(shown.contains("k1") && shown.contains("completed"), "{shown}");
}

/// E05: what this store cannot do is refused at the start.
#[test]
fn settings_that_dynamodb_cannot_keep_are_refused_at_the_start() {
    let (folder, url) = (Folder::new(), Server::shared().fresh_table());
    done(&folder, &["migrate", "--store", &url]);
    for (settings, told) in [
        ("[policy]\nlease = \"9s\"\n", "at least 10000 ms"),
        ("[limits]\nkeys_alive = 9\n", "would read the whole table"),
        ("expired = \"keep\"\n", "expired records cannot be kept in DynamoDB"),
    ] {
        let file = folder.path().join("settings.toml");
        fs::write(&file, settings).unwrap();
        let error = refused(&folder, &["--store", &url, "--config", file.to_str().unwrap()]);
        assert!(error.contains(told), "{settings}: {error}");
    }
}
