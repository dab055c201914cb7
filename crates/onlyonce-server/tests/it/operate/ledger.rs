//! `onlyonce ledger`: records against a provider's export.

use std::fs;

use serde_json::{Value, json};

use super::world::{Ended, World, run};
use crate::engines::{Engine, on_every_stored_engine};
use crate::program::Folder;

on_every_stored_engine! {
    functions {
        an_export_is_compared_with_the_records,
    }
}

/// Records of every kind: paid, paid and to be missed, declined, unknown, and one that a retry would run.
fn world(engine: Engine) -> World {
    let world = World::begin(engine, &[]);
    for (path, key, status) in [
        ("/pay", "paid", 201),
        ("/pay", "twice", 201),
        ("/pay", "missed", 201),
        ("/declined", "declined", 402),
        ("/pay", "claims-to-be-declined", 201),
        ("/lost", "lost", 502),
        ("/lost", "lost-and-refused", 502),
        ("/down", "again", 503),
    ] {
        assert_eq!(world.post("ann", path, key), status, "{key}");
    }
    world
}

fn token(world: &World, key: &str) -> String {
    let scope = world.scope(key);
    let shown = world.on_store(&["keys", "show", &scope, key, "--json"]).json();
    shown["token"].as_str().expect("a token").to_owned()
}

fn keys(group: &Value) -> Vec<&str> {
    let mut keys: Vec<_> =
        group.as_array().expect("a list").iter().filter_map(|item| item["key"].as_str()).collect();
    keys.sort_unstable();
    keys
}

/// U08: the second charge, what a retry would run again, what settles an unknown outcome, and what each side lacks.
fn an_export_is_compared_with_the_records(engine: Engine) {
    let world = world(engine);
    let scope = world.scope("paid");
    let mut export = String::from("id;status;onlyonce token;note\n");
    for (id, status, key) in [
        ("ch_1", "succeeded", "paid"),
        ("ch_2", "succeeded", "twice"),
        ("ch_3", "succeeded", "lost"),
        ("ch_4", "succeeded", "again"),
        ("ch_5", "succeeded", "twice"),
        ("ch_6", "failed", "declined"),
        ("ch_7", "failed", "claims-to-be-declined"),
        ("ch_8", "failed", "lost-and-refused"),
    ] {
        export.push_str(&format!("{id};{status};{};\"a note;\nof two lines\"\n", token(&world, key)));
    }
    export.push_str(&format!("ch_9;succeeded;{}.{};\n", "5".repeat(64), "6".repeat(32)));
    export.push_str("ch_10;succeeded;not a token;\n");
    let file = world.folder.path().join("export.csv");
    fs::write(&file, &export).expect("it can be written");
    let file = file.to_str().expect("text");
    let arguments = [
        "ledger",
        file,
        "--token-column",
        "onlyonce token",
        "--id",
        "id",
        "--outcome",
        "status",
        "--happened",
        "succeeded",
        "--declined",
        "failed,canceled",
        "--json",
    ];
    let told = world.on_store(&arguments).no();
    assert_eq!(told, world.on_admin(&arguments).no(), "a gateway and its store say the same");

    assert_eq!(
        (&told["rows"], &told["records"], &told["agree"]),
        (&json!(10), &json!(8), &json!(2)),
        "{told:#}"
    );
    let twice = &told["twice"][0];
    assert_eq!(told["twice"].as_array().map(Vec::len), Some(1), "{told:#}");
    assert_eq!(
        (&twice["key"], &twice["scope"], &twice["rows"], &twice["ids"]),
        (&json!("twice"), &json!(scope), &json!([2, 5]), &json!(["ch_2", "ch_5"]))
    );
    assert_eq!(twice["token"], token(&world, "twice"));
    let mut unknown = told["unknown"].as_array().expect("a list").clone();
    unknown.sort_by_key(|item| item["row"].as_u64());
    assert_eq!(
        unknown,
        [
            json!({ "scope": scope, "key": "lost", "row": 3, "id": "ch_3", "suggested": "happened" }),
            json!({ "scope": scope, "key": "lost-and-refused", "row": 8, "id": "ch_8", "suggested": "did-not-happen" }),
        ]
    );
    let mut differ = told["differ"].as_array().expect("a list").clone();
    differ.sort_by_key(|item| item["row"].as_u64());
    assert_eq!(
        differ,
        [
            json!({ "scope": scope, "key": "again", "state": "retryable", "status": null, "row": 4, "id": "ch_4", "outcome": "succeeded" }),
            json!({
                "scope": scope, "key": "claims-to-be-declined", "state": "completed", "status": 201, "row": 7, "id": "ch_7",
                "outcome": "failed",
            }),
        ]
    );
    assert_eq!(keys(&told["only_here"]), ["missed"]);
    assert_eq!(told["only_here"][0]["status"], 201);
    assert_eq!(told["only_there"], json!([{ "row": 9, "id": "ch_9", "key": null }]));
    assert_eq!(told["unreadable"][0]["row"], 10);

    let text = world.on_store(&arguments[..arguments.len() - 1]);
    assert_eq!(text.code, 1, "{text:?}");
    for words in [
        "10 rows, 8 records: 2 agree",
        "key \"twice\" of scope",
        "rows 2, 5 (ch_2, ch_5)",
        "retryable here, succeeded in row 4 (ch_4); a retry would run it again",
        &format!("onlyonce keys verdict {scope} lost happened --reason 'WHY' --store"),
    ] {
        assert!(text.out.contains(words), "{words}: {}", text.out);
    }

    // The command that it gives settles the record, and both sides agree.
    let settled = format!(
        "id,scope,key,when\nch_1,{scope},paid,2020-01-01T00:00:00Z\nch_2,{scope},twice,2020-01-02T00:00:00Z\n"
    );
    fs::write(file, settled).expect("it can be written");
    let by_key = ["ledger", file, "--scope-column", "scope", "--key-column", "key", "--json"];
    assert_eq!(keys(&world.on_store(&by_key).no()["only_here"]), ["claims-to-be-declined", "missed"]);
    // Nothing was created between the first and the last row, so nothing is missed.
    let told = world.on_store(&[&by_key[..], &["--time", "when"]].concat()).json();
    assert_eq!((&told["agree"], &told["records"]), (&json!(2), &json!(2)), "{told:#}");
    let told =
        world.on_store(&[&by_key[..], &["--time", "when", "--to", "2100-01-01T00:00:00Z"]].concat()).no();
    assert_eq!(keys(&told["only_here"]), ["claims-to-be-declined", "missed"]);
    let told = world.on_store(&[&by_key[..], &["--route", "POST /elsewhere"]].concat()).json();
    assert_eq!(told["only_here"], json!([]));
}

