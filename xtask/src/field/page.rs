//! The pages that are made from the kept results: `docs/field.md`, and the table in README between two marks.

use std::fmt::Write;

use serde_json::Value;

pub(crate) const RESULTS: &str = "examples/field/results.json";
pub(crate) const PAGE: &str = "docs/field.md";
pub(crate) const README: &str = "README.md";
pub(crate) const BEGIN: &str = "<!-- field: begin, written by cargo xtask field -->";
pub(crate) const END: &str = "<!-- field: end -->";

/// The columns of the short table: a question, and the checks that must all hold for a "yes".
const QUESTIONS: [(&str, &[&str]); 7] = [
    ("a retry runs nothing", &["replay-once"]),
    ("and gets the first answer", &["replay-status", "replay-body", "replay-third"]),
    ("of 8 at once, one runs", &["at-once-one-run"]),
    ("another body is refused", &["reuse-refused", "reuse-not-run"]),
    ("another caller does not get the answer", &["scope-no-leak"]),
    ("nor does anybody without credentials", &["scope-nobody"]),
    ("hang up, retry: one run", &["hang-up-once"]),
];

/// The short table. The page with all details is linked as `page`.
pub(crate) fn table(results: &[Value], page: &str) -> String {
    let mut text = String::from("| |");
    for (question, _) in QUESTIONS {
        let _ = write!(text, " {question} |");
    }
    let _ = writeln!(text, " [\"must\" rules]({page}) broken |\n|---|{}", "---|".repeat(QUESTIONS.len() + 1));
    for result in results {
        text.push_str(&row(result));
    }
    text
}

fn row(result: &Value) -> String {
    let mut text = format!("| {} |", title(result));
    let Some(checks) = result["checks"].as_array() else {
        let reason = result["untested"].as_str().unwrap_or("no reason is kept");
        let _ = write!(text, " could not be tested: {} |", cell(reason));
        let _ = writeln!(text, "{}", " |".repeat(QUESTIONS.len()));
        return text;
    };
    for (_, ids) in QUESTIONS {
        let _ = write!(text, " {} |", answer(checks, ids));
    }
    let musts = checks.iter().filter(|check| check["level"] == "must").count();
    let _ = writeln!(text, " {} of {musts} |", broken(checks, Some("must")));
    text
}

fn title(result: &Value) -> String {
    let [name, version, settings] =
        ["name", "version", "settings"].map(|field| result[field].as_str().unwrap_or_default());
    let space = if version.is_empty() { "" } else { " " };
    format!("**{name}**{space}{version} ({settings})")
}

/// "yes" where all of these checks held, "no" where one is broken.
fn answer(checks: &[Value], ids: &[&str]) -> &'static str {
    let verdicts =
        ids.iter().map(|id| checks.iter().find(|check| check["id"] == *id).map(|check| &check["verdict"]));
    let verdicts: Vec<_> = verdicts.collect();
    if verdicts.iter().any(|verdict| verdict.is_some_and(|verdict| verdict == "broken")) {
        return "**no**";
    }
    let is_held = verdicts.iter().all(|verdict| verdict.is_some_and(|verdict| verdict == "held"));
    if is_held { "yes" } else { "cannot tell" }
}

/// How many checks are broken, of this level or of all.
pub(crate) fn broken(checks: &[Value], level: Option<&str>) -> usize {
    let is_counted =
        |check: &&Value| check["verdict"] == "broken" && level.is_none_or(|level| check["level"] == level);
    checks.iter().filter(is_counted).count()
}

/// Text that cannot end the cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

