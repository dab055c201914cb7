//! `--store URL`: a file is read as a guest and changed while nobody has it, a database beside its nodes.

use serde_json::{Value, json};

use super::world::{Rest, World};
use crate::engines::{Engine, on_every_stored_engine};

on_every_stored_engine! {
    functions {
        what_an_operator_says_is_what_retries_get,
        a_record_is_found_by_what_the_log_shows_of_it,
        what_the_rules_refuse_is_a_no,
        a_retryable_record_takes_a_verdict_about_its_attempt,
        a_listing_is_filtered_bounded_and_whole,
        a_scope_is_purged_and_what_is_in_doubt_is_kept,
        the_log_is_filtered_and_in_the_order_of_time,
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("{name}: {value}"))
}

/// U05, U09: reading changes nothing, also while a gateway has the file; changing waits until nobody has it.
#[test]
fn a_file_that_a_gateway_has_is_read_and_not_changed() {
    let world = World::begin(Engine::Sqlite, &[]);
    assert_eq!((world.post("ann", "/pay", "paid"), world.post("ann", "/lost", "lost-1")), (201, 502));
    let listed = world.on_store(&["keys", "list", "--json"]).json();
    assert_eq!((listed["items"].as_array().map(Vec::len), &listed["next"]), (Some(2), &Value::Null));
    let scope = world.scope("lost-1");
    let shown = world.on_store(&["keys", "show", &scope[..8], "lost-1", "--json"]).json();
    assert_eq!(
        (text(&shown, "state"), text(&shown, "key"), text(&shown, "scope")),
        ("unknown", "lost-1", &*scope)
    );
    assert!(text(&shown, "why").starts_with("It is unknown whether attempt 1 did the work"), "{shown}");
    let verdict = ["keys", "verdict", &scope, "lost-1", "happened", "--reason", "seen"];
    for change in [
        &verdict[..],
        &[&verdict[..], &["--dry-run"]].concat(),
        &["keys", "forget", &scope, "paid", "--reason", "r"],
        &["keys", "purge", &scope, "--reason", "r"],
        &["keys", "show", &scope, "paid", "--response", "-"],
    ] {
        let ended = world.on_store(change);
        assert_eq!((ended.code, &*ended.out), (2, ""), "{change:?}: {ended:?}");
        let told = format!("belongs to process {} since 20", world.serving.id());
        assert!(ended.err.contains(&told), "{told}: {ended:?}");
        assert!(ended.err.contains("; use --admin http://127.0.0.1:8081"), "{ended:?}");
    }
    for work in [&["sweep", "--once"][..], &["reap", "--once"]] {
        let ended = world.on_store(work);
        assert!(ended.code == 2 && ended.err.contains("leave it to that process"), "{ended:?}");
    }
    assert_eq!(world.on_store(&["sweep", "--dry-run", "--json"]).json(), json!({ "done": 0 }));
    assert_eq!(
        text(&world.on_store(&["keys", "show", &scope, "lost-1", "--json"]).json(), "state"),
        "unknown"
    );
    assert_eq!(world.on_store(&["log", "--json"]).json(), json!({ "items": [], "next": null }));

    let rest = world.rest();
    let ended = rest.run(&[&verdict[..], &["--dry-run", "--json"]].concat());
    assert_eq!((text(&ended.json(), "result"), &ended.json()["audit"]), ("would-apply", &Value::Null));
    let told = rest.run(&verdict);
    assert!(
        told.done().contains("nothing runs again\napplied: unknown, now completed; audit entry "),
        "{told:?}"
    );
    let entries = rest.run(&["log", "--json"]).json();
    let entry = &entries["items"][0];
    assert_eq!(
        (
            text(entry, "who"),
            text(entry, "as"),
            text(entry, "via"),
            text(entry, "reason"),
            text(entry, "result")
        ),
        ("local", "ann", "store", "seen", "applied")
    );
    assert_eq!(entries["items"].as_array().map(Vec::len), Some(1), "a dry run leaves no entry: {entries}");
}