/// U08: JSON Lines with a byte order mark, empty lines and numbers; without an outcome every row happened.
#[test]
fn json_lines_are_read_by_pointers() {
    let world = world(Engine::Sqlite);
    let scope = world.scope("paid");
    let file = world.folder.path().join("export.jsonl");
    let row = |number: u64, key: &str| json!({ "id": number, "metadata": { "scope": scope.to_uppercase(), "key": key } });
    let lines = [
        row(1, "paid").to_string(),
        String::new(),
        row(2, "twice").to_string(),
        "[]".to_owned(),
        "{\"id\":".to_owned(),
        row(3, "lost").to_string(),
    ];
    fs::write(&file, format!("\u{feff}{}", lines.join("\r\n"))).expect("it can be written");
    let file = file.to_str().expect("text");
    let by_key = [
        "ledger",
        file,
        "--scope-column",
        "/metadata/scope",
        "--key-column",
        "/metadata/key",
        "--id",
        "/id",
        "--json",
    ];
    let told = world.on_store(&by_key).no();
    assert_eq!((&told["rows"], &told["agree"]), (&json!(5), &json!(2)), "{told:#}");
    assert_eq!(told["unknown"][0]["id"], "3");
    assert_eq!(told["unknown"][0]["row"], 5);
    let rows: Vec<_> =
        told["unreadable"].as_array().expect("a list").iter().map(|item| &item["row"]).collect();
    assert_eq!(rows, [3, 4], "{told:#}");

    refused(&world.on_store(&["ledger", file, "--token-column", "token", "--json"]), "write it like /token");
    refused(&world.on_store(&["ledger", file, "--token-column", "/token", "--json"]), "no line of");
    assert_eq!(world.rest().run(&by_key).no(), told, "also without a gateway");
}

fn refused(ended: &Ended, words: &str) {
    assert_eq!(ended.code, 2, "{words}: {ended:?}");
    let error = ended.error();
    assert!(error["detail"].as_str().is_some_and(|told| told.contains(words)), "{words}: {error}");
}

