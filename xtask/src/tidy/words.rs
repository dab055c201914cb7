//! One word per concept: the glossary's words, and not their rivals, in code and in prose.
//!
//! A line is cut into its words, and identifiers into theirs (`tenant_id`, `TenantId`), so that one entry finds every
//! spelling. Rivals that are also ordinary words (checkpoint, entry, hash, lock, owner, queue) are left to the reviewer.

use super::{Fault, code, is_exempt, lines_before_tests};
use crate::files::File;

/// Lists the rivals beside the words.
const GLOSSARY: &str = "docs/words.md";
const KINDS: [&str; 9] = [".rs", ".md", ".toml", ".sql", ".lua", ".html", ".js", ".txt", ".sh"];

/// A word we do not use.
struct Rival {
    /// In lower case; several words follow each other.
    words: &'static [&'static str],
    say: &'static str,
    place: Place,
    /// It is fine on a line, or in a path, that contains one of these.
    fine_with: &'static [&'static str],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Everywhere,
    /// As an identifier of the product. Prose may explain with it, and users may have headers of that name.
    Code,
}

const fn rival(
    words: &'static [&'static str],
    say: &'static str,
    fine_with: &'static [&'static str],
) -> Rival {
    Rival { words, say, place: Place::Everywhere, fine_with }
}

const fn identifier(
    words: &'static [&'static str],
    say: &'static str,
    fine_with: &'static [&'static str],
) -> Rival {
    Rival { words, say, place: Place::Code, fine_with }
}

const RIVALS: [Rival; 25] = [
    identifier(&["tenant"], "scope", &[]),
    identifier(&["namespace"], "scope", &["pg_namespace"]),
    identifier(&["checksum"], "fingerprint", &["migration"]),
    rival(&["etag"], "revision", &["ETag", "ETAG", "\"etag\"", "header", "if-match", "If-Match"]),
    rival(&["ttl"], "retention", &["DNS", "DynamoDB", "dynamodb", "TTL-", "config/names.rs"]),
    rival(&["janitor"], "sweeper or reaper", &[]),
    rival(&["gc"], "reaper", &[]),
    rival(&["garbage"], "reaper, or malformed", &["andom garbage"]),
    rival(&["dispatcher"], "relay", &["tracing", "dispatcher::"]),
    rival(&["cache", "hit"], "replay", &[]),
    rival(&["stale", "write"], "superseded", &[]),
    rival(&["lock", "id"], "token", &[]),
    rival(&["rejection"], "refusal", &["Rejection"]),
    rival(&["redelivery", "token"], "token", &[]),
    rival(&["ack"], "settle", &["TCP", "tcp"]),
    rival(&["idempotency", "token"], "key (of the client) or token (of an attempt)", &[]),
    rival(
        &["lock", "timeout"],
        "lease, which lapses",
        &[
            "SQL",
            "sql",
            "mariadb",
            "row",
            "-c lock_timeout=",
            "SET lock_timeout",
            "set_config('lock_timeout'",
            "`lock_timeout`",
        ],
    ),
    // Messages and pages in plain English.
    rival(&["is", "no", "setting"], "is an unknown setting", &["here is no", "is_no_"]),
    rival(&["is", "no", "text"], "is not a string, or is not text", &["here is no", "is_no_"]),
    rival(&["is", "no", "json"], "is not JSON", &["here is no", "is_no_"]),
    rival(&["is", "no", "table"], "is not a table", &["here is no", "is_no_"]),
    rival(&["is", "no", "url"], "is not a URL", &["here is no", "is_no_"]),
    rival(&["is", "no", "number"], "is not a number", &["here is no", "is_no_"]),
    rival(&["mend"], "fix", &["wire.mend", "Wire::mend", "fn mend"]),
    rival(&["mended"], "fixed", &["_mended", "mended_"]),
];

pub(super) fn faults(files: &[File]) -> Vec<Fault> {
    let ours = files.iter().filter(|file| !is_exempt(file) && file.path != GLOSSARY);
    ours.filter(|file| KINDS.iter().any(|kind| file.ends_with(kind))).flat_map(of_file).collect()
}

fn of_file(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    let product_lines = if is_product(file) { lines_before_tests(file).count() } else { 0 };
    for (number, line) in file.lines() {
        let code = if number <= product_lines { without_strings(code(line)) } else { String::new() };
        for rival in RIVALS.iter().filter(|rival| is_used(rival, file, line, &code)) {
            let message = format!("\"{}\" is not our word; say \"{}\"", rival.words.join(" "), rival.say);
            faults.push(Fault::at(file, number, "words", message));
        }
    }
    faults
}