/// U05, U06: a verdict becomes the clients' answer.
fn what_an_operator_says_is_what_retries_get(engine: Engine) {
    let world = World::begin(engine, &[]);
    assert_eq!(world.post("ann", "/lost", "lost-1"), 502);
    let scope = world.scope("lost-1");
    let Rest { store: upstream, folder } = world.rest();
    let told = super::world::run(&[
        "keys",
        "verdict",
        &scope[..12],
        "lost-1",
        "happened",
        "--reason",
        "in the statement",
        "--status",
        "201",
        "--header",
        "content-type: text/plain",
        "--header",
        "x-bank: 17",
        "--body",
        "charged",
        "--as",
        "bob",
        "--json",
        "--store",
        &upstream,
    ])
    .json();
    assert_eq!((text(&told, "result"), text(&told["after"], "state")), ("applied", "completed"));
    assert_eq!(
        told["record"]["response"],
        json!({ "status": 201, "bytes": 7, "headers": ["content-type", "x-bank"] })
    );
    let stored =
        super::world::run(&["keys", "show", &scope, "lost-1", "--response", "-", "--store", &upstream]);
    assert_eq!(stored.done(), "charged");
    let file = folder.path().join("answer");
    let ended = super::world::run(&[
        "keys",
        "show",
        &scope,
        "lost-1",
        "--response",
        file.to_str().expect("text"),
        "--json",
        "--store",
        &upstream,
    ]);
    assert_eq!(text(&ended.json(), "state"), "completed");
    assert_eq!(std::fs::read_to_string(&file).expect("written"), "charged");
    assert!(ended.err.contains("201 with 7 bytes"), "{ended:?}");
    let looked =
        super::world::run(&["log", "--action", "read_response", "--json", "--store", &upstream]).json();
    assert_eq!(looked["items"].as_array().map(Vec::len), Some(2), "{looked}");

    let world = World::on(engine, folder, &upstream, &[]);
    let retry = world.serving.answer(
        "POST /lost HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer ann\r\nIdempotency-Key: lost-1\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n",
    );
    assert!(retry.starts_with("HTTP/1.1 201 ") && retry.ends_with("charged"), "{retry}");
    let retry = retry.to_lowercase();
    assert!(retry.contains("x-bank: 17\r\n") && retry.contains("idempotent-replayed: true\r\n"), "{retry}");
}

/// O09: a log line leads to its record.
fn a_record_is_found_by_what_the_log_shows_of_it(engine: Engine) {
    let mut world = World::begin(engine, &[]);
    assert_eq!((world.post("ann", "/pay", "paid"), world.post("ann", "/lost", "lost-1")), (201, 502));
    let lines = world.serving.says("it is unknown whether this request did its work");
    let (_, line) = lines.split_once("it is unknown whether this request did its work").expect("it was said");
    let (_, digest) = line.split_once("record=").expect("it is in the line");
    let digest = digest.split_whitespace().next().expect("a word");
    assert_eq!(digest.len(), 12, "{line}");
    for digest in [digest, &digest[..8], &digest.to_uppercase()] {
        assert_eq!(text(&world.on_store(&["keys", "show", digest, "--json"]).json(), "key"), "lost-1");
    }
    let shown = world.on_store(&["keys", "show", digest, "--json"]).json();
    for whole in ["id", "token"] {
        let shown = world.on_store(&["keys", "show", text(&shown, whole), "--json"]).json();
        assert_eq!(text(&shown, "key"), "lost-1", "{whole}");
    }
    let ended = world.on_store(&["keys", "show", "000000000000"]);
    assert!(
        ended.code == 1 && ended.err.starts_with("no: there is no record whose id begins with"),
        "{ended:?}"
    );
    let error = world.on_store(&["keys", "show", "000000000000", "--json"]);
    assert_eq!(
        (error.code, &error.error()["code"], &error.error()["status"]),
        (1, &"record_not_found".into(), &404.into())
    );
    for text in ["708754", "lost-1"] {
        let ended = world.on_store(&["keys", "show", text]);
        assert!(ended.code == 2 && ended.err.contains("is not in hex"), "{ended:?}");
    }
}