/// `docs/field.md`
pub(crate) fn page(results: &[Value]) -> String {
    let mut text = String::from(HEAD);
    text.push_str(&table(results, "#what-was-broken"));
    text.push_str(BETWEEN);
    for result in results {
        let _ = writeln!(text, "### {}\n", title(result).replace("**", ""));
        text.push_str(&details(result));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn details(result: &Value) -> String {
    let mut text = String::new();
    let folder = result["folder"].as_str().unwrap_or_default();
    let from = result["from"].as_str().filter(|from| !from.is_empty());
    let origin = from.map_or(String::new(), |from| format!("From {from}. "));
    let _ = writeln!(text, "{origin}The service: [examples/field/{folder}](../examples/field/{folder}).\n");
    let Some(checks) = result["checks"].as_array() else {
        let reason = result["untested"].as_str().unwrap_or("no reason is kept");
        let _ = writeln!(text, "Could not be tested: {}\n", cell(reason));
        return text;
    };
    let count = |verdict: &str| checks.iter().filter(|check| check["verdict"] == verdict).count();
    let _ = writeln!(
        text,
        "Of {} checks {} held, {} are broken, {} could not be told.\n",
        checks.len(),
        count("held"),
        count("broken"),
        count("cannot tell")
    );
    let faults: Vec<_> = checks.iter().filter(|check| check["verdict"] == "broken").collect();
    if faults.is_empty() {
        return text;
    }
    text.push_str("| broken | | what the tester saw |\n|---|---|---|\n");
    for check in faults {
        let [level, what, why] =
            ["level", "what", "why"].map(|field| cell(check[field].as_str().unwrap_or_default()));
        let _ = writeln!(text, "| {what} | {level} | {why} |");
    }
    text.push('\n');
    text
}

/// README with this table between the marks; none where they are missing.
pub(crate) fn with_table(readme: &str, table: &str) -> Option<String> {
    let (before, rest) = readme.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{table}{END}{after}"))
}

const HEAD: &str = "\
# Published libraries, tested from outside

`cargo xtask field` writes this page, and the table in README. Do not edit it; `cargo xtask tidy` compares both with
[the kept results](../examples/field/results.json).

The same small service (`POST /payments`, 100 ms of work, refuses callers without `Authorization`) is started with each library, at
the version named here, set up as that library's README says. One process each. Then [`onlyonce conform`](commands.md#conform) is run:

```sh
onlyonce conform http://HOST/payments --json --allow-writes 200 --count http://HOST/count --count-pointer /count \\
  --header 'Authorization: Bearer ann' --other-caller 'Authorization: Bearer bob' --timeout 20
```

The rules are those of the `ietf` profile. Some of these libraries follow other rules on purpose: a \"no\" says what was seen, not that
the library breaks a promise of its own. A service can also check credentials before the library, where its framework allows that; here
that check is where each framework has it by custom.

## What was seen

";

const BETWEEN: &str = "
\"yes\" means that every check of that column held, \"no\" that one is broken. A \"must\" is a rule without which a retry is not safe.

## What was broken

";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn result(verdict: &str) -> Value {
        let check =
            json!({ "id": "replay-once", "level": "must", "what": "It", "verdict": verdict, "why": "a | b" });
        json!({ "name": "lib", "version": "1", "settings": "defaults", "folder": "lib", "from": "PyPI", "checks": [check] })
    }

    #[test]
    fn a_broken_rule_is_a_no_and_an_untold_one_is_not_a_yes() {
        for (verdict, expected) in [("held", "yes"), ("broken", "**no**"), ("cannot tell", "cannot tell")] {
            let row = row(&result(verdict));
            assert!(row.starts_with(&format!("| **lib** 1 (defaults) | {expected} |")), "{row}");
        }
        assert!(row(&result("broken")).ends_with("| 1 of 1 |\n"));
    }

    #[test]
    fn what_could_not_be_tested_is_a_row_as_wide_as_the_others() {
        let untested =
            json!({ "name": "lib", "version": "1", "settings": "defaults", "untested": "no | such\nthing" });
        let row = row(&untested);
        assert!(row.contains("could not be tested: no \\| such thing"), "{row}");
        assert_eq!(
            row.replace("\\|", "").matches('|').count(),
            super::row(&result("held")).matches('|').count()
        );
    }

    #[test]
    fn the_table_replaces_what_is_between_the_marks_and_nothing_else() {
        let readme = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        assert_eq!(with_table(&readme, "new\n"), Some(format!("a\n{BEGIN}\nnew\n{END}\nb\n")));
        assert_eq!(with_table("a\n", "new\n"), None);
    }
}
