//! Every dependency may be used under a licence of the list in `deny.toml`. That list is the only one: `cargo deny`
//! reads it too, but is not on every machine.

use serde_json::Value;

use super::Fault;
use crate::files::File;

const LIST: &str = "deny.toml";

pub(super) fn faults(files: &[File], metadata: &Value) -> Vec<Fault> {
    let Some(list) = files.iter().find(|file| file.path == LIST) else {
        return vec![Fault::of(LIST, "licences", "is missing; it lists the licences we accept")];
    };
    let allowed = allowed(&list.text);
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter_map(|package| objection(package, &allowed))
        .map(|message| Fault::of(LIST, "licences", message))
        .collect()
}

/// The quoted names of `allow = […]` under `[licenses]`.
fn allowed(list: &str) -> Vec<&str> {
    let section =
        list.split_once("[licenses]").map_or("", |(_, rest)| rest.split("\n[").next().unwrap_or_default());
    let array =
        section.split_once("allow = [").map_or("", |(_, rest)| rest.split(']').next().unwrap_or_default());
    array.split('"').skip(1).step_by(2).collect()
}

fn objection(package: &Value, allowed: &[&str]) -> Option<String> {
    let name = format!("{} {}", package["name"].as_str()?, package["version"].as_str()?);
    let Some(licence) = package["license"].as_str() else {
        return Some(format!("{name} states no licence; replace it, or read its files and say so here"));
    };
    let words = words(licence);
    let mut rest = words.as_slice();
    let satisfied = either(&mut rest, allowed) && rest.is_empty();
    (!satisfied).then(|| format!("{name} is under \"{licence}\", which is not accepted; replace it"))
}

/// The words of an SPDX expression, with parentheses apart; the old slash means "or".
fn words(licence: &str) -> Vec<String> {
    let spaced = licence.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    spaced.split_whitespace().map(str::to_owned).collect()
}

/// One side of an OR suffices. Both are read, whatever the first says, so that the rest stays in step.
fn either(rest: &mut &[String], allowed: &[&str]) -> bool {
    let mut satisfied = both(rest, allowed);
    while take(rest, "OR") {
        satisfied |= both(rest, allowed);
    }
    satisfied
}

fn both(rest: &mut &[String], allowed: &[&str]) -> bool {
    let mut satisfied = one(rest, allowed);
    while take(rest, "AND") {
        satisfied &= one(rest, allowed);
    }
    satisfied
}

fn one(rest: &mut &[String], allowed: &[&str]) -> bool {
    if take(rest, "(") {
        let satisfied = either(rest, allowed);
        return take(rest, ")") && satisfied;
    }
    let Some((licence, after)) = rest.split_first() else { return false };
    *rest = after;
    // An exception only ever permits more.
    if take(rest, "WITH") {
        *rest = rest.get(1..).unwrap_or_default();
    }
    allowed.contains(&licence.as_str())
}

fn take(rest: &mut &[String], word: &str) -> bool {
    let is_next = rest.first().is_some_and(|next| next == word);
    if is_next {
        *rest = &rest[1..];
    }
    is_next
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::file;
    use super::*;

    fn is_accepted(licence: &Value) -> bool {
        let list = file(
            LIST,
            "[bans]\nallow = [\"GPL-3.0\"]\n[licenses]\nallow = [\n  \"MIT\", # short\n  \"Apache-2.0\",\n  \"ISC\",\n]\n",
        );
        let package = json!({ "name": "a", "version": "1.0.0", "license": licence });
        faults(&[list], &json!({ "packages": [package] })).is_empty()
    }

    #[test]
    fn expressions_are_understood() {
        for licence in [
            "MIT",
            "MIT/GPL-3.0",
            "MIT OR GPL-3.0",
            "GPL-3.0 OR MIT",
            "MIT AND ISC",
            "(MIT OR GPL-3.0) AND ISC",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
            "GPL-3.0 OR (MIT AND ISC)",
        ] {
            assert!(is_accepted(&json!(licence)), "{licence}");
        }
    }

    #[test]
    fn what_is_not_on_the_list_is_found() {
        for licence in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT AND GPL-3.0) OR AGPL-3.0", "", "MIT ISC"] {
            assert!(!is_accepted(&json!(licence)), "{licence}");
        }
        assert!(!is_accepted(&Value::Null));
    }

    #[test]
    fn a_missing_list_is_found() {
        assert_eq!(faults(&[], &json!({ "packages": [] })).len(), 1);
    }
}