/// U05: the text for people, as a whole.
#[test]
fn people_see_what_happened_and_the_command_that_ends_it() {
    let world = World::begin(Engine::Sqlite, &["--set", r#"policy.scope=["trusted:x-customer"]"#]);
    let send = |key: &str| {
        world.serving.answer(&format!(
            "POST /lost HTTP/1.1\r\nHost: shop\r\nX-Customer: Zo\u{eb}\u{202e}\r\nIdempotency-Key: {key}\r\nContent-Length: 0\r\n\
             Connection: close\r\n\r\n"
        ))
    };
    assert!(send("\"it's $HOME\"").starts_with("HTTP/1.1 502 "));
    let listed = world.on_store(&["keys", "list", "--state", "unknown"]);
    let lines: Vec<_> = listed.done().lines().collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["STATE", "AGE", "TRY", "ROUTE", "SCOPE", "KEY", "WHY"]
    );
    assert!(
        lines[1].starts_with("unknown") && lines[1].ends_with("it's $HOME  connection_lost"),
        "{listed:?}"
    );
    assert!(lines[1].contains("Zo\u{eb}") && !listed.out.contains('\u{202e}'), "{listed:?}");
    assert!(!listed.out.contains('\u{1b}'), "colours are for terminals");
    let scope = world.scope("it's $HOME");
    let shown = world.on_store(&["keys", "show", &scope[..8], "it's $HOME"]);
    let told = shown.done();
    assert!(told.starts_with("key it's $HOME\n  state       unknown, since "), "{told}");
    let [time_line, why, command] =
        ["\nTime line\n", "\nIt is unknown whether attempt 1 did the work", "\nonlyonce keys verdict "]
            .map(|part| told.find(part));
    assert!(time_line.is_some() && time_line < why && why < command, "{told}");
    let store = &world.store;
    let command =
        format!(r"onlyonce keys verdict {scope} 'it'\''s $HOME' happened --reason 'WHY' --store {store}");
    assert!(told.lines().any(|line| line == command), "{command}\n{told}");
    assert!(told.contains("# it did not happen, and the next retry runs it: from 20"), "{told}");
    assert!(!told.contains("keys forget"), "an unknown record is not forgotten without force: {told}");

    // The printed command does what it says.
    let rest = world.rest();
    let program = env!("CARGO_BIN_EXE_onlyonce");
    let pasted = command.replacen("onlyonce", program, 1);
    let output = std::process::Command::new("sh").args(["-c", &pasted]).output().expect("a shell");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        text(&rest.run(&["keys", "show", &scope, "it's $HOME", "--json"]).json(), "state"),
        "completed"
    );
}

/// U06, U09: every refusal of the rules is a no, and in the audit log.
fn what_the_rules_refuse_is_a_no(engine: Engine) {
    let world = World::begin(engine, &[]);
    assert_eq!((world.post("ann", "/pay", "paid"), world.post("ann", "/lost", "lost-1")), (201, 502));
    let scope = world.scope("paid");
    let rest = world.rest();
    let verdict = |key: &str, more: &[&str]| {
        rest.run(&[&["keys", "verdict", &scope, key], more, &["--reason", "r", "--json"]].concat())
    };
    for (ended, code, status) in [
        (verdict("paid", &["happened"]), "record_settled", 409),
        (verdict("lost-1", &["did-not-happen"]), "verdict_too_early", 409),
        (verdict("lost-1", &["unknown"]), "nothing_to_ask", 409),
        (verdict("nothing", &["happened"]), "record_not_found", 404),
        (rest.run(&["keys", "forget", &scope, "lost-1", "--reason", "r", "--json"]), "record_unknown", 409),
        (
            rest.run(&["keys", "forget", &scope, "nothing", "--reason", "r", "--json"]),
            "record_not_found",
            404,
        ),
        (rest.run(&["keys", "show", &scope, "nothing", "--json"]), "record_not_found", 404),
        (rest.run(&["keys", "show", &scope, "lost-1", "--response", "x", "--json"]), "record_not_found", 404),
        (rest.run(&["keys", "show", "00000000", "paid", "--json"]), "record_not_found", 404),
    ] {
        assert_eq!(ended.code, 1, "{code}: {ended:?}");
        let error = ended.error();
        assert_eq!((&error["code"], &error["status"]), (&code.into(), &status.into()), "{error}");
    }
    let early = verdict("lost-1", &["did-not-happen"]).error();
    assert!(text(&early, "earliest").ends_with('Z'), "{early}");
    assert_eq!(text(&verdict("paid", &["happened"]).error(), "state"), "completed");
    let empty = rest.run(&["keys", "forget", &scope, "paid", "--reason", " ", "--json"]);
    assert_eq!(
        (empty.code, &empty.error()["code"], &empty.error()["status"]),
        (2, &"reason_missing".into(), &400.into())
    );
    let refused = rest.run(&["log", "--json", "--limit", "0"]).json();
    assert!(
        refused["items"].as_array().is_some_and(|items| items.iter().all(|item| item["result"] == "refused")),
        "{refused}"
    );
    let told = rest.run(&["keys", "verdict", &scope, "paid", "happened", "--reason", "r"]);
    assert!(told.code == 1 && told.err.starts_with("no: the record is completed"), "{told:?}");
    let forced = verdict("lost-1", &["did-not-happen", "--force"]).json();
    assert_eq!((text(&forced, "result"), text(&forced["after"], "state")), ("applied", "retryable"));
}

