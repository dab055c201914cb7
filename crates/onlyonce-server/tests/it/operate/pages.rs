//! Help, completions and manual pages: all from the definitions by which arguments are read.

use std::collections::BTreeSet;

use onlyonce_testkit::engines::postgres::Server;

use super::world::run;
use crate::documents::page;
use crate::program::Folder;

const VERBS: [&str; 19] = [
    "serve",
    "demo",
    "check",
    "settings",
    "migrate",
    "keys",
    "log",
    "sweep",
    "reap",
    "ledger",
    "audit",
    "conform",
    "doctor",
    "store",
    "completions",
    "man",
    "list",
    "verdict",
    "purge",
];

#[test]
fn completions_know_every_verb() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]);
        for verb in VERBS {
            assert!(script.done().contains(verb), "{shell} has no {verb}");
        }
        assert_eq!(script.err, "");
    }
    let ended = run(&["completions", "cmd"]);
    assert!(ended.code == 2 && ended.err.contains("fish"), "{ended:?}");
}

#[test]
fn the_manual_has_a_page_for_every_verb() {
    let page = run(&["man"]);
    for verb in VERBS.iter().take(16) {
        assert!(page.done().contains(&format!("onlyonce\\-{verb}")), "{verb}: {}", page.out);
    }
    let folder = Folder::new();
    run(&["man", "--dir", folder.path().to_str().expect("text")]).done();
    let pages = folder.contents();
    for verb in [
        "",
        "-keys",
        "-keys-list",
        "-keys-show",
        "-keys-verdict",
        "-keys-forget",
        "-keys-purge",
        "-log",
        "-sweep",
        "-ledger",
        "-audit",
        "-doctor",
    ] {
        let name = format!("onlyonce{verb}.1");
        let page = pages.get(&name).unwrap_or_else(|| panic!("{name} in {:?}", pages.keys()));
        assert!(page.starts_with(b".ie"), "{name}");
    }
    let ended = run(&["man", "--dir", "/nowhere/at/all"]);
    assert!(ended.code == 2 && ended.err.contains("use an existing folder"), "{ended:?}");
}

#[test]
fn help_has_examples_and_exit_codes() {
    for (verb, words) in [
        (&["keys", "list"][..], &["--state", "--dead", "--limit", "--store", "--admin", "Examples:"][..]),
        (&["keys", "show"], &["SCOPE", "KEY", "--response", "record=", "Exits 0, or 1"]),
        (
            &["keys", "verdict"],
            &["happened", "did-not-happen", "--final", "--reason", "--as", "--dry-run", "Exits 0"],
        ),
        (&["keys", "forget"], &["--force", "Examples:", "Exits 0"]),
        (&["keys", "purge"], &["--yes", "Examples:"]),
        (&["log"], &["--follow", "--since", "Examples:"]),
        (&["sweep"], &["--once", "--dry-run", "Examples:"]),
        (&["reap"], &["--once", "--dry-run", "Examples:"]),
        (&["relay"], &["--once", "--dry-run", "Examples:"]),
        (&["ledger"], &["--token-column", "--outcome", "--from", "Examples:", "Exits 0"]),
        (&["audit"], &["--gateway", "--base", "--allow", "Examples:", "Exits 0"]),
        (&["doctor"], &["--config", "--admin", "Examples:", "Exits 0"]),
    ] {
        let help = run(&[verb, &["--help"]].concat());
        for word in words {
            assert!(help.done().contains(word), "{verb:?} has no {word:?}: {}", help.out);
        }
    }
    assert!(
        run(&["--help"])
            .done()
            .contains("Exit codes: 0 success; 1 not found, refused or check failed; 2 error.")
    );
}

/// The flags in some text.
fn flags(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == '-';
    let words = text.split(|c: char| !is_part(c)).filter(|word| word.starts_with("--") && word.len() > 4);
    words.map(str::to_owned).collect()
}

/// A flag that is not on the page is not known.
#[test]
fn the_page_of_commands_has_every_verb_and_flag_of_operators() {
    let page = page("docs/commands.md");
    let told = flags(&page);
    for verb in [
        &["keys", "list"][..],
        &["keys", "show"],
        &["keys", "verdict"],
        &["keys", "forget"],
        &["keys", "purge"],
        &["outbox", "list"],
        &["outbox", "redrive"],
        &["outbox", "discard"],
        &["log"],
        &["sweep"],
        &["reap"],
        &["relay"],
        &["ledger"],
        &["audit"],
        &["conform"],
        &["doctor"],
        &["completions"],
        &["man"],
    ] {
        assert!(page.contains(&verb.join(" ")), "{verb:?}");
        let help = run(&[verb, &["-h"]].concat());
        for flag in flags(help.done()).difference(&flags("--help")) {
            assert!(told.contains(flag), "{verb:?}: {flag}");
        }
    }
    let known: BTreeSet<_> = ["list", "show", "verdict", "forget", "purge"]
        .iter()
        .flat_map(|verb| flags(&run(&["keys", verb, "--help"]).out))
        .chain(
            ["list", "redrive", "discard"]
                .iter()
                .flat_map(|verb| flags(&run(&["outbox", verb, "--help"]).out)),
        )
        .chain(
            ["log", "sweep", "reap", "man", "migrate", "ledger", "audit", "conform", "doctor"]
                .iter()
                .flat_map(|verb| flags(&run(&[verb, "--help"]).out)),
        )
        .collect();
    let unknown: Vec<_> = told.difference(&known).filter(|flag| *flag != "--version").collect();
    assert!(unknown.is_empty(), "no command has {unknown:?}");
}

/// O03: alerts link to these headings.
#[test]
fn the_runbook_has_a_heading_for_each_problem() {
    let runbook = page("docs/runbook.md");
    let headings: Vec<_> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let expected = [
        "Unknown outcomes pile up",
        "One record is unknown",
        "A dead letter",
        "Messages are not delivered",
        "A message is a dead letter",
        "A probe fails",
        "Webhooks are refused",
        "A contradiction",
        "A record is stuck running",
        "Attempts are superseded",
        "The store does not answer",
        "Records cannot be decrypted",
        "Not ready",
        "A worker is silent",
        "A surge of replays",
        "Requests are limited",
        "Keys are misused",
        "A customer's data must go",
    ];
    assert_eq!(headings, expected);
    let mut sections = runbook.split("\n## ");
    let _start = sections.next();
    for section in sections {
        for part in ["**It means**", "**Look.**", "**Do.**"] {
            assert!(section.contains(part), "{part} in {section}");
        }
    }
}

/// What the runbook says can be pasted into psql and sqlite3.
#[test]
fn the_sql_of_the_runbook_runs_on_both_engines() {
    let runbook = page("docs/runbook.md");
    let statements: Vec<_> =
        runbook.split("```sql\n").skip(1).filter_map(|block| Some(block.split_once("```")?.0)).collect();
    assert!(statements.len() > 7, "{statements:?}");
    let folder = Folder::new();
    let file = folder.path().join("onlyonce.db");
    run(&["migrate", "--store", &folder.url("onlyonce.db")]).done();
    let sqlite = rusqlite::Connection::open(&file).expect("it opens");
    let (server, url) = (Server::shared(), Server::shared().fresh_schema());
    run(&["migrate", "--store", &url]).done();
    let (_, schema) = url.split_once("schema=").expect("a schema");
    for statement in statements {
        sqlite.execute_batch(statement).unwrap_or_else(|error| panic!("{error}: {statement}"));
        server.sql(&format!("SET search_path TO {schema}; {statement}"));
    }
}
