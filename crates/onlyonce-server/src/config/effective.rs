//! What holds, all of it, as TOML, each with where it came from. A secret is shown as the place it is read from.

use std::fmt::Write;

use super::fault::Place;
use super::policy::{DERIVED, brought, derived};
use super::secret;
use super::setting::{self, Setting, Shape, TABLES};
use super::tree::{Node, Table, Value};
use super::{Config, Policy};

/// A column at which most values have ended.
const COMMENT_AT: usize = 44;
/// Where a value came from that nobody set, and that is not the default.
const DERIVED_PLACE: &str = "derived";

/// Every setting that is set or has a default.
pub(super) fn toml(settings: &Table, config: &Config) -> String {
    let mut out = String::new();
    for table in TABLES {
        let node = node(settings, table.path);
        match table.shape {
            Shape::One => {
                let members = node.and_then(Node::table);
                let members = if table.path.is_empty() { Some(settings) } else { members };
                // A table that is nothing without what only the user knows.
                if members.is_none() && table.path == "jwt" {
                    continue;
                }
                one(&mut out, table.path, members, &config.default.policy);
            }
            Shape::List => list(&mut out, table.path, node, config),
            Shape::Named => named(&mut out, table.path, node),
        }
    }
    out
}

fn node<'a>(settings: &'a Table, path: &str) -> Option<&'a Node> {
    let (table, name) = path
        .rsplit_once('.')
        .map_or((Some(settings), path), |(outer, name)| (node(settings, outer).and_then(Node::table), name));
    table?.get(name)
}

fn one(out: &mut String, path: &str, members: Option<&Table>, policy: &Policy) {
    let mut lines = String::new();
    for setting in setting::members(path) {
        let name = setting.split().1;
        match members.and_then(|members| members.get(name)) {
            Some(node) => {
                let holds_login = path.is_empty() && matches!(name, "store" | "cache");
                let value = if holds_login { without_login(&node.value) } else { written(&node.value) };
                line(&mut lines, name, &value, &node.place.to_string());
            }
            None => match default(setting, policy) {
                Some((value, place)) => line(&mut lines, name, &value, &place),
                None => continue,
            },
        }
    }
    if !lines.is_empty() && !path.is_empty() {
        let _ = write!(out, "\n[{path}]\n");
    }
    out.push_str(&lines);
}

/// What holds where nothing is set: the dialect's preset, what is derived, or the default.
fn default(setting: &Setting, policy: &Policy) -> Option<(String, String)> {
    let name = setting.path.strip_prefix("policy.").unwrap_or_default();
    // It is short for `key_from`, which is shown.
    if name == "header" && policy.key_from != Policy::default().key_from {
        return None;
    }
    if let Some((_, value)) = brought(policy).into_iter().find(|(other, _)| *other == name) {
        return Some((value, format!("dialect {}", policy.dialect.name)));
    }
    if let Some(value) = derived(name, policy, &Policy::default()) {
        return Some((value, DERIVED_PLACE.to_owned()));
    }
    setting.default.map(|value| (value.to_owned(), Place::Default.to_string()))
}

fn list(out: &mut String, path: &str, node: Option<&Node>, config: &Config) {
    let Some(Value::List(nodes)) = node.map(|node| &node.value) else { return };
    for (index, members) in nodes.iter().filter_map(Node::table).enumerate() {
        let _ = write!(out, "\n[[{path}]]\n");
        if path == "route" {
            derived_for(out, members, &config.routes[index].policy, &config.default.policy);
        }
        given(out, members, path);
    }
}

/// What a route has otherwise than `[policy]`, although neither its settings nor its dialect say so.
fn derived_for(out: &mut String, members: &Table, policy: &Policy, below: &Policy) {
    let of_dialect = if members.contains_key("dialect") { brought(policy) } else { Vec::new() };
    for name in DERIVED.iter().filter(|name| !members.contains_key(**name)) {
        let is_brought = of_dialect.iter().any(|(other, _)| other == name);
        if let Some(value) = derived(name, policy, below).filter(|_| !is_brought) {
            line(out, name, &value, DERIVED_PLACE);
        }
    }
}

fn named(out: &mut String, path: &str, node: Option<&Node>) {
    for (name, node) in node.and_then(Node::table).into_iter().flatten() {
        let path = format!("{path}.{}", written_name(name));
        let _ = write!(out, "\n[{path}]\n");
        given(out, node.table().unwrap_or(&Table::new()), &path);
    }
}

/// What was set, and nothing else; tables last, as TOML has it.
fn given(out: &mut String, members: &Table, path: &str) {
    let holds_secrets = path.ends_with(".probe_headers");
    for (name, node) in members.iter().filter(|(_, node)| node.table().is_none()) {
        let value = if holds_secrets { place_of_secret(&node.value) } else { written(&node.value) };
        line(out, name, &value, &node.place.to_string());
    }
    for (name, table) in members.iter().filter_map(|(name, node)| Some((name, node.table()?))) {
        let path = format!("{path}.{}", written_name(name));
        let _ = write!(out, "\n[{path}]\n");
        given(out, table, &path);
    }
}

/// Where a secret is. One that stands in the settings themselves is left out.
fn place_of_secret(value: &Value) -> String {
    match value {
        Value::Text(text) if secret::is_place(text) => one_line(text),
        Value::Text(_)
        | Value::Integer(_)
        | Value::Flag(_)
        | Value::List(_)
        | Value::Table(_)
        | Value::Odd(_) => "\"…\"".to_owned(),
    }
}

fn line(out: &mut String, name: &str, value: &str, place: &str) {
    let set = format!("{} = {value}", written_name(name));
    let _ = writeln!(out, "{set:COMMENT_AT$}  # {place}");
}

fn written_name(name: &str) -> String {
    let is_bare =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_bare { name.to_owned() } else { one_line(name) }
}

/// A URL without user and password.
fn without_login(value: &Value) -> String {
    let written = written(value);
    match written.split_once("://") {
        Some((scheme, rest)) => match rest.rsplit_once('@') {
            Some((_, place)) => format!("{scheme}://…@{place}"),
            None => written,
        },
        None => written,
    }
}

fn written(value: &Value) -> String {
    match value {
        Value::Text(text) => one_line(text),
        Value::Integer(number) => number.to_string(),
        Value::Flag(flag) => flag.to_string(),
        Value::Odd(text) => text.clone(),
        Value::List(nodes) => {
            format!("[{}]", nodes.iter().map(|node| written(&node.value)).collect::<Vec<_>>().join(", "))
        }
        Value::Table(table) => {
            let members =
                table.iter().map(|(name, node)| format!("{} = {}", written_name(name), written(&node.value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A TOML string on one line, so that its comment stands beside it.
fn one_line(text: &str) -> String {
    let mut out = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            control if control.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(control));
            }
            plain => out.push(plain),
        }
    }
    out + "\""
}