/// U06: what a retryable record's last attempt did is said with its token.
fn a_retryable_record_takes_a_verdict_about_its_attempt(engine: Engine) {
    let world = World::begin(engine, &[]);
    assert_eq!(world.post("ann", "/lost", "lost-1"), 502);
    let scope = world.scope("lost-1");
    let rest = world.rest();
    let verdict = ["keys", "verdict", &scope, "lost-1"];
    let run = |more: &[&str]| rest.run(&[&verdict[..], more, &["--reason", "r", "--json"]].concat());
    run(&["did-not-happen", "--final"]).json();
    assert_eq!(run(&["happened"]).error()["code"], "record_settled");
    let shown = rest.run(&["keys", "show", &scope, "lost-1"]);
    let command =
        shown.done().lines().find(|line| line.contains(" happened ")).expect("it is offered").to_owned();
    let (_, token) = command.split_once("--attempt ").expect("with the token");
    let token = token.split_whitespace().next().expect("a word");
    let foreign = token.replacen(|_: char| true, if token.starts_with('0') { "1" } else { "0" }, 1);
    let ended = run(&["happened", "--attempt", &foreign]);
    assert!(ended.code != 0, "{ended:?}");
    assert_eq!(text(&run(&["happened", "--attempt", token]).json()["after"], "state"), "completed");
}

fn a_listing_is_filtered_bounded_and_whole(engine: Engine) {
    let world = World::begin(engine, &[]);
    for number in 0..7 {
        assert_eq!(world.post("ann", "/pay", &format!("order-{number}")), 201);
    }
    assert_eq!((world.post("bob", "/pay", "other"), world.post("bob", "/lost", "lost-1")), (201, 502));
    let keys = |arguments: &[&str]| {
        let listed = world.on_store(&[&["keys", "list", "--json"], arguments].concat()).json();
        let keys: Vec<_> = listed["items"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|item| text(item, "key").to_owned())
            .collect();
        (keys, !listed["next"].is_null())
    };
    assert_eq!(keys(&[]).0.len(), 9);
    assert_eq!(keys(&["--limit", "0"]).0.len(), 9);
    let (some, has_next) = keys(&["--limit", "4"]);
    assert_eq!((some.len(), has_next), (4, true));
    assert_eq!(keys(&["--state", "unknown"]), (vec!["lost-1".to_owned()], false));
    assert_eq!(keys(&["--dead"]), (Vec::new(), false));
    assert_eq!(keys(&["--query", "order-3"]).0, ["order-3"]);
    assert_eq!(keys(&["--query", "order-", "--limit", "0"]).0.len(), 7);
    assert_eq!(keys(&["--route", "POST /lost"]).0.len() + keys(&["--route", "POST /nowhere"]).0.len(), 1);
    let scope = world.scope("other");
    assert_eq!(keys(&["--scope", &scope]).0.len(), 2);
    assert_eq!(keys(&["--scope", &scope[..8], "--state", "completed"]).0, ["other"]);
    let more = world.on_store(&["keys", "list", "--limit", "4"]);
    assert!(more.done().ends_with("… and more; --limit 0 shows all\n"), "{more:?}");
    assert_eq!(world.on_store(&["keys", "list", "--query", "nothing-like-it"]).done(), "no records\n");
}