/// U08: what is no export is told, and nothing is guessed.
#[test]
fn an_export_that_cannot_be_read_is_an_error() {
    let folder = Folder::new();
    let store = folder.url("onlyonce.db");
    run(&["migrate", "--store", &store]).done();
    let file = folder.path().join("export.csv");
    let ledger = |bytes: &[u8], flags: &[&str]| {
        fs::write(&file, bytes).expect("it can be written");
        run(&[&["ledger", file.to_str().expect("text"), "--store", &store, "--json"], flags].concat())
    };
    let token = ["--token-column", "token"];
    refused(&ledger(b"", &token), "is empty");
    refused(&ledger(b"\xef\xbb\xbf \r\n", &token), "is empty");
    refused(&ledger(b"id,key\n1,a\n", &token), "column \"token\" of --token-column is not in");
    refused(&ledger(b"id,key\n1,a\n", &token), "it has \"id\", \"key\"");
    refused(&ledger(b"token,id,token\n", &token), "is more than once");
    refused(&ledger(b"[{\"token\":1}]", &token), "write one object per line");
    refused(&ledger(b"\xff\xfet\0o\0", &token), "in UTF-16");
    refused(&ledger(b"PK\x03\x04", &token), "a spreadsheet");
    refused(
        &ledger(b"token,when\nx,yesterday\n", &["--token-column", "token", "--time", "when"]),
        "neither RFC 3339 nor unix seconds",
    );
    let mut open = b"token\n\"".to_vec();
    open.resize(20 << 20, b'x');
    refused(&ledger(&open, &token), "is a quote left open?");
    refused(
        &run(&["ledger", "/nowhere/at/all.csv", "--token-column", "t", "--store", &store, "--json"]),
        "cannot be read",
    );
    refused(
        &run(&["ledger", "/dev/null", "--token-column", "t", "--store", &store, "--json"]),
        "is not a file",
    );
    refused(
        &ledger(b"token\n", &["--token-column", "token", "--key-column", "k", "--scope-column", "s"]),
        "cannot be used with",
    );
    refused(&ledger(b"token\n", &["--key-column", "k"]), "--scope-column");
    refused(&ledger(b"token\n", &["--token-column", "token", "--outcome", "o"]), "--happened");
    refused(&ledger(b"token\n", &["--token-column", "token", "--from", "soon"]), "soon");

    // Rows that cannot be used are listed, and the rest is compared.
    let told = ledger(b"\xef\xbb\xbftoken\tid\r\n\"\xff\"\t1\r\n\t2\r\na\tb\tc\r\n", &token).no();
    let why: Vec<_> = told["unreadable"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|item| item["why"].as_str().expect("text"))
        .collect();
    assert_eq!(why.len(), 3, "{told:#}");
    assert!(
        why[0].contains("not in UTF-8") && why[1].contains("no token") && why[2].contains("3 fields"),
        "{why:?}"
    );
    let told = ledger(b"token,id\n", &token).json();
    assert_eq!(
        (&told["rows"], &told["records"]),
        (&json!(0), &json!(0)),
        "an export without a row agrees with a store without a record"
    );
}

/// U08: rows of a record that is gone are still a double charge, and a wrong export does not fill the memory.
#[test]
fn an_export_of_another_gateway_is_all_only_there() {
    let folder = Folder::new();
    let store = folder.url("onlyonce.db");
    run(&["migrate", "--store", &store]).done();
    let scope = "5".repeat(64);
    let mut export = String::from("id,scope,key\n");
    for number in 0..30_000 {
        export.push_str(&format!("{number},{scope},key-{}\n", number / 2 * 2));
    }
    let file = folder.path().join("export.csv");
    fs::write(&file, export).expect("it can be written");
    let told = run(&[
        "ledger",
        file.to_str().expect("text"),
        "--scope-column",
        "scope",
        "--key-column",
        "key",
        "--id",
        "id",
        "--store",
        &store,
        "--json",
    ])
    .no();
    let there = told["only_there"].as_array().expect("a list");
    assert_eq!(there.len(), 30_000);
    assert_eq!(there[29_999], json!({ "row": 30_000, "id": "29999", "key": "key-29998" }));
    assert_eq!(told["twice"].as_array().map(Vec::len), Some(15_000));
}
