//! The reference, the example and the help, made from the table of settings.

use std::fmt::Write;

use super::setting::{self, Setting, Shape, TABLES, TableOf};

/// How long a line of the example and of the help may be.
const WIDTH: usize = 110;

/// The reference for `docs/settings.md`: a section for each table.
pub(crate) fn markdown() -> String {
    let mut out = String::new();
    for table in TABLES {
        let _ = write!(out, "### {}\n\n{}\n\n", heading(table), table.meaning);
        out.push_str("| setting | default | takes | meaning |\n|---|---|---|---|\n");
        for setting in setting::members(&pattern(table)) {
            let name = setting.path.strip_prefix("policy.").filter(|_| table.path == "policy.fingerprint");
            let name = name.unwrap_or(setting.split().1);
            let default = setting.default.map_or_else(|| "none".to_owned(), |default| format!("`{default}`"));
            let default = if setting.path == "policy.not_replayed" { listed(setting) } else { default };
            let expected = &setting.takes;
            let _ = writeln!(out, "| `{name}` | {default} | {expected} | {} |", setting.meaning);
        }
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// A list that would make its column too wide stands one under the other.
fn listed(setting: &Setting) -> String {
    let list = setting.default.unwrap_or_default().trim_matches(['[', ']']);
    let names: Vec<_> = list.split(", ").map(|name| format!("`{}`", name.trim_matches('"'))).collect();
    names.join(" ")
}

fn heading(table: &TableOf) -> String {
    if table.path.is_empty() { "Outside any table".to_owned() } else { format!("`{}`", header(table)) }
}

fn header(table: &TableOf) -> String {
    match table.shape {
        Shape::One => format!("[{}]", table.path),
        Shape::List => format!("[[{}]]", table.path),
        Shape::Named => format!("[{}.NAME]", table.path),
    }
}

/// The path that its settings have in the table.
pub(super) fn pattern(table: &TableOf) -> String {
    match table.shape {
        Shape::One | Shape::List => table.path.to_owned(),
        Shape::Named => format!("{}.*", table.path),
    }
}

/// `onlyonce.example.toml`: every setting, commented out, with its default or an example.
pub(crate) fn example() -> String {
    let mut out = String::from(
        "# Every setting of `onlyonce serve`. Commented lines show the default, or an example if there is no default.\n\
         # Check your file with `onlyonce check --config onlyonce.toml`. More is in docs/settings.md.\n\
         # For an editor that knows JSON Schema: onlyonce settings --schema > onlyonce.schema.json, and a first line with two\n\
         # words: #:schema ./onlyonce.schema.json\n\n",
    );
    for table in TABLES {
        let members: Vec<_> = setting::members(&pattern(table)).collect();
        if !table.path.is_empty() {
            let is_set = table.shape == Shape::One && members.iter().any(|setting| setting.default.is_some());
            out.push_str(&comment(&plain(table.meaning)));
            let header = header(table).replace("NAME", "example");
            let _ = writeln!(out, "{}{header}", if is_set { "" } else { "#" });
        }
        for setting in &members {
            out.push_str(&comment(&plain(setting.meaning)));
            let hash = if setting.path == "upstream" { "" } else { "#" };
            let _ = writeln!(out, "{hash}{} = {}", setting.split().1, setting.example);
        }
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// The settings part of the help: names, defaults and meanings.
pub(crate) fn help() -> String {
    let mut out = String::from(
        "Settings, given by --set NAME=VALUE, a variable (ONLYONCE_POLICY__LEASE=5s) or the file; --set overrides variables, and\n\
         variables override the file. VALUE is TOML; a bare word is a string. Secrets are env:NAME or file:PATH. No file is read\n\
         unless --config names it.\n",
    );
    for table in TABLES {
        let members: Vec<_> = setting::members(&pattern(table)).collect();
        let _ = write!(
            out,
            "\n{}\n",
            if table.path.is_empty() { "Outside any table".to_owned() } else { header(table) }
        );
        for setting in &members {
            let default = setting.default.map(|default| format!(" [default: {default}]")).unwrap_or_default();
            let _ = writeln!(out, "  {}{default}", setting.path.replace('*', "NAME"));
            for line in wrapped(&plain(setting.meaning), WIDTH - 6) {
                let _ = writeln!(out, "      {line}");
            }
        }
    }
    out
}

fn comment(text: &str) -> String {
    wrapped(text, WIDTH - 2).iter().map(|line| format!("# {line}\n")).collect()
}

/// Without the marks of Markdown, and links as their text.
pub(super) fn plain(text: &str) -> String {
    let text = text.replace('`', "");
    let mut out = String::new();
    let mut rest = &*text;
    while let Some((before, after)) = rest.split_once("](") {
        let open = before.rfind('[').unwrap_or(before.len());
        out.push_str(&before[..open]);
        out.push_str(before.get(open + 1..).unwrap_or_default());
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    out + rest
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