/// L04: a caller's data goes, and what is in doubt stays unless forced.
fn a_scope_is_purged_and_what_is_in_doubt_is_kept(engine: Engine) {
    let world = World::begin(engine, &[]);
    for key in ["a-1", "a-2"] {
        assert_eq!(world.post("ann", "/pay", key), 201);
    }
    assert_eq!((world.post("ann", "/lost", "lost-1"), world.post("bob", "/pay", "b-1")), (502, 201));
    let scope = world.scope("a-1");
    let rest = world.rest();
    let purge =
        |more: &[&str]| rest.run(&[&["keys", "purge", &scope[..8], "--reason", "erase"], more].concat());
    let planned = purge(&["--dry-run", "--json"]).json();
    let kept = json!({ "running": 0, "unknown": 1 });
    assert_eq!(
        (&planned["forgotten"], &planned["kept"], &planned["audit"]),
        (&2.into(), &kept, &Value::Null)
    );
    assert_eq!(rest.run(&["keys", "list", "--json"]).json()["items"].as_array().map(Vec::len), Some(4));
    let purged = purge(&["--json"]);
    let told = purged.json();
    assert_eq!((text(&told, "result"), &told["forgotten"], &told["kept"]), ("partly", &2.into(), &kept));
    assert!(
        purged.err.contains("2 records to forget, kept without --force: 0 running, 1 unknown"),
        "{purged:?}"
    );
    let told = purge(&["--force", "--yes"]);
    assert!(told.done().starts_with("1 record forgotten; audit entry "), "{told:?}");
    let left = rest.run(&["keys", "list", "--json"]).json();
    assert_eq!(left["items"][0]["key"], "b-1");
    let log = rest.run(&["log", "--scope", &scope, "--json"]).json();
    let entries = log["items"].as_array().expect("a list");
    assert!(
        entries.iter().all(|entry| entry["action"] == "purge" && entry["target"]["key"].is_null()),
        "{log}"
    );
    let again = purge(&[]);
    assert!(again.code == 1 && again.err.contains("no such record in a scope that begins with"), "{again:?}");
    let whole = rest.run(&["keys", "purge", &scope, "--reason", "again", "--json"]).json();
    assert_eq!((text(&whole, "result"), &whole["forgotten"]), ("done", &0.into()));
}

/// L04
fn the_log_is_filtered_and_in_the_order_of_time(engine: Engine) {
    let world = World::begin(engine, &[]);
    for key in ["one", "two"] {
        assert_eq!(world.post("ann", "/pay", key), 201);
    }
    let scope = world.scope("one");
    let rest = world.rest();
    for (key, who) in [("one", "ann"), ("two", "bob")] {
        let ended = rest.run(&["keys", "forget", &scope, key, "--reason", "tidy up", "--as", who]);
        assert!(ended.done().contains("forgotten: key "), "{ended:?}");
    }
    let told = rest.run(&["log"]);
    let lines: Vec<_> = told.done().lines().collect();
    assert!(
        lines[0].starts_with("WHEN") && lines[1].contains("local (ann)") && lines[2].contains("local (bob)"),
        "{told:?}"
    );
    let count = |arguments: &[&str]| {
        let listed = rest.run(&[&["log", "--json"], arguments].concat()).json();
        listed["items"].as_array().map(Vec::len)
    };
    for (arguments, expected) in [
        (&[][..], 2),
        (&["--key", "one"], 1),
        (&["--who", "local"], 2),
        (&["--who", "nobody"], 0),
        (&["--action", "forget"], 2),
        (&["--action", "verdict"], 0),
        (&["--since", "1h"], 2),
        (&["--scope", &scope], 2),
        (&["--limit", "1"], 1),
        (&["--limit", "0"], 2),
    ] {
        assert_eq!(count(arguments), Some(expected), "{arguments:?}");
    }
    let newest = rest.run(&["log", "--json", "--limit", "1"]).json();
    assert_eq!((text(&newest["items"][0], "as"), newest["next"].is_null()), ("bob", false));
    let ended = rest.run(&["log", "--since", "yesterday"]);
    assert!(ended.code == 2 && ended.err.contains("--since \"yesterday\""), "{ended:?}");
}
