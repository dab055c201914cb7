//! Help, completions and manual pages: all from the definitions by which arguments are read.

use super::world::run;
use crate::program::Folder;

const VERBS: [&str; 15] = [
    "serve",
    "demo",
    "check",
    "settings",
    "migrate",
    "keys",
    "log",
    "sweep",
    "reap",
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
    for verb in VERBS.iter().take(12) {
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
    ] {
        let name = format!("onlyonce{verb}.1");
        let page = pages.get(&name).unwrap_or_else(|| panic!("{name} in {:?}", pages.keys()));
        assert!(page.starts_with(b".ie"), "{name}");
    }
    let ended = run(&["man", "--dir", "/nowhere/at/all"]);
    assert!(ended.code == 2 && ended.err.contains("name a folder"), "{ended:?}");
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
    ] {
        let help = run(&[verb, &["--help"]].concat());
        for word in words {
            assert!(help.done().contains(word), "{verb:?} has no {word:?}: {}", help.out);
        }
    }
    assert!(run(&["--help"]).done().contains("Exit codes: 0 done, 1 no, 2 error."));
}