fn is_product(file: &File) -> bool {
    file.ends_with(".rs") && !file.path.contains("/tests/")
}

/// The code without what stands in quotes.
fn without_strings(code: &str) -> String {
    code.split('"').step_by(2).collect::<Vec<_>>().join("\"")
}

fn is_used(rival: &Rival, file: &File, line: &str, code: &str) -> bool {
    let text = match rival.place {
        Place::Everywhere => line,
        Place::Code => code,
    };
    if rival.fine_with.iter().any(|word| line.contains(word) || file.path.contains(word)) {
        return false;
    }
    let words = words(text);
    words.windows(rival.words.len()).any(|window| {
        let (last, first) = window.split_last().expect("a rival has words");
        let (rival_last, rival_first) = rival.words.split_last().expect("a rival has words");
        let is_last = last.strip_suffix('s').unwrap_or(last) == *rival_last || last == rival_last;
        is_last && first.iter().zip(rival_first).all(|(word, rival)| word == rival)
    })
}

/// The words of a line in lower case; `maxKeys`, `max_keys` and `max keys` are the same two. A full stop or comma
/// between two words keeps them apart, as an empty word.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut was_lower = false;
    for char in line.chars() {
        if char.is_alphanumeric() {
            if char.is_uppercase() && was_lower {
                words.push(std::mem::take(&mut word));
            }
            was_lower = char.is_lowercase();
            word.extend(char.to_lowercase());
            continue;
        }
        was_lower = false;
        if !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if !matches!(char, ' ' | '_' | '-') {
            words.push(String::new());
        }
    }
    words.push(word);
    words
}

#[cfg(test)]
mod tests {
    use super::super::tests::found;
    use super::*;

    fn count(text: &str) -> usize {
        found(faults, "crates/onlyonce/src/a.rs", text).len()
    }

    #[test]
    fn a_rival_is_found_in_every_spelling() {
        for text in ["let tenant = 1;", "tenant_id", "TenantId", "tenants", "TENANT", "// the janitor"] {
            assert_eq!(count(text), 1, "{text}");
        }
        for text in ["cache hit", "cache_hits", "CacheHit", "a cache-hit"] {
            assert_eq!(count(text), 1, "{text}");
        }
    }

    #[test]
    fn the_message_gives_the_right_word() {
        let found = found(faults, "docs/a.md", "one\nThe TTL is a day.\n");
        assert_eq!(found, ["2: \"ttl\" is not our word; say \"retention\""]);
    }

    #[test]
    fn ordinary_text_is_left_alone() {
        for text in [
            "the cache, hit hard",
            "a tenantless",
            "subtle",
            "settled",
            "package",
            "back",
            "// the namespace of a key",
            "// a tenant's name",
            "let source = \"trusted:x-tenant\";",
            "#[cfg(test)]\nlet tenant = 1;",
        ] {
            assert_eq!(count(text), 0, "{text}");
        }
    }

    #[test]
    fn a_message_in_odd_english_is_found() {
        for text in [
            "wrong(name, \"is no setting; did you mean lease?\")",
            "// its answer is no JSON object",
            "# mend line 3",
            "\"broken on Friday, mended on Monday\"",
        ] {
            assert_eq!(count(text), 1, "{text}");
        }
        for text in ["there is no setting for it", "recommend", "amended", "wire.mend();"] {
            assert_eq!(count(text), 0, "{text}");
        }
    }

    #[test]
    fn the_words_of_the_field_are_ours_too() {
        for text in [
            "PRAGMA wal_checkpoint",
            "let checkpoint = 1;",
            "flush the journal",
            "a queue of batches",
            "abandon",
        ] {
            assert_eq!(count(text), 0, "{text}");
        }
    }

    #[test]
    fn the_glossary_may_name_rivals() {
        assert!(found(faults, "docs/words.md", "| retention | how long | TTL |").is_empty());
        assert_eq!(found(faults, "docs/other/words.md", "| retention | how long | TTL |").len(), 1);
    }

    #[test]
    fn a_word_is_fine_where_it_means_something_else() {
        assert_eq!(count("headers.get(\"etag\")"), 0);
        assert_eq!(count("let etag = record.etag();"), 1);
        assert_eq!(count("let namespace = 1;"), 1);
        assert!(found(faults, "crates/onlyonce-store/src/migrations/mod.rs", "let checksum = 1;").is_empty());
    }
}
